"""What each page of the documentation needs so that its commands can be carried out: models, files, servers.

A page says itself what it can; what is here is what a reader has at hand: the models that it speaks of.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.docs.terminal import Terminal
from tests.support.pages import ROOT, sources
from tests.support.servers import write_model


@dataclass(frozen=True)
class Script:
    """A block of Python that is run as it is, with what comes before it in the reader's own program."""

    before: str = ""


@dataclass(frozen=True)
class Shown:
    """A block of Python that shows the end of this file, or all of it."""

    path: str


RUN: Final = Script()


@dataclass(frozen=True)
class Play:
    """How a page is carried out.

    Attributes:
        prepare: writes files into the folder, and starts what the page takes for granted.
        python: for blocks of Python, by their number on the page: the file that the block is written to, or what else
            is done with it.
        files: the files that blocks of other languages are written to, by language and number.
        before: what a page leaves out, commands by the beginning of the command or block that needs them.
        meanwhile: commands that others give while a server runs, by the beginning of its command.
        afterwards: commands that have to succeed when the page is over, such as with models that it only shows.
    """

    prepare: Callable[[Terminal], None] = lambda _: None
    python: Mapping[int, str | Script | Shown] = field(default_factory=dict)
    files: Mapping[tuple[str, int], str] = field(default_factory=dict)
    before: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    meanwhile: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    afterwards: tuple[str, ...] = ()


def examples(terminal: Terminal) -> None:
    """Have the examples, as in a clone of the repository."""
    shutil.copytree(ROOT / "examples", terminal.folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))


def files(terminal: Terminal) -> None:
    """Have a server of others, which has a picture and takes what is sent, and thumbnails made of its pictures."""
    examples(terminal)
    for name in ("three", "seven"):
        shutil.copy(ROOT / f"examples/digits/{name}.png", terminal.folder)
    terminal.be_web_server(8098)
    terminal.be_web_server(8099)
    terminal.do("geartrain serve examples/thumbnails --port 5077 --allow-private-urls")


def hooks(terminal: Terminal) -> None:
    examples(terminal)
    terminal.be_web_server(8099)


def shouting(folder: Path, mark: str = "", **options: str) -> Path:
    head = "from geartrain import concurrent\n\n\n@concurrent(max=2)\nasync " if "slots" in options else ""
    return write_model(folder, f"{head}def run(text: str) -> str:\n    return text.upper() + {mark!r}\n")


def shouting_twice(terminal: Terminal) -> None:
    """Have a model with two versions."""
    for version in ("1", "2"):
        shouting(terminal.folder / "models/shout" / version, "!" * int(version), slots="2")


def repository(terminal: Terminal) -> None:
    shouting_twice(terminal)
    shouting(terminal.folder / "models/hello")
    broken = 'raise FileNotFoundError("weights.bin")\n\n    def run(self) -> str:\n        return ""\n'
    write_model(terminal.folder / "models/broken", f"class Runner:\n    def setup(self) -> None:\n        {broken}")


def metrics(terminal: Terminal) -> None:
    shouting(terminal.folder / "models/shout/2")
    terminal.do("geartrain serve models")
    terminal.do('curl -s localhost:5000/models/shout/predictions --json \'{"input": {"text": "hi"}}\'')


def client(terminal: Terminal) -> None:
    examples(terminal)
    shutil.copy(ROOT / "examples/digits/three.png", terminal.folder)


def platforms(terminal: Terminal) -> None:
    examples(terminal)
    repository(terminal)


def logs(terminal: Terminal) -> None:
    shouting(terminal.folder / "shout")
    terminal.do("geartrain serve shout")


def backend(terminal: Terminal) -> None:
    """Have the package of the backend installed."""
    info = terminal.folder / "linear_models-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: linear-models\nVersion: 1.0\n")
    points = tomllib.loads(sources("docs/backends.md", "toml")[0])["project"]["entry-points"]
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in names.items())
            for group, names in points.items()
        )
    )


def command_line(terminal: Terminal) -> None:
    examples(terminal)
    write_model(
        terminal.folder / "marks",
        """
        import tempfile
        from pathlib import Path as File

        from geartrain import Path


        def run(names: list[str], colors: dict[str, str] = {}) -> list[Path]:
            made = []
            for name in names:
                print("drew", name)
                made.append(Path(tempfile.mkdtemp(), f"{name}.svg"))
                File(made[-1]).write_text(f"<svg fill='{colors.get(name, 'black')}'/>")
            return made
        """,
    )
    (terminal.folder / "fail.py").write_text(
        'def run(number: int) -> float:\n    print("dividing")\n    return 1 / number\n'
    )


