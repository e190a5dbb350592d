"""Commits and work trees of geartrain, each with an environment of its own that has the packages it pins.

They are kept in `.cache/compare`: a commit under its hash, the environment of a work tree under a hash of its path.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence

from servers import ROOT, Server

CACHE = ROOT / ".cache/compare"
TIMEOUT = 1800  # seconds that pip may take
PACKAGES = ("jaxtyping",)  # that models of `models/` import, besides those of the extra `examples`
PINS = ("pyproject.toml", "constraints.txt")
GRPC_OFF = "off"
GRPC_PORT = "{grpc}"


@dataclasses.dataclass(frozen=True)
class Checkout:
    """The source of one state of geartrain, and where its environment is kept.

    `commit` is empty for a work tree, which is used where it lies. `options` are those that `prepare` found out.
    """

    name: str
    about: str
    source: pathlib.Path
    home: pathlib.Path
    commit: str = ""
    options: tuple[str, ...] = ()

    @property
    def binaries(self) -> pathlib.Path:
        """The folder with its Python and with `geartrain`."""
        return self.home / "venv/bin"

    def serve(self, model: pathlib.Path, *, slots: int, grpc: bool = False) -> Server:
        """The server of this state, which must be prepared, on a model; `grpc`: with that port, if it has one."""
        options = [GRPC_PORT if grpc and option == GRPC_OFF else option for option in self.options]
        command = (str(self.binaries / "geartrain"), "serve", str(model), "--host", "127.0.0.1", "--port", "{port}")
        environment = {"COG_MAX_CONCURRENCY": str(slots)}
        return Server(name=self.name, command=(*command, *options), environment=environment)


def find(name: str, *, repository: pathlib.Path = ROOT, cache: pathlib.Path = CACHE) -> Checkout:
    """What a name means: the path of a work tree, or else a commit of the repository, in any way git takes.

    Raises LookupError with a sentence for the user if it is neither.
    """
    path = pathlib.Path(name)
    if (path / "src/geartrain").is_dir():
        source = path.resolve()
        state = _git(source, "describe", "--always", "--dirty=, with changes", "--abbrev=12", "--exclude=*")
        home = cache / f"tree-{_hash(str(source))}"
        return Checkout(name, f"the work tree at {state.stdout.strip() or 'no commit'}", source, home)
    commit = _git(repository, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").stdout.strip()
    if not commit:
        raise LookupError(f"{name!r} is neither a commit of {repository} nor the path of a checkout of geartrain")
    subject = _git(repository, "log", "-1", "--format=%h %s", commit).stdout.strip()
    return Checkout(name, subject, cache / commit / "source", cache / commit, commit)


def prepare(checkout: Checkout, *, repository: pathlib.Path = ROOT) -> Checkout:
    """Extract the source of a commit and make the environment, unless both are there already; return it with options.

    Servers with gRPC run without its port, unless that is measured: its default could be taken. Raises
    LookupError with a sentence for the user if one of these steps does not work.
    """
    if checkout.commit and not checkout.source.exists():
        extract(checkout.commit, checkout.source, repository=repository)
    missing = [name for name in PINS if not (checkout.source / name).is_file()]
    if missing:
        raise LookupError(f"{checkout.name} cannot be installed: it has no {' and no '.join(missing)}")
    _install(checkout)
    # PYTHONPATH, for one, would make both sides run the same code.
    where = _run([str(checkout.binaries / "python"), "-c", "import geartrain; print(geartrain.__file__)"]).strip()
    if not pathlib.Path(where).is_relative_to(checkout.source / "src"):
        raise LookupError(f"the environment of {checkout.name} imports geartrain from {where}; is PYTHONPATH set?")
    serve = [str(checkout.binaries / "geartrain"), "serve"]
    text = _run([*serve, "--help"], COLUMNS="200")
    if "--help-all" in text:
        text = _run([*serve, "--help-all"], COLUMNS="200")
    return dataclasses.replace(checkout, options=("--grpc-port", GRPC_OFF) if "--grpc-port" in text else ())


def extract(commit: str, folder: pathlib.Path, *, repository: pathlib.Path = ROOT) -> None:
    """Write the files of a commit into a new folder: a plain copy, of which git need not know."""
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    archive = subprocess.run(["git", "-C", str(repository), "archive", commit], check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", str(unfinished)], input=archive.stdout, check=True)
    unfinished.rename(folder)


def _install(checkout: Checkout) -> None:
    """Make the environment as the Makefile does, if it is not there or is one of other pins or of another Python."""
    stamp = checkout.home / "stamp"
    wanted = "\n".join(
        [
            os.path.realpath(sys.executable),
            sys.version,
            *PACKAGES,
            *(_hash((checkout.source / name).read_text()) for name in PINS),
        ]
    )
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"Installing {checkout.name} ({checkout.about}) into {checkout.home} …", file=sys.stderr)
    stamp.unlink(missing_ok=True)
    venv.create(checkout.home / "venv", with_pip=True, clear=True)
    pip = [str(checkout.binaries / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    pins = ["-c", str(checkout.source / "constraints.txt")]
    _run([*pip, *pins, "hatchling", "hatch-fancy-pypi-readme", "editables"])
    _run([*pip, *pins, "--no-build-isolation", "-e", f"{checkout.source}[examples]", *PACKAGES])
    stamp.write_text(wanted)


def _run(command: Sequence[str], **environment: str) -> str:
    """What a command prints. Raises LookupError with the end of its output if it fails."""
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        cwd=ROOT,
        env=os.environ | environment,
    )
    if done.returncode:
        raise LookupError(f"{' '.join(command)} failed; its output ends:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def _git(repository: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
