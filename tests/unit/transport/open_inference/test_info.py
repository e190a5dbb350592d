"""What the protocol tells of a server and its models, which path is what, and who may ask."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import pytest

from geartrain import __version__
from geartrain.domain.rendering import clip
from geartrain.transport.wire.exchange import Answer
from tests.support.responders import ask, body_of, head_of
from tests.unit.transport.open_inference.conftest import Zoo


def get(zoo: Zoo, path: str) -> Answer:
    """Ask for what needs no body, and is answered at once."""
    answer = zoo.router.begin(head_of("GET", path))
    assert isinstance(answer, Answer)
    return answer


def read(zoo: Zoo, path: str) -> tuple[int, Any]:
    answer = get(zoo, path)
    assert dict(answer.headers) == {b"content-type": b"application/json"}
    return answer.status, json.loads(body_of(answer))


@pytest.mark.parametrize("path", ["/v2", "/v2/", "/%76%32"])
async def test_server(zoo: Zoo, path: str) -> None:
    status, body = read(zoo, path)
    assert (status, body["name"], body["version"]) == (200, "geartrain", __version__)
    assert "system_shared_memory" in body["extensions"]


async def test_models(zoo: Zoo) -> None:
    assert read(zoo, "/v2/models") == (200, {"models": ["gate", "numbers", "talk"]})


@pytest.mark.parametrize("path", ["/v2/models/numbers", "/v2/models/n%75mbers/versions/01"])
async def test_metadata(zoo: Zoo, path: str) -> None:
    status, body = read(zoo, path)
    assert (status, body["name"], body["versions"]) == (200, "numbers", ["1"])
    assert body["outputs"] == [{"name": "output", "datatype": "INT64", "shape": [-1]}]


async def test_config(zoo: Zoo) -> None:
    status, body = read(zoo, "/v2/models/talk/config")
    assert (status, body["name"], body["model_transaction_policy"]) == (200, "talk", {"decoupled": True})
    assert read(zoo, "/v2/models/talk/versions/1/config") == (200, body)


async def test_statistics(zoo: Zoo) -> None:
    await ask(zoo.router, "POST", "/v2/models/numbers/infer", body=b'{"inputs":[]}')
    for path in ("/v2/models/numbers/stats", "/v2/models/numbers/versions/1/stats"):
        status, body = read(zoo, path)
        (one,) = body["model_stats"]
        assert (status, one["name"], one["inference_count"]) == (200, "numbers", 1)
    status, body = read(zoo, "/v2/models/stats")
    assert (status, [one["name"] for one in body["model_stats"]]) == (200, ["gate", "numbers", "talk"])


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/v2/models/nope", 404, "Request for unknown model: 'nope' is not found"),
        ("/v2/models/nope/config", 404, "Request for unknown model: 'nope' is not found"),
        ("/v2/models/numbers/versions/07", 404, "Request for unknown model: 'numbers' version 7 is not found"),
        ("/v2/models/a%2Fb", 404, "Request for unknown model: 'a/b' is not found"),
        ("/v2/models/nope/stats", 400, "requested model 'nope' is not available"),
        (
            "/v2/models/numbers/versions/7/stats",
            400,
            "requested model version is not available for model 'numbers'",
        ),
        (f"/v2/models/{'n' * 5000}/stats", 400, f"requested model '{clip('n' * 5000)}' is not available"),
        ("/v2/systemsharedmemory/region/r/status", 404, "Unable to find system shared memory region: 'r'"),
    ],
)
async def test_what_is_not_there(zoo: Zoo, path: str, status: int, text: str) -> None:
    assert read(zoo, path) == (status, {"error": text})


# health


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/v2/health/live", 200, {"live": True}),
        ("/v2/health/ready", 200, {"ready": True}),
        ("/v2/models/numbers/ready", 200, {"name": "numbers", "ready": True}),
        ("/v2/models/numbers/versions/01/ready", 200, {"name": "numbers", "ready": True}),
        ("/v2/models/numbers/versions/2/ready", 400, {"name": "numbers", "ready": False}),
        ("/v2/models/nope/ready", 400, {"name": "nope", "ready": False}),
        ("/v2/models/stats/ready", 400, {"name": "stats", "ready": False}),
    ],
)
async def test_health(zoo: Zoo, path: str, status: int, said: dict[str, Any]) -> None:
    answer = get(zoo, path)
    assert (answer.status, body_of(answer), answer.headers) == (status, b"", ())
    wordy = Zoo(health_body=True)
    await wordy.open()
    assert read(wordy, path) == (status, said)
    await wordy.close()


async def test_server_with_a_model_that_is_lost_is_not_ready(zoo: Zoo) -> None:
    worker: Any = zoo.catalogue.find("numbers").workers.replicas[0].worker
    worker.die("gone")
    found = [get(zoo, path).status for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/talk/ready")]
    assert found == [200, 400, 200]


# paths


@pytest.mark.parametrize(
    "path",
    [
        "/v2//",
        "/v2/nope",
        "/v2/health",
        "/v2/health/live/",
        "/v2/models/",
        "/v2/models/numbers/",
        "/v2/models/numbers/nope",
        "/v2/models/numbers/versions",
        "/v2/models/numbers/versions/",
        "/v2/models/numbers/versions/abc",
        "/v2/models/numbers/versions/-1",
        "/v2/models/numbers/versions/1_0",
        "/v2/models/numbers/versions/%C2%B2/ready",
        "/v2/models/numbers/versions/1/",
        "/v2/models/numbers/versions/1/nope",
        "/v2/models/numbers/versions/1/ready/x",
        "/v2/models/numbers/infer/",
        "/v2/models//ready",
        "/v2/models//infer",
        "/v2/repository",
        "/v2/repository//index",
        "/v2/repository/models/x/y",
        "/v2/repository/models//load",
        "/v2/systemsharedmemory",
        "/v2/systemsharedmemory/region//status",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_no_such_path(zoo: Zoo, path: str, method: str) -> None:
    answer = zoo.router.begin(head_of(method, path))
    assert answer == Answer(HTTPStatus.NOT_FOUND, (b'{"error":"Not Found"}',))


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v2", "GET"),
        ("/v2/", "GET"),
        ("/v2/models", "GET"),
        ("/v2/health/live", "GET"),
        ("/v2/models/numbers", "GET"),
        ("/v2/models/numbers/versions/7/ready", "GET"),
        ("/v2/models/stats", "GET"),
        ("/v2/models/numbers/infer", "POST"),
        ("/v2/models/numbers/generate", "POST"),
        ("/v2/models/numbers/versions/1/generate_stream", "POST"),
        ("/v2/repository/index", "POST"),
        ("/v2/repository/models/index", "POST"),
        ("/v2/repository/models/x/load", "POST"),
        ("/v2/systemsharedmemory/status", "GET"),
        ("/v2/systemsharedmemory/region/status/register", "POST"),
    ],
)
async def test_wrong_method(zoo: Zoo, path: str, allowed: str) -> None:
    for method in {"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "get"} - {allowed}:
        answer = zoo.router.begin(head_of(method, path))
        assert isinstance(answer, Answer)
        assert (answer.status, body_of(answer)) == (405, b'{"error":"Method Not Allowed"}')
        assert dict(answer.headers) == {b"content-type": b"application/json", b"allow": allowed.encode()}


async def test_scopes(zoo: Zoo) -> None:
    """What a key has to allow; nothing is open but health."""
    found: dict[str, set[str]] = {}
    for route in zoo.router.routes:
        found.setdefault(route.scope, set()).add(route.path.removeprefix("/v2"))
    versions = "/models/{model}/versions/{version:version}"
    both = ("/models/{model}", versions)
    assert found == {
        "open": {"/health/live", "/health/ready", *(f"{path}/ready" for path in both)},
        "predict": {
            f"{path}/{what}" for path in both for what in ("infer", "generate", "generate_stream", "infer_stream")
        },
        "read": {
            "",
            "/",
            "/models",
            "/models/stats",
            "/repository/index",
            "/repository/{repository}/index",
            *(f"{path}{what}" for path in both for what in ("", "/config", "/stats")),
        },
        "admin": {
            "/repository/models/{model}/load",
            "/repository/models/{model}/unload",
            "/systemsharedmemory/status",
            "/systemsharedmemory/unregister",
            *(f"/systemsharedmemory/region/{{region}}/{what}" for what in ("status", "register", "unregister")),
        },
    }