def model_files(terminal: Terminal) -> None:
    """Have the files that the page has made before it shows how."""
    examples(terminal)
    made = textwrap.dedent("""
        import catboost, joblib, lightgbm, xgboost
        from sklearn.datasets import load_iris
        X, y = load_iris(return_X_y=True)
        names = load_iris().target_names[y]
    """)
    python = sources("docs/models.md", "python")
    program = [sys.executable, "-c", made + "".join(python[:4])]
    subprocess.run(program, check=True, cwd=terminal.folder, capture_output=True)
    folder = terminal.folder / "flowers"
    folder.mkdir()
    for name in ("iris.joblib", "notes.joblib"):
        shutil.copy(terminal.folder / "iris.joblib", folder / name)
    (terminal.folder / "model.plan").touch()


def pipelines(terminal: Terminal) -> None:
    """Lay the examples, and models that another one calls, into the folder."""
    examples(terminal)
    inputs = {"detector": "image: Path", "reader": "image: Path, areas: list[int]"}
    for name, given in inputs.items():
        code = f"from geartrain import Path\ndef run({given}) -> list[int]:\n    return []\n"
        write_model(terminal.folder / "models" / name, code)


_CONTEXT: Final = "import geartrain\nfrom geartrain import BaseRunner, Path\n"
_IN_A_RUN: Final = _CONTEXT + "geartrain.current_scope = lambda: geartrain.Scope()\n"

