"""`geartrain dev`: a model over HTTP, for the person who writes it."""

from __future__ import annotations

import os
import sys
import threading
from typing import Annotated, Final

import typer

from geartrain.cli import debugging, logs, options, serving
from geartrain.cli.console import reachable
from geartrain.cli.serving import written_as
from geartrain.cli.typer_app import CommandApp
from geartrain.project.variables import DEFAULT_PORT
from geartrain.transport.access_log import AccessLogOptions
from geartrain.transport.grpc.options import GrpcOptions
from geartrain.transport.routing import is_loopback

app = CommandApp(add_completion=False, pretty_exceptions_enable=False)


@app.command(
    cls=debugging.BareProfileCommand,
    examples=("geartrain dev shout", "geartrain dev shout --port 0 --no-open"),
    daily=("--host", "--port", "--no-open", "--debugpy", "--profile", "--log-level"),
)
def dev(
    model: options.Target = None,
    *,
    host: options.Host = options.DEFAULT_HOST,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, envvar="PORT", metavar="PORT", help="The port to listen on; 0 for any free one."
        ),
    ] = DEFAULT_PORT,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the server's page in the browser.")] = False,
    no_pickle: options.NoPickle = False,
    debugpy: debugging.DebugpyPort = 0,
    debugpy_wait: debugging.DebugpyWait = False,
    profile: debugging.Profile = None,
    profile_format: debugging.Format = "speedscope",
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error. COG_LOG_LEVEL says the same.")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="json or console. LOG_FORMAT says the same.")
    ] = None,
    cache_dir: options.CacheDir = None,
    verify_cache: options.VerifyCache = False,
) -> None:
    """Serve MODEL while you write it.

    It is reloaded when its files change, and a breakpoint() in it asks at the terminal.

    Prints, tracebacks and requests are shown. The server's page is opened in the browser.
    """
    aids = debugging.Aids(debugpy, debugpy_wait, profile, profile_format)
    aids.check()
    found = serving.find(model, "predict", "all", names=serving.Names(), reload=True, no_pickle=no_pickle)
    observer, form = serving.observe(
        found,
        log_level,
        log_format,
        on_listening=lambda url: None if no_open else open_page(reachable(url)),
    )
    from geartrain.server import CacheOptions, ServeOptions  # after the checks: they take no time

    serve_options = ServeOptions(
        source=found.source,
        host=host,
        port=port,
        restarts=serving.restarts(),
        allow_private_urls=is_loopback(host),  # clients are on this machine
        mirror_prints="on",
        grpc=GrpcOptions(port=None),  # it takes gRPC on the port of HTTP
        access_log=written_as(AccessLogOptions(), form),
        load=found.to_load,
        reload=True,
        debugging=debugging.options_of(aids, observer),
        cache=CacheOptions(cache_dir, verify_cache),
    )
    raise typer.Exit(serving.run(serve_options, observer, model, mode="predict", no_pickle=no_pickle))


_DISPLAYS: Final = ("DISPLAY", "WAYLAND_DISPLAY")


def open_page(url: str) -> None:
    """Open a URL if there is a person at a terminal, and a display; returns at once."""
    if logs.is_terminal(sys.stderr) and _has_display() and url.startswith(("http://", "https://")):
        threading.Thread(target=_open, args=(url,), name="geartrain-browser", daemon=True).start()


def _has_display() -> bool:
    return sys.platform == "darwin" or any(os.environ.get(name) for name in _DISPLAYS)


def _open(url: str) -> None:
    import webbrowser  # it looks for browsers when it is imported

    webbrowser.open(url)
