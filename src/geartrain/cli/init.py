"""`geartrain init`: a first model to begin with."""

from __future__ import annotations

import pathlib
import shlex
from collections.abc import Iterable
from typing import Annotated, Final

import typer

from geartrain.cli.failure import fail

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_RUN: Final = '''\
"""A model: setup() runs once, run() for each prediction."""

from geartrain import BaseRunner, Input


class Runner(BaseRunner):
    def setup(self) -> None:
        # Load weights here. Predictions are served once this has returned.
        self.greeting = "Hello"

    # Each parameter is an input of the API, checked before run() is called. Its annotation says what it takes: str,
    # int, float, bool, list[...], dict, Literal["a", "b"], geartrain's Path for a file and its Secret for a password.
    def run(
        self,
        name: str = Input(description="Whom to greet", min_length=1),
        times: int = Input(description="How often", ge=1, le=10, default=1),
    ) -> str:
        # What is printed becomes the prediction's log.
        print(f"greeting {name}")
        # What is returned becomes its output: also a list, a dict, or a Path for a file. To send an output as it is
        # made, annotate Iterator[str] from collections.abc, and yield.
        return " ".join([f"{self.greeting}, {name}!"] * times)
'''
_CONFIG: Final = """\
# How geartrain runs this model.

# The file, and the class in it.
run: run.py:Runner

# How many predictions run at once. More than one needs `async def run(...)`.
# concurrency:
#   max: 4

# Environment variables of the model.
# environment:
#   - TOKENIZERS_PARALLELISM=false

# What the model needs. `geartrain doctor` compares it with what is installed.
# build:
#   python_version: "3.12"
#   python_packages:
#     - numpy>=2.1
"""
_FILES: Final = {"run.py": _RUN, "cog.yaml": _CONFIG}


@app.command()
def init(
    folder: Annotated[
        pathlib.Path, typer.Argument(metavar="DIR", help="Where to write it; made if it is not there.")
    ] = pathlib.Path(),
    *,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there already.")] = False,
) -> None:
    """Write a first model into DIR, by default the current folder.

    It is a run.py and a cog.yaml, which run as they are, with comments on what else they may hold.
    """
    paths = {name: folder / name for name in _FILES}
    present = [str(path) for path in paths.values() if path.exists()]
    if present and not force:
        are = "is" if len(present) == 1 else "are"
        fail(f"{' and '.join(present)} {are} there already; --force writes over {'it' if are == 'is' else 'them'}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, path in paths.items():
            path.write_text(_FILES[name], encoding="utf-8")
    except OSError as error:
        fail(f"cannot write {error.filename or folder}: {error.strerror}")
    _say_what_is_next(folder, paths.values())


def _say_what_is_next(folder: pathlib.Path, written: Iterable[pathlib.Path]) -> None:
    print(f"Wrote {' and '.join(map(str, written))}. Next:\n")
    target = "" if folder == pathlib.Path() else f" {shlex.quote(str(folder))}"
    steps = (
        (f"geartrain run{target} -i name=world", "one prediction, here"),
        (f"geartrain serve{target}", "over HTTP, on port 5000"),
        (f"geartrain doctor{target}", "what is wrong, if something is"),
    )
    width = max(len(command) for command, _ in steps)
    for command, what in steps:
        print(f"  {command:{width}}   {what}")
