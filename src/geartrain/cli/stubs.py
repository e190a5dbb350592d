"""`geartrain stubs`: typed handles of models, for the code of models that call them."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geartrain.cli import logs, options
from geartrain.cli.failure import FAILURE, INTERRUPTED, fail, warn
from geartrain.cli.typer_app import CommandApp
from geartrain.project.repository import find_repository
from geartrain.project.source import ModelSource, ProjectError, find_model

if TYPE_CHECKING:
    from geartrain.domain.signature.types import Signature

app = CommandApp(add_completion=False, pretty_exceptions_enable=False)


@app.command(examples=("geartrain stubs models -o handles.py", "geartrain stubs models -o handles.py --check"))
def stubs(
    models: options.Model = None,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the module to this file.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if the file differs from what would be written.")
    ] = False,
) -> None:
    """Print a Python module with typed handles of the models in the folder MODEL, or of one model.

    A model that calls others declares them with these classes, so that editors and type checkers know the inputs and
    outputs. The models are imported; their setup does not run.
    """
    if check and output is None:
        fail("--check needs the file, such as -o handles.py")
    logs.configure(default="warning")
    try:
        sources = _find(models)
        signatures = asyncio.run(_read(sources))
    except ProjectError as error:
        fail(error.message)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if not signatures:
        fail("no model here could be loaded")
    from geartrain.apis.stubs import render

    words = ["geartrain", "stubs", *([] if models is None else [models]), *(["-o", str(output)] if output else [])]
    text = render(sorted(signatures.items()), command=shlex.join(words))
    if output is None:
        sys.stdout.write(text)
    elif not check:
        output.write_text(text)
    elif not output.is_file() or output.read_text() != text:
        warn(f"{output} is not as the models are; `{shlex.join(words)}` makes it anew")
        raise typer.Exit(FAILURE)


def _find(target: str | None) -> Mapping[str, ModelSource]:
    """Return the models that are meant, by name: of several versions the one that is the default."""
    repository = find_repository(target)
    if repository is None:
        source = find_model(target)
        return {source.name: source}
    found: dict[str, ModelSource] = {}
    for name in repository.names():
        try:
            folder = repository.read(name)
        except ProjectError as error:
            warn(f"{name}: {error.message}")
            continue
        version = folder.versions.get(folder.default_version or next(reversed([*folder.versions]), ""))
        if isinstance(version, ModelSource):
            found[name] = version
        elif version is not None:
            warn(f"{name}: {version.message}")
    return found


async def _read(sources: Mapping[str, ModelSource]) -> dict[str, Signature]:
    """Return the signature of each model that can be loaded, and say of the others why not."""
    from geartrain.domain.signature.pipeline import PipelineError, make_plan
    from geartrain.server import ServeOptions, build
    from geartrain.service.workers.pool import ModelSetupError

    found: dict[str, Signature] = {}
    for name, source in sources.items():
        if source.pipeline is None:
            try:
                found[name] = await build(ServeOptions(source=source)).inspect()
            except ModelSetupError as error:
                warn(f"{name}: {error.reason}")
    left = {name: source.pipeline for name, source in sources.items() if source.pipeline is not None}
    while ready := {name: each for name, each in left.items() if found.keys() >= set(each.models)}:
        for name, pipeline in ready.items():
            del left[name]
            try:
                found[name] = make_plan(pipeline, [found[step.model] for step in pipeline.steps]).signature
            except PipelineError as error:
                warn(f"{name}: {error}")
    for name in left:
        warn(f"{name}: models of the pipeline are missing")
    return found