PLAYS: Final[Mapping[str, Play]] = {
    "docs/asgi.md": Play(
        prepare=repository,
        python={
            0: RUN,
            1: Script(
                "import contextlib\nfrom collections.abc import AsyncIterator\nfrom fastapi import FastAPI\n"
                'import geartrain\nmodels = geartrain.asgi("models")\n'
            ),
        },
    ),
    "docs/backends.md": Play(prepare=backend, python={0: "linear_models.py"}),
    "docs/openai.md": Play(
        python={
            0: "writer/run.py",
            1: RUN,
            2: "talker/run.py",
            3: "viewer/run.py",
            4: RUN,
            6: "tones/run.py",
            7: "painter/run.py",
            8: "judge/run.py",
            9: RUN,
        },
        afterwards=(
            "geartrain doctor talker",
            "geartrain run tones -i text=hello",
            "geartrain run painter -i prompt=hello",
            """geartrain run judge -i texts='["a fight"]'""",
        ),
    ),
    "docs/anthropic.md": Play(python={0: "thinker/run.py", 1: RUN, 2: RUN}),
    "docs/mcp.md": Play(python={0: "shout/run.py", 1: RUN, 2: "draw/run.py", 3: RUN}),
    "docs/data-sets.md": Play(python={0: "shout/run.py", 1: RUN}),
    "docs/client.md": Play(
        prepare=client,
        python={
            0: RUN,
            1: RUN,
            2: RUN,
            3: Script('from geartrain import Client\nclient = Client("http://127.0.0.1:5000")\n'),
            5: Script('from geartrain import Client\nclient = Client("http://127.0.0.1:5000")\n'),
        },
        before={
            "from geartrain import Client": ("geartrain serve examples/hello",),
            "from dataclasses": ("geartrain serve examples/digits",),
            "with client.stream": ("geartrain init story -t stream", "geartrain serve story"),
            "import numpy": ("geartrain serve examples/onnx/digits.onnx",),
            "geartrain call": ("geartrain serve examples/hello",),
        },
    ),
    "docs/cog-compatibility.md": Play(
        python={0: "colors/predict.py"}, afterwards=('geartrain run colors -i \'background={"color": "red"}\'',)
    ),
    "docs/command-line.md": Play(prepare=command_line),
    "docs/deploy.md": Play(prepare=platforms),
    "docs/development.md": Play(
        python={0: "shout/run.py"},
        before={
            "geartrain run shout -i text=hello\n>": (r"sed -i 's/^\( *\)mark = .*/&\n\1breakpoint()/' shout/run.py",),
            "geartrain run shout -i text=hello --profile": ("sed -i /breakpoint/d shout/run.py",),
        },
        meanwhile={
            "geartrain dev shout": (
                'curl -s localhost:5000/predictions --json \'{"input": {"text": "hello"}}\'',
                'curl -s localhost:5000/predictions --json \'{"input": {"text": "hello", "mood": "sad"}}\'',
                "touch shout/run.py",
            )
        },
    ),
    "docs/files.md": Play(prepare=files, python={0: Shown("examples/thumbnails/run.py")}),
    "docs/logs.md": Play(
        prepare=logs,
        python={0: Script(_IN_A_RUN)},
    ),
    "docs/metrics.md": Play(
        prepare=metrics,
        python={0: "story/run.py"},
        before={
            "curl -s localhost:5000/metrics | grep -e ^tokens": (
                "geartrain serve story",
                'curl -s localhost:5000/predictions --json \'{"input": {"text": "one two three"}}\'',
            )
        },
    ),
    "docs/models-repository.md": Play(
        prepare=repository,
        python={0: "devices/run.py"},
        before={
            "curl -s localhost:5000/models/shout/health-check": ("geartrain serve models --replicas 2 --load shout",)
        },
    ),
    "docs/requests.md": Play(python={0: RUN, 1: RUN, 2: RUN}),
    "docs/pipelines.md": Play(
        prepare=pipelines,
        python={
            0: "models/read/run.py",
            1: Script("import sys\nimport geartrain\nsys.path.insert(0, 'models/read')\n"),
            2: Script("import sys\nsys.path.insert(0, 'models/read')\nfrom run import Runner\n"),
        },
        files={("yaml", 0): "models/signs/geartrain.yaml"},
    ),
    "docs/models.md": Play(
        prepare=model_files,
        python={0: "iris.py", 1: "xgboost_iris.py", 2: "lightgbm_iris.py", 3: "catboost_iris.py"},
        before={
            "geartrain run flowers --json": (
                "rm flowers/notes.joblib",
                "echo 'parameters: {outputs: [predict, predict_proba]}' > flowers/geartrain.yaml",
            )
        },
    ),
    "docs/open-inference.md": Play(
        prepare=examples,
        python={
            0: "models/distance/run.py",
            1: RUN,
            2: "models/talk/run.py",
            3: RUN,
            4: RUN,
            5: RUN,
        },
        before={
            "curl -s localhost:5000/v2/models/distance": ("geartrain serve models",),
            "PICTURE=": ("geartrain serve examples/digits",),
        },
    ),
    "docs/playground.md": Play(prepare=examples),
    "docs/predictions.md": Play(
        prepare=examples,
        python={0: Shown("examples/slow_counter/run.py")},
        before={
            "sleep 1.2; curl -si -X POST http://127.0.0.1:5077/predictions/c1/cancel": (
                "until curl -s http://127.0.0.1:5077/predictions/c1 | grep -q counting; do sleep 0.05; done",
            )
        },
    ),
    "docs/security.md": Play(),
    "docs/store.md": Play(
        prepare=examples,
        before={
            "curl -s 'http://127.0.0.1:5000/predictions?status": (
                "geartrain serve examples/slow_counter --store sqlite:///predictions.db",
                "curl -s -X PUT localhost:5000/predictions/c1 -H 'Prefer: respond-async' --json '{\"input\": {}}'",
                "until curl -s localhost:5000/predictions/c1 | grep -q counting; do sleep 0.05; done",
                "curl -s -X POST localhost:5000/predictions/c1/cancel",
            )
        },
    ),
    "docs/tensors.md": Play(python={0: "doc/run.py", 1: Script(_IN_A_RUN)}, before={"curl": ("geartrain serve doc",)}),
    "docs/tracing.md": Play(prepare=examples, python={0: Script(_CONTEXT)}),
    "docs/training.md": Play(
        prepare=examples,
        python={0: Shown("examples/centroid/train.py")},
        before={
            "curl -si http://127.0.0.1:5077/trainings": (
                "until curl -s http://127.0.0.1:5077/trainings/t1 | grep -q completed_at; do sleep 0.05; done",
            )
        },
    ),
    "docs/tutorial.md": Play(
        prepare=client,
        python={0: "sketch/run.py", 1: "sketch/test_sketch.py", 2: "watch.py"},
        files={("text", 0): "sketch/requirements.txt"},
        before={
            "geartrain run sketch -i image=@three.png -i width=24\ndrawing 12 lines\n>": (
                r"sed -i 's/^\( *\)yield line/\1breakpoint()\n&/' sketch/run.py",
            ),
            "geartrain dev sketch": ("sed -i /breakpoint/d sketch/run.py",),
        },
    ),
    "docs/webhooks.md": Play(prepare=hooks),
}
