"""The server of `geartrain mcp`: models for one client, over stdin and stdout."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Sequence

from geartrain.server.app import App, build
from geartrain.server.http import large_bodies
from geartrain.server.options import ServeOptions
from geartrain.transport.mcp.methods import Methods
from geartrain.transport.mcp.stdio import serve_streams


def serve_client(options: Sequence[ServeOptions], source: int, target: int) -> None:
    """Serve the models of all `options`, whose names differ, to the client of two file descriptors.

    `source` is read and `target` is written. Returns when the client closes a stream, or at SIGTERM or SIGINT.
    """
    apps = [build(each) for each in options]
    for app in apps:
        app.spawn()  # the workers start while uvloop is imported
    import uvloop

    uvloop.run(_serve(apps, source, target))


async def _serve(apps: Sequence[App], source: int, target: int) -> None:
    limit = max(app.options.max_body_bytes for app in apps)

    async def ready() -> None:
        await asyncio.gather(*(app.settled() for app in apps))

    with contextlib.closing(large_bodies(apps[0])) as bodies:
        async with _running(apps):
            methods = Methods([app.catalogue for app in apps], bodies)
            serving = asyncio.ensure_future(serve_streams(methods, source, target, ready=ready, max_line=limit))
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, serving.cancel)
            with contextlib.suppress(asyncio.CancelledError):
                await serving


@contextlib.asynccontextmanager
async def _running(apps: Sequence[App]) -> AsyncIterator[None]:
    """Start apps, and end them whatever happens."""
    try:
        for app in apps:
            await app.start()
        yield
    finally:
        for app in apps:
            app.cancel_all()
        await asyncio.gather(*(app.stop() for app in apps))
