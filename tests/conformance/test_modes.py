"""The mode of a run is the one that was asked for: `pytest --wire own|secured|asgi|stored`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import modes
from tests.support.servers import Serve, ServerProcess, write_model

MODEL = "def run(text: str = 'x') -> str:\n    return text\n"
STRANGERS = {"own": 200, "secured": 401, "asgi": 200, "stored": 200}  # what a client without a key is told


@pytest.fixture
def wire(request: pytest.FixtureRequest) -> str:
    name: str = request.config.getoption("--wire")
    return name


@pytest.fixture
def secured() -> Iterator[modes.Secured]:
    mode = modes.Secured()
    yield mode
    mode.close()


async def statuses(url: str) -> list[int]:
    """What clients are told: one like all in these tests, and one without a key."""
    mode = modes.current()
    async with httpx.AsyncClient(base_url=url, verify=mode.trust(url) or True) as client:
        return [(await client.get("/metrics", headers=headers)).status_code for headers in (mode.headers, {})]


async def test_server_in_this_process(serve: Serve, wire: str) -> None:
    async with serve(MODEL) as server:
        assert server.url.startswith("https:") == (wire == "secured")
        assert await statuses(server.url) == [200, STRANGERS[wire]]
        assert ("shutdown_url" in (await server.client.get("/")).json()) == (wire != "asgi")


async def test_server_of_its_own(server_process: Callable[..., ServerProcess], tmp_path: Path, wire: str) -> None:
    process = server_process(str(write_model(tmp_path / "model", MODEL)))
    url = process.wait_for("listening")["url"]
    assert url.startswith("https:") == (wire == "secured")
    assert await statuses(url) == [200, STRANGERS[wire]]


def test_key_is_in_every_request_that_is_written_by_hand(secured: modes.Secured) -> None:
    field = f"authorization: {secured.headers['authorization']}\r\n".encode()
    heads = [b"POST /a HTTP/1.1\r\n", b"host: t\r\ncontent-length: 2\r\n\r\n{}", b"GET / HTTP/1.0\r\n", b"\r\n"]
    assert secured.authorize(b"".join(heads)) == b"".join([heads[0], field, heads[1], heads[2], field, heads[3]])
