"""The list of models in Anthropic's form, with the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import anthropic
import httpx
import pytest
from anthropic.types import ModelInfo

from geartrain.testing import serve
from geartrain.testing.server import Server
from geartrain.transport.access.keys import Key, add_key, digest_of, new_key
from tests.support.servers import PATIENCE, ServerProcess, write_model
from tests.support.text_apis import WRITER

NAMES = ["a", "b", "c", "d"]
NUMBER = """
    def run(number: float) -> float:
        return number
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    for name in NAMES:
        write_model(folder / name, WRITER)
    write_model(folder / "number", NUMBER)
    with serve(folder) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def test_models_in_pages(client: anthropic.Anthropic) -> None:
    page = client.models.list(limit=3)
    assert ([model.id for model in page.data], page.has_more) == (["a", "b", "c"], True)
    assert (page.first_id, page.last_id) == ("a", "c")
    assert [model.id for model in client.models.list(limit=3)] == NAMES  # the client asks for all pages
    last = client.models.list(after_id="c")
    assert ([model.id for model in last.data], last.has_more) == (["d"], False)
    before = client.models.list(before_id="d", limit=2)
    assert ([model.id for model in before.data], before.has_more) == (["b", "c"], True)
    none = client.models.list(after_id="d")
    assert (none.data, none.has_more, none.first_id, none.last_id) == ([], False, None, None)


def test_one_model(client: anthropic.Anthropic) -> None:
    one = client.models.retrieve("b")
    assert (one.id, one.type, one.display_name, one.lifecycle) == ("b", "model", "b", "active")
    assert abs((datetime.now(UTC) - one.created_at).total_seconds()) < PATIENCE
    for name in ("number", "nothing"):  # the first of them takes no messages
        with pytest.raises(anthropic.NotFoundError, match=name):
            client.models.retrieve(name)


def test_each_client_gets_its_own_form(server: Server) -> None:
    url = f"{server.url}/v1/models"
    raw = httpx.get(f"{url}?limit=1", headers={"anthropic-version": "2023-06-01"}).json()
    assert set(raw) == {"data", "has_more", "first_id", "last_id"}
    ModelInfo.model_validate_json(json.dumps(raw["data"][0]), strict=True)
    assert {model["id"] for model in httpx.get(url).json()["data"]} == {*NAMES, "number"}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("limit=-1", "limit"),
        ("limit=1001", "limit"),
        ("limit=99999999999", "limit"),
        ("after_id=x", "after_id"),
        ("before_id=number", "before_id"),
        ("after_id=a&before_id=b", "before_id"),
    ],
)
def test_wrong_pages_are_named(server: Server, query: str, said: str) -> None:
    response = httpx.get(f"{server.url}/v1/models?{query}", headers={"anthropic-version": "2023-06-01"})
    body = response.json()
    assert (response.status_code, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
    assert f"'{said}'" in body["error"]["message"]


def test_a_refused_key_is_told_in_the_form_of_the_client(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "writer", WRITER)
    runs = new_key()
    add_key(tmp_path / "keys", Key("ada", ("predict",), digest_of(runs)))  # without the scope `read`
    process = ServerProcess(str(tmp_path / "models"), "--keys", str(tmp_path / "keys"))
    url = process.wait_for("listening")["url"] + "/v1/models"
    try:
        for path in (url, f"{url}/writer"):
            for key, status, kind in (("wrong", 401, "authentication_error"), (runs, 403, "permission_error")):
                for headers in ({"x-api-key": key}, {"authorization": f"Bearer {key}", "anthropic-version": "x"}):
                    refused = httpx.get(path, headers=headers)
                    body = refused.json()
                    assert (refused.status_code, body["type"], body["error"]["type"]) == (status, "error", kind)
                body = httpx.get(path, headers={"authorization": f"Bearer {key}"}).json()
                assert set(body["error"]) == {"message", "type", "param", "code"}
        wrong = httpx.post(url, headers={"anthropic-version": "x"})
        assert (wrong.status_code, wrong.json()["type"], wrong.headers["allow"]) == (405, "error", "GET, HEAD")
        assert "type" not in httpx.post(url).json()
        with (
            anthropic.Anthropic(base_url=url.removesuffix("/v1/models"), api_key="wrong", max_retries=0) as client,
            pytest.raises(anthropic.AuthenticationError) as caught,
        ):
            client.models.list()
        assert caught.value.type == "authentication_error"
    finally:
        process.end()
