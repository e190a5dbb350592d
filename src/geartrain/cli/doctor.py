"""`geartrain doctor`: what is wrong with a model, or with this machine, and what to do about it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from geartrain.cli import fetching, logs, machine, options
from geartrain.cli.failure import FAILURE, INTERRUPTED
from geartrain.cli.typer_app import CommandApp
from geartrain.cli.wire import DEFAULT_HOST
from geartrain.project.code_check import check_code
from geartrain.project.config_check import check_config
from geartrain.project.findings import Finding, Level, error, ok, warning
from geartrain.project.packages_check import check_packages, check_python, install
from geartrain.project.precheck import precheck
from geartrain.project.source import ModelSource, ProjectError, model_folder
from geartrain.project.variables import resolve

if TYPE_CHECKING:
    from geartrain.domain.signature.types import Signature

app = CommandApp(add_completion=False, pretty_exceptions_enable=False)

_MARKS: Final[dict[Level, tuple[str, str, str]]] = {  # the mark, in ASCII, and its colour
    "ok": ("✓", "ok", "green"),
    "warning": ("!", "!", "yellow"),
    "error": ("✗", "x", "red"),
}
_NO_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_NO_LIBRARY: Final = re.compile(r"(.* is not installed); install it with: (.*)", re.DOTALL)  # of a model file
_HINT: Final = re.compile(r" \(is it installed in .*\)$")
_PACKAGES: Final = {  # of modules that are called otherwise
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dotenv": "python-dotenv",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


@app.command()
def doctor(
    model: options.Model = None,
    *,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, metavar="PORT", show_default=False, help="The port that has to be free; 5000 by default."
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the variables that have their defaults too.")
    ] = False,
    cache_dir: fetching.CacheDir = None,
    verify_cache: fetching.VerifyCache = False,
) -> None:
    """Check MODEL and this machine, and say what to do about what is wrong.

    The model is imported; its setup does not run.

    Exit code: 1 when something is wrong that the model cannot run with.
    """
    logs.configure(default="warning")
    counts: dict[Level, int] = {"ok": 0, "warning": 0, "error": 0}
    try:
        for finding in _findings(model, port, fetching.LocalModels(cache_dir, verify=verify_cache), verbose=verbose):
            counts[finding.level] += 1
            _show(finding)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    _echo(_sum(counts))
    raise typer.Exit(FAILURE if counts["error"] else 0)


def _findings(
    named: str | None, port: int | None, local: fetching.LocalModels, *, verbose: bool = False
) -> Iterator[Finding]:
    source: ModelSource | ProjectError
    try:
        target = local.target(named)
        root, _ = model_folder(target)
    except ProjectError as fault:
        yield error(fault.message)
        source = fault
    else:
        config = check_config(root)
        yield from config
        try:
            source = local.find(target)
        except ProjectError as fault:
            if all(finding.level != "error" for finding in config):
                yield error(fault.message.replace(f"{root}/", ""))
            source = fault
        yield from _about_model(source)
        yield check_python(root)
        yield from check_packages(root)
    variables = resolve(os.environ)[0]
    if isinstance(source, ModelSource):
        variables = source.variables
        yield from map(ok, variables.describe(defaults=verbose))
    yield from machine.check_interpreter(machine.build_variables())
    yield machine.check_temporary_folder(os.environ)
    yield machine.check_port(port, variables.port, os.environ.get("HOST") or DEFAULT_HOST)


def _about_model(source: ModelSource | ProjectError) -> Iterator[Finding]:
    if isinstance(source, ProjectError):
        yield from machine.check_variables(os.environ, {})
        return
    yield from map(warning, (*source.warnings, *source.remarks))
    yield from machine.check_variables(os.environ, source.environment)
    yield from check_code(source)
    yield _load(source)
    training = source.training()
    if training is not None:
        yield _load(training)


def _load(source: ModelSource) -> Finding:
    """Import the model in a worker, as `geartrain serve` would."""
    try:
        precheck(source)
    except ProjectError as fault:
        return error(fault.message)
    from geartrain.server import ServeOptions, build  # late: it imports the worker's side
    from geartrain.service.models.replicas import ModelSetupError

    with _busy(f"Loading {source.runner}"):
        try:
            signature = asyncio.run(build(ServeOptions(source=source)).inspect())
        except ModelSetupError as fault:
            return _not_loaded(fault.reason, fault.logs)
    return ok(f"{source.runner}: loads; {_summary(signature)}")


def _not_loaded(reason: str, printed: str) -> Finding:
    sys.stderr.write(printed)
    sys.stderr.flush()
    library = _NO_LIBRARY.fullmatch(reason)
    if library is not None:
        return error(library[1], library[2])
    module = _NO_MODULE.search(reason)
    if module is None:
        return error(reason)
    name = module[1].partition(".")[0]
    return error(_HINT.sub("", reason), f"if it is a package: {install(_PACKAGES.get(name, name))}")


def _summary(signature: Signature) -> str:
    names = [f"{field.name}: {field.type.kind}" for field in signature.inputs]
    mode = {"value": "", "iterator": "iterator of ", "concatenate": "streamed "}[signature.output.mode]
    return f"it takes {', '.join(names) or 'nothing'} and gives {mode}{signature.output.type.kind}"


@contextlib.contextmanager
def _busy(step: str) -> Iterator[None]:
    """Show a person that it takes time."""
    if not logs.is_terminal(sys.stderr):
        yield
        return
    from rich.console import Console

    from geartrain.cli.activity import Activity

    activity = Activity(Console(stderr=True, highlight=False), step)
    try:
        yield
    finally:
        activity.end()


def _show(finding: Finding) -> None:
    mark, plain, colour = _MARKS[finding.level]
    arrow = "→"
    if not _can_write(mark + arrow):
        mark, arrow = plain, "->"
    _echo(f"{typer.style(mark, fg=colour, bold=True)} {finding.text}")
    if finding.fix:
        _echo(f"  {typer.style(arrow, fg='cyan')} {finding.fix}")


def _can_write(text: str) -> bool:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _sum(counts: dict[Level, int]) -> str:
    parts = [
        f"{count} {noun}{'' if count == 1 else 's'}"
        for count, noun in ((counts["error"], "error"), (counts["warning"], "warning"))
        if count
    ]
    return f"{', '.join(parts)}." if parts else "All is well."


def _echo(text: str) -> None:
    typer.echo(text, color=False if os.environ.get("NO_COLOR") else None)
