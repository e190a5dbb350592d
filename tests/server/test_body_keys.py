"""Keys that are for some models only, at `/invoke` and at the endpoints of other servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from geartrain.transport.access.keys import Key, add_key, digest_of, new_key
from tests.support.servers import PATIENCE, ServerProcess, write_model

TEXT = """
    def run(text: str) -> str:
        return text
"""
PATHS = (
    "/models/{}/invoke",
    "/models/{}/versions/1/invoke",
    "/v1/models/{}:predict",
    "/predictions/{}",
    "/predictions/{}/1",
)


class Keyed:
    """A server of two models, and a key for one of them."""

    def __init__(self, folder: Path) -> None:
        for name in ("own", "other"):
            write_model(folder / "models" / name, TEXT)
        keys, secret = folder / "keys", new_key()
        add_key(keys, Key("ada", ("predict", "read"), digest_of(secret), ("own",)))
        self.process = ServerProcess(
            str(folder / "models"),
            *("--keys", str(keys), "--api", "kserve,torchserve,sagemaker", "--default-model", "other"),
        )
        url = self.process.wait_for("listening")["url"]
        self.client = httpx.Client(base_url=url, timeout=PATIENCE, headers={"authorization": f"Bearer {secret}"})
        for _ in range(2):
            self.process.wait_for("ready")

    def post(self, path: str) -> httpx.Response:
        body = {"instances": [{"text": "hi"}]} if path.endswith(":predict") else {"text": "hi"}
        return self.client.post(path, json=body)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    server = Keyed(tmp_path_factory.mktemp("keys"))
    yield server
    server.client.close()
    server.process.end()


@pytest.mark.parametrize("path", PATHS)
def test_only_the_model_of_the_key_can_be_asked(server: Keyed, path: str) -> None:
    assert server.post(path.format("own")).status_code == 200
    refused = server.post(path.format("other"))
    assert refused.status_code == 403, refused.text
    assert "is not for the model 'other'" in refused.text
    escaped = server.post(path.format("%6fther"))
    assert escaped.status_code in {403, 404}, escaped.text


@pytest.mark.parametrize("path", ["/invoke", "/invocations"])
def test_paths_without_a_name_are_those_of_the_default_model(server: Keyed, path: str) -> None:
    assert server.post(path).status_code == 403


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/other"])
def test_pages_about_other_models_are_refused(server: Keyed, path: str) -> None:
    assert server.client.get(path).status_code == 403
    assert server.client.get("/v1/models/own").status_code == 200


def test_no_key_is_no_answer(server: Keyed) -> None:
    with httpx.Client(base_url=server.client.base_url, timeout=PATIENCE) as client:
        for path in (*PATHS, "/invoke", "/invocations"):
            assert client.post(path.format("own"), json={"text": "hi"}).status_code == 401, path
        assert client.get("/ping").status_code == 200
