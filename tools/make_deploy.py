"""Writes the files of `deploy/`, for Kubernetes, KServe, Seldon and clouds: what `geartrain deploy` prints.

It also writes the Dockerfile of the server, of the same recipe as the images of `geartrain build`.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from geartrain.cli.commands import app
from geartrain.platforms.image import Recipe, write_dockerfile

ROOT: Final = Path(__file__).parents[1]

_MODELS: Final = ("examples", "--name", "geartrain", "--image", "registry.example.com/my-model:1")
_KUBERNETES: Final = ("kubernetes", *_MODELS, "--replicas", "2", "--max-replicas", "8")
_DIGITS: Final = (
    "examples/digits",
    "--image",
    "registry.example.com/geartrain:1",
    "--storage-uri",
    "gs://bucket/digits",
)
_BATCH: Final = (
    *("kubernetes", "examples/digits", "--image", "registry.example.com/digits:1", "--max-replicas", "8"),
    *("--batch", "/data/digits.parquet", "--output", "/data/answers", "--data", "pvc://data", "--parts", "32"),
)
_IN_IMAGE: Final = ("examples/digits", "--image", "registry.example.com/digits:1")

COMMANDS: Final[Mapping[tuple[str, ...], tuple[str, ...]]] = {
    _KUBERNETES: ("kubernetes/deployment.yaml", "kubernetes/service.yaml", "kubernetes/autoscaler.yaml"),
    (*_KUBERNETES, "--autoscaler", "queue"): ("", "", "kubernetes/autoscaling/queue.yaml"),
    (*_KUBERNETES, "--autoscaler", "keda"): ("", "", "kubernetes/autoscaling/keda.yaml"),
    _BATCH: ("kubernetes/batch.yaml",),
    ("kserve", *_DIGITS): ("kserve/servingruntime.yaml", "kserve/inferenceservice.yaml"),
    ("kserve", *_DIGITS, "--cluster"): ("kserve/clusterservingruntime.yaml", ""),
    ("seldon", *_DIGITS): ("seldon/server.yaml", "seldon/model.yaml"),
    ("sagemaker", *_IN_IMAGE): ("sagemaker/endpoint.yaml",),
    ("vertex", *_IN_IMAGE): ("vertex/deploy.sh",),
    ("azure", *_IN_IMAGE): ("azure/deploy.sh",),
}
"""Arguments of `geartrain deploy`, and the file of each document; "" where another command has the same."""


def files(commands: Mapping[tuple[str, ...], tuple[str, ...]] = COMMANDS) -> dict[str, str]:
    """Return what belongs into each file of `deploy/`."""
    found = {}
    for words, names in commands.items():
        text = printed(*words).split("---\n")
        found.update({name: document for name, document in zip(names, text, strict=True) if name})
    return found


def printed(*words: str) -> str:
    """Return what `geartrain deploy` prints, when it runs in the root of the repository; raises SystemExit."""
    stdout = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(stdout):
        code = app(["deploy", *words], prog_name="geartrain", standalone_mode=False)
    if code:
        raise SystemExit(code)
    return stdout.getvalue()


def dockerfile() -> str:
    """Return the Dockerfile of the server."""
    sources = ("pyproject.toml", "README.md", "LICENSE", "constraints.txt")
    recipe = Recipe(
        python="3.12",
        comment=[
            "The server, without models: they are mounted at /models, or `geartrain build` makes an image of them.",
            "docs/deploy.md says more.",
        ],
        build_arguments=["EXTRAS="],
        build_copies=[
            *((name, f"/build/{name}") for name in sources),
            ("src/", "/build/src/"),
            ("examples/", "/build/examples/"),  # some are templates of `geartrain init`: src/ has links to them
        ],
        install=[["-c", "/build/constraints.txt", '"/build$EXTRAS"']],
    )
    return write_dockerfile(recipe)


def main() -> None:
    """Write the files."""
    (ROOT / "Dockerfile").write_text(dockerfile())
    for name, text in files().items():
        path = ROOT / "deploy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
