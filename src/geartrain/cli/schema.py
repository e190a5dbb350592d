"""`geartrain schema`: a model's OpenAPI document, without running its setup."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import typer

from geartrain.cli import fetching, logs, options
from geartrain.cli.failure import INTERRUPTED, fail, warn
from geartrain.cli.typer_app import CommandApp
from geartrain.project.source import ProjectError

if TYPE_CHECKING:
    from geartrain.domain.signature.types import Signature
    from geartrain.project.source import ModelSource

app = CommandApp(add_completion=False, pretty_exceptions_enable=False)


@app.command(examples=("geartrain schema shout > openapi.json",))
def schema(
    model: options.Model = None,
    *,
    no_pickle: options.NoPickle = False,
    cache_dir: options.CacheDir = None,
    verify_cache: options.VerifyCache = False,
) -> None:
    """Print the OpenAPI document of MODEL as JSON.

    The model is imported, or its file loaded; its setup does not run.
    """
    try:
        local = fetching.LocalModels(cache_dir, verify=verify_cache)
        source = local.find(model, no_pickle=no_pickle)
    except ProjectError as error:
        fail(error.message)
    for sentence in (*source.warnings, *source.remarks):
        warn(sentence)
    logs.configure(source.variables.log_level, source.variables.log_format)
    from geartrain import __version__
    from geartrain.apis.openapi import document
    from geartrain.service.workers.pool import ModelSetupError

    try:
        signature, training = asyncio.run(_read(source))
    except ModelSetupError as error:
        sys.stderr.write(error.logs)
        fail(error.reason)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    whole = document(signature, training=training, title=source.name, version=__version__)
    print(json.dumps(whole, indent=2, ensure_ascii=False))


async def _read(source: ModelSource) -> tuple[Signature, Signature | None]:
    from geartrain.server import ServeOptions, build

    app, training = build(ServeOptions(source=source)), source.training()
    return await app.inspect(), None if training is None else await app.inspect(training)
