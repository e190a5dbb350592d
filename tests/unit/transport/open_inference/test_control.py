"""Loading and unloading models, and regions of shared memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from geartrain.transport.wire.exchange import Answer
from tests.support.responders import ask, body_of
from tests.support.shared_memory import shared_object
from tests.unit.transport.open_inference.conftest import MAX_BODY, Zoo

REGION = "/v2/systemsharedmemory/region/a%2Fb"


async def post(zoo: Zoo, path: str, body: bytes = b"") -> Answer:
    return await ask(zoo.router, "POST", path, body=body)


async def names(zoo: Zoo, body: bytes = b"") -> list[str]:
    answer = await post(zoo, "/v2/repository/index", body)
    assert answer.status == 200
    return [one["name"] for one in json.loads(body_of(answer))]


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/repository/mine/index", "/v2/repository/models/index"])
async def test_index(zoo: Zoo, path: str) -> None:
    answer = await post(zoo, path)
    assert json.loads(body_of(answer))[0] == {"name": "gate", "version": "1", "state": "READY"}


async def test_unload(zoo: Zoo) -> None:
    answer = await post(zoo, "/v2/repository/models/talk/unload", b'{"parameters":{"unload_dependents":true}}')
    assert (answer.status, body_of(answer), answer.headers) == (200, b"", ())
    assert await names(zoo) == ["gate", "numbers", "talk"]
    assert await names(zoo, b'{"ready":true}') == ["gate", "numbers"]


async def test_load(zoo: Zoo) -> None:
    await post(zoo, "/v2/repository/models/talk/unload")
    answer = await post(zoo, "/v2/repository/models/talk/load")
    assert (answer.status, body_of(answer)) == (200, b"")
    assert await names(zoo, b'{"ready":true}') == ["gate", "numbers", "talk"]


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/v2/repository/index", b"{", 400, "failed to parse"),
        ("/v2/repository/index", b'{"ready":1}', 400, "'ready'"),
        ("/v2/repository/index", b" " * (MAX_BODY + 1), 413, "--max-body-size"),
        ("/v2/repository/models/talk/load", b'{"parameters":5}', 400, "'parameters'"),
        ("/v2/repository/models/talk/load", b'{"parameters":{"x":1}}', 400, "unrecognized load parameter 'x'"),
        ("/v2/repository/models/talk/unload", b'{"parameters":{"x":1}}', 400, "unrecognized unload parameter 'x'"),
        ("/v2/repository/models/a%2Fb/unload", b"", 404, "'a/b' is not found"),
        ("/v2/repository/models/nope/load", b"", 404, "failed to load 'nope'"),
        (f"{REGION}/register", b"", 400, "'key'"),
        (f"{REGION}/register", b'{"key":"geartrain-nope","byte_size":8}', 400, "(ENOENT)"),
    ],
)
async def test_refused(zoo: Zoo, path: str, body: bytes, status: int, text: str) -> None:
    answer = await post(zoo, path, body)
    assert (answer.status, text in json.loads(body_of(answer))["error"]) == (status, True)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/repository/models/talk/load", {"parameters": {"n" * 100_000: 1}}),
        (f"/v2/repository/models/{'n' * 100_000}/load", {}),
        (f"/v2/repository/models/{'n' * 100_000}/unload", {}),
        (f"/v2/systemsharedmemory/region/{'n' * 100_000}/register", {"key": "k" * 100_000, "byte_size": 8}),
        (f"/v2/systemsharedmemory/region/{'n' * 100_000}/register", {"key": "k", "byte_size": 0}),
    ],
)
async def test_errors_quote_little(zoo: Zoo, path: str, body: dict[str, Any]) -> None:
    answer = await post(zoo, path, json.dumps(body).encode())
    assert answer.status in {400, 404}
    assert len(body_of(answer)) < 400


async def test_regions(zoo: Zoo) -> None:
    async def status(path: str) -> Any:
        return json.loads(body_of(await ask(zoo.router, "GET", path)))

    with shared_object(64) as memory:
        body = json.dumps({"key": memory.name, "byte_size": 16, "offset": 8}).encode()
        answer = await post(zoo, f"{REGION}/register", body)
        assert (answer.status, body_of(answer)) == (200, b"")
        expected = [{"name": "a/b", "key": memory.name, "offset": 8, "byte_size": 16}]
        assert await status(f"{REGION}/status") == expected
        assert await status("/v2/systemsharedmemory/status") == expected
        assert (await post(zoo, f"{REGION}/register", body)).status == 400
        assert (await post(zoo, f"{REGION}/unregister")).status == 200
        assert await status("/v2/systemsharedmemory/status") == []
        await post(zoo, f"{REGION}/register", body)
        assert (await post(zoo, "/v2/systemsharedmemory/unregister")).status == 200
        assert await status("/v2/systemsharedmemory/status") == []


async def test_regions_where_they_are_off() -> None:
    zoo = Zoo(shared_memory=False)
    await zoo.open()
    for method, what in {"POST": "unregister", "GET": "status"}.items():
        answer = await ask(zoo.router, method, f"{REGION}/{what}")
        assert (answer.status, b"--shared-memory" in body_of(answer)) == (501, True)
    await zoo.close()
