"""The mode of a run is the one that was asked for by `pytest --wire`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import modes
from tests.support.servers import PATIENCE, Serve, ServerProcess, write_model

MODEL = "def run(text: str = 'x') -> str:\n    return text\n"
WHO = "import os\ndef run() -> int:\n    return os.getpid()\n"


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
        assert await statuses(server.url) == [200, 401 if wire == "secured" else 200]
        assert ("shutdown_url" in (await server.client.get("/")).json()) == (wire != "asgi")


async def test_server_of_its_own(server_process: Callable[..., ServerProcess], tmp_path: Path, wire: str) -> None:
    process = server_process(str(write_model(tmp_path / "model", MODEL)))
    url = process.wait_for("listening")["url"]
    assert url.startswith("https:") == (wire == "secured")
    assert await statuses(url) == [200, 401 if wire == "secured" else 200]


async def test_as_many_servers_as_the_mode_has(serve: Serve, wire: str) -> None:
    wanted = 3 if wire == "ray" else 1
    seen: set[int] = set()
    async with serve(WHO) as server, asyncio.timeout(PATIENCE):
        while len(seen) < wanted:
            seen.add((await server.predict())["output"])
        for _ in range(4 * wanted):
            seen.add((await server.predict())["output"])
    assert len(seen) == wanted


def test_key_is_in_every_request_that_is_written_by_hand(secured: modes.Secured) -> None:
    field = f"authorization: {secured.headers['authorization']}\r\n".encode()
    heads = [b"POST /a HTTP/1.1\r\n", b"host: t\r\ncontent-length: 2\r\n\r\n{}", b"GET / HTTP/1.0\r\n", b"\r\n"]
    assert secured.authorize(b"".join(heads)) == b"".join([heads[0], field, heads[1], heads[2], field, heads[3]])
