"""`geartrain build`: an image of a container with models, built by docker, podman or buildah."""

from __future__ import annotations

import pathlib
import re
import subprocess
import tempfile
from typing import Annotated, Final, Literal

import typer

from geartrain.cli.failure import FAILURE, fail, warn
from geartrain.cli.typer_app import CommandApp
from geartrain.platforms.image import build_command, find_builder, plan, write_context
from geartrain.project.errors import ProjectError
from geartrain.project.served import find_here

app = CommandApp(add_completion=False)

_TAG: Final = re.compile(r"[\w.:-]+(/[\w.-]+)*(:[\w.-]{1,128})?", re.ASCII)


@app.command(examples=("geartrain build shout -t registry.example.com/shout:1",))
def build(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model or a folder of models.")] = ".",
    *,
    tag: Annotated[
        str,
        typer.Option(
            "--tag", "-t", metavar="TAG", help="The name of the image, such as registry.example.com/digits:1."
        ),
    ] = "",
    builder: Annotated[
        Literal["docker", "podman", "buildah"] | None,
        typer.Option(help="What builds it; by default the first of them that is there.", show_default=False),
    ] = None,
    build_arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Passed on: BASE is the image to begin with, BUILD_PACKAGES what Debian has for compiling; may be "
            "repeated.",
        ),
    ] = None,
    pip_config: Annotated[
        pathlib.Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="A pip.conf for the build; it does not get into the image.",
        ),
    ] = None,
    context: Annotated[
        pathlib.Path | None,
        typer.Option(
            metavar="FOLDER", help="Write what the image is built of into this new folder, and build nothing."
        ),
    ] = None,
) -> None:
    """Build an image of MODEL, with the geartrain that runs this command.

    The section `build` of cog.yaml says what the image needs beside the model: python_version, system_packages,
    python_requirements, python_packages, run and gpu.
    """
    try:
        wanted = plan(find_here(model), model)
        if wanted.passed_over:
            warn(
                f"passed over of cog.yaml: {', '.join(wanted.passed_over)}; write what has to be done below `build.run`"
            )
        if context is not None:
            if context.exists() and any(context.iterdir()):
                fail(f"--context: {context} is not empty")
            write_context(wanted, context)
            return
        if not _TAG.fullmatch(tag):
            fail("--tag is missing, or is no name of an image; write for example -t registry.example.com/digits:1")
        chosen = find_builder(builder)
        with tempfile.TemporaryDirectory(prefix="geartrain-build-") as temporary:
            folder = pathlib.Path(temporary) / "context"
            write_context(wanted, folder)
            command = build_command(chosen, folder, tag, build_args=build_arg or [], pip_config=pip_config)
            code = subprocess.run(command, check=False).returncode  # noqa: S603 - the operator's own program
    except ProjectError as error:
        fail(error.message)
    raise typer.Exit(FAILURE if code else 0)
