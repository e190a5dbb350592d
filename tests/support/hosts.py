"""Servers of others, in the test's own process, that run an ASGI application on a loopback port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import hypercorn.asyncio
import uvicorn

NAMES = ("uvicorn", "hypercorn")

_END = 20.0  # seconds


class _Uvicorn(uvicorn.Server):
    """Leaves the signals to the test."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def hosted(name: str, app: Any) -> AsyncIterator[str]:
    """Run an application under the server of that name; gives its URL. Its lifespan ends with the block."""
    # Only with this protocol asyncio turns Nagle's algorithm off; heads and bodies are written one after the other.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    over = asyncio.Event()
    serving = asyncio.ensure_future(_HOSTS[name](app, listener, over))
    try:
        yield url
    finally:
        over.set()
        async with asyncio.timeout(_END):
            await serving
        listener.close()


async def _uvicorn(app: Any, listener: socket.socket, over: asyncio.Event) -> None:
    server = _Uvicorn(
        uvicorn.Config(app, ws="none", lifespan="on", log_config=None, access_log=False, server_header=False)
    )
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    await over.wait()
    server.should_exit = True
    await serving


async def _hypercorn(app: Any, listener: socket.socket, over: asyncio.Event) -> None:
    config = hypercorn.Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.errorlog = None
    await hypercorn.asyncio.serve(app, config, shutdown_trigger=over.wait)


_HOSTS = {"uvicorn": _uvicorn, "hypercorn": _hypercorn}
