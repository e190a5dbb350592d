"""`geartrain init`: a first model to begin with."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import shlex
import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

import typer

from geartrain.cli.failure import fail

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Template(StrEnum):
    """The models to begin with: folders beside this file."""

    text = "text"
    image = "image"
    stream = "stream"
    batch = "batch"
    tensor = "tensor"
    train = "train"


class _About(NamedTuple):
    what: str
    inputs: str  # of `geartrain run`
    needs: tuple[str, str] | None = None  # a module, and the package that has it


_TEMPLATES: Final = {
    Template.text: _About("text in, text out", "-i name=world"),
    Template.image: _About("a picture in, a picture out", "-i image=@picture.png", ("PIL", "pillow")),
    Template.stream: _About("text that comes word by word", "-i prompt='one two three'"),
    Template.batch: _About("many requests in one call", "-i text='how many words'"),
    Template.tensor: _About("arrays in, arrays out", "-i 'features=[[1, 0, 0]]'"),
    Template.train: _About("a model that is trained, and its training", "-i x=2"),
}
_FOLDER: Final = pathlib.Path(__file__).parent / "templates"
_TEST: Final = "test_model.py"
_README: Final = "README.md"


@app.command()
def init(
    folder: Annotated[
        pathlib.Path, typer.Argument(metavar="DIR", help="Where to write it; made if it is not there.")
    ] = pathlib.Path(),
    *,
    template: Annotated[
        Template | None,
        typer.Option("--template", "-t", help="Which model; asked for on a terminal, and otherwise text."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there already.")] = False,
) -> None:
    """Write a first model into DIR, by default the current folder.

    It is a run.py, a cog.yaml, a test and a README.md, which work as they are.
    """
    if template is None:
        template = _asked() if sys.stdin.isatty() and sys.stdout.isatty() else Template.text
    files = _files(template, folder)
    present = [str(folder / name) for name in files if (folder / name).exists()]
    if present and not force:
        are = "is" if len(present) == 1 else "are"
        fail(f"{_listed(present)} {are} there already; --force writes over {'it' if are == 'is' else 'them'}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"cannot write {error.filename or folder}: {error.strerror}")
    _say_what_is_next(folder, _TEMPLATES[template], [str(folder / name) for name in files])


def _asked() -> Template:
    for each, about in _TEMPLATES.items():
        print(f"  {each:7} {about.what}")
    return Template(typer.prompt("Template", default="text", type=Template))


def _files(template: Template, folder: pathlib.Path) -> dict[str, str]:
    """Return the texts of a template by the names of their files; a README that is there stays.

    A test is called like its folder: pytest takes no two tests of one name from folders that are no packages.
    """
    name = folder.resolve().name or "model"
    test = f"test_{re.sub(r'[^a-z0-9]+', '_', name.lower()).strip('_') or 'model'}.py"
    files = {}
    for path in sorted((_FOLDER / template).iterdir(), key=lambda path: (path.suffix != ".py", path.name)):
        if path.is_file():
            text = path.read_text(encoding="utf-8").replace("{{name}}", name)
            files[test if path.name == _TEST else path.name] = text
    if (folder / _README).exists():
        del files[_README]
    return files


def _say_what_is_next(folder: pathlib.Path, about: _About, written: Iterable[str]) -> None:
    print(f"Wrote {_listed(written)}. Next:\n")
    target = "" if folder == pathlib.Path() else f" {shlex.quote(str(folder))}"
    steps = [
        (f"geartrain run{target} {about.inputs}", "one prediction, here"),
        (f"geartrain serve{target}", "over HTTP, on port 5000"),
        (f"pytest{target}", "its tests"),
        (f"geartrain doctor{target}", "what is wrong, if something is"),
    ]
    if about.needs is not None and importlib.util.find_spec(about.needs[0]) is None:
        steps.insert(0, (f"{shlex.quote(sys.executable)} -m pip install {about.needs[1]}", "what the model needs"))
    width = max(len(command) for command, _ in steps)
    for command, what in steps:
        print(f"  {command:{width}}   {what}")


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
