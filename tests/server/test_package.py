"""What is built is complete, and runs in an environment of its own: the commands of README one after another."""

from __future__ import annotations

import dataclasses
import email
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = ("pyproject.toml", "README.md", "LICENSE", "src")  # what a build of the wheel reads
TEMPORARY: Final = ("completed_at", "created_at", "id", "metrics", "started_at")
# Already there for a test.
ENVIRONMENT: Final = ("python3 -m venv .venv", ". .venv/bin/activate")
PATIENCE: Final = 120.0  # seconds; the installation takes some of them even where nothing else runs


@dataclasses.dataclass
class Clone:
    """The sources in a folder, and beside them a folder to work in, and an environment without geartrain.

    The environment has what geartrain needs.
    """

    folder: Path  # to work in
    environ: dict[str, str]
    address: str = "localhost:5000"  # of the server that has been started

    def prepare(self, command: str) -> bool:
        """Make the folders beside the clone; return True for a command of the set-up, which is done then."""
        if command.startswith("mkdir"):
            subprocess.run(["sh", "-c", command], check=True, cwd=self.folder.parent)
            return True
        return command in ENVIRONMENT

    def run(self, command: str) -> tuple[int, str]:
        """Run a line as a shell does; return its exit code, and what it prints."""
        done = subprocess.run(
            ["bash", "-c", command.replace("localhost:5000", self.address)],
            check=False,
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
        )
        return done.returncode, done.stdout

    def serve(self, command: str) -> subprocess.Popen[str]:
        """Start a server, and wait until its model is ready."""
        process = subprocess.Popen(
            command.split(),
            cwd=self.folder,
            env={**self.environ, "LOG_FORMAT": "json", "PORT": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        said = {}
        for line in map(json.loads, process.stderr):
            said[line["message"]] = line
            if {"listening", "ready"} <= said.keys():  # either may come first
                self.address = said["listening"]["url"].removeprefix("http://")
                return process
        pytest.fail("the server ended before its model was ready")


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    folder, environment, work = tmp_path / "geartrain", tmp_path / "environment", tmp_path / "models"
    folder.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder)
    venv.create(environment, symlinks=True)
    packages = next(environment.glob("lib/python3*/site-packages"))
    # Everything else is there already. geartrain is not: of a folder on the path, nobody reads the `.pth` files.
    (packages / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    pip = environment / "bin/pip"
    pip.write_text('#!/bin/sh\nexec python -m pip "$@"\n')
    pip.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    path = os.pathsep.join((str(environment / "bin"), os.environ["PATH"]))
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return Clone(work, {**kept, **offline, "PATH": path, "PIP_QUIET": "1"})


def fences(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the language of each block of code, what is in it, and the line above it."""
    for found in re.finditer(r"([^\n]*)\n\n```(\w+)\n(.*?)```", text, re.DOTALL):
        yield found[2], found[3], found[1]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_commands_of_readme_one_after_another(clone: Clone) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    servers: list[subprocess.Popen[str]] = []
    printed, compared = "", 0
    try:
        for language, block, above in fences((ROOT / "README.md").read_text(encoding="utf-8")):
            if language == "python":
                path = clone.folder / re.findall(r"`([\w/]+\.py)`", above)[-1]
                path.write_text(block.replace("localhost:5000", clone.address))
            elif language == "sh":
                for command in block.splitlines():
                    if clone.prepare(command):
                        continue
                    if command.startswith("geartrain serve"):
                        servers.append(clone.serve(command))
                    else:
                        code, printed = clone.run(command)
                        assert (code == 0) == (not printed.startswith("error")), printed
            else:
                assert comparable(printed) == comparable(block)
                compared += 1
    finally:
        for server in servers:
            server.send_signal(signal.SIGINT)
        for server in servers:
            _, log = server.communicate(timeout=PATIENCE)
            assert server.returncode in {0, 130}, log
    assert compared == 2
    assert len(servers) == 1
    code, printed = clone.run("geartrain init x && geartrain run x")
    assert (code, printed.splitlines()[-1]) == (0, "Hello, world!"), printed
    code, printed = clone.run("python -m pytest -q x")  # as `init` proposes; the settings of the clone are not its own
    assert (code, printed.splitlines()[-1].split(" in ")[0]) == (0, "4 passed"), printed
    # What `pip install .` has installed is what ran.
    code, printed = clone.run("cd / && python -c 'import geartrain; print(geartrain.__file__)'")
    assert printed.startswith(str(clone.folder.parent / "environment")), printed


def comparable(text: str) -> object:
    """JSON without what is different each time; other texts as they are."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return {name: each for name, each in value.items() if name not in TEMPORARY} if isinstance(value, dict) else value


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_wheel_and_sdist_are_complete(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    done = subprocess.run(build, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        metadata = email.message_from_bytes(wheel.read(next(name for name in names if name.endswith("/METADATA"))))
    package = ROOT / "src/geartrain"
    there = {
        str(Path(folder, name).relative_to(package.parent))
        for folder, _, files in os.walk(package, followlinks=True)  # some templates are links to examples
        if not {"__pycache__", "checkpoints", "weights"} & set(Path(folder).parts)
        for name in files
    }
    assert {name for name in names if ".dist-info/" not in name} == there
    for needed in (
        "py.typed",
        "cli/templates/text/run.py",
        "project/foreign/model_config.proto",
        "transport/grpc/open_inference.proto",
        "transport/playground/static/index.html",
        "transport/playground/static/vendor/LICENSES.txt",
    ):
        assert f"geartrain/{needed}" in names
    assert sum(".dist-info/licenses/" in name for name in names) == 2
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {f"src/{name}" for name in there} <= names
    top = {name.partition("/")[0] for name in names}
    assert {"CHANGELOG.md", "CITATION.cff", "LICENSE", "Makefile", "docs", "examples", "src", "tests"} <= top
    described(metadata)


def described(metadata: email.message.Message) -> None:
    for name in ("Summary", "Author", "License-Expression", "Requires-Python", "Keywords", "Classifier"):
        assert metadata[name], name
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = str(metadata.get_payload())
    assert text.startswith("# geartrain\n")
    assert all(link.startswith("https://") for link in re.findall(r"\]\(([^)]+)\)", text))
