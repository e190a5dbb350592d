"""`geartrain mcp`: models as tools of a program that speaks the Model Context Protocol over stdin and stdout."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from geartrain.cli import logs, options, serving
from geartrain.cli.completion import complete_model
from geartrain.cli.failure import fail
from geartrain.cli.typer_app import CommandApp
from geartrain.project.repository import Repository
from geartrain.project.served import find_served

if TYPE_CHECKING:
    from collections.abc import Sequence

    from geartrain.cli.serving import Found

app = CommandApp(add_completion=False, pretty_exceptions_enable=False)


@app.command(
    examples=(
        "geartrain mcp shout",
        "geartrain mcp shout digits          each model is a tool",
        "geartrain mcp models                every model of a folder",
    ),
)
def mcp(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=complete_model,
            metavar="MODEL",
            help="Models, or folders of them. By default the current folder.",
        ),
    ] = None,
    *,
    run_timeout: options.RunTimeout = 0.0,
    max_output_size: options.MaxOutputSize = options.DEFAULT_MAX_OUTPUT,
    setup_timeout: options.SetupTimeout = None,
    allow_private_urls: options.AllowPrivateUrls = False,
    no_pickle: options.NoPickle = False,
    cache_dir: options.CacheDir = None,
    verify_cache: options.VerifyCache = False,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error. COG_LOG_LEVEL says the same.")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="json or console. LOG_FORMAT says the same.")
    ] = None,
) -> None:
    """Serve MODEL to an MCP client over stdin and stdout.

    Each model is a tool. The client starts this command; logs go to stderr. A server has the same at /mcp over HTTP.
    """
    targets: list[str | None] = list(models) if models else [None]
    found = [
        serving.find(each, "predict", "all", names=serving.Names(), reload=False, no_pickle=no_pickle)
        for each in targets
    ]
    _check_names(found)
    logs.configure(log_level or found[0].variables.log_level, log_format or found[0].variables.log_format)
    for sentence in (sentence for each in found for sentence in each.warnings):
        serving.logger.warning(sentence)
    # The client reads stdout: whatever else is printed goes to stderr.
    sys.stdout.flush()
    target = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    from geartrain.server import CacheOptions, ProgressLog, ServeOptions  # after the checks: they take time
    from geartrain.server.mcp import serve_client
    from geartrain.service.models.deployment import Limits

    progress = ProgressLog()
    limits = Limits(stream_grace=0.0, run_timeout=run_timeout or None, max_output_size=max_output_size or None)
    serve_client(
        [
            ServeOptions(
                source=each.source,
                target=name,
                find_again=functools.partial(find_served, mode="predict", no_pickle=no_pickle, is_fetched=True),
                setup_timeout=setup_timeout,
                limits=limits,
                restarts=serving.restarts(),
                allow_private_urls=allow_private_urls,
                cache=CacheOptions(cache_dir, verify_cache),
                on_progress=progress,
            )
            for name, each in zip(targets, found, strict=True)
        ],
        sys.stdin.fileno(),
        target,
    )


def _check_names(found: Sequence[Found]) -> None:
    """End the command if two models have the same name."""
    seen: set[str] = set()
    for each in found:
        names = each.source.names() if isinstance(each.source, Repository) else [each.source.name]
        for name in names:
            if name in seen:
                fail(f"two models are called {name!r}: the name of a model is that of its tool")
            seen.add(name)
