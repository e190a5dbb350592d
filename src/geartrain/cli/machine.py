"""Machine of `geartrain doctor`: its interpreter, temporary files and ports, its memory, GPUs, and build of torch."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from geartrain.cli.options import DEFAULT_HOST
from geartrain.outbound.files import size_text
from geartrain.project.checks import Finding, closest, error, ok, warning
from geartrain.project.variables import DEFAULT_PORT, NAMES, PORT, check
from geartrain.server.memory import usable_memory

_LITTLE: Final = 1 << 30  # bytes
_PROFILED: Final = ("enable-optimizations", "enable-bolt", "PROFILE_TASK")  # to `configure`, by who wants a profile
_PROFILE_USED: Final = ("-fprofile-use", "-fprofile-instr-use", "-fauto-profile", "-prof-use")  # to the compiler
_USE_FLAG: Final = "PGO_PROF_USE_FLAG"  # added by `make profile-opt`; it does not show that it ran


def build_variables() -> Mapping[str, object]:
    """Return the build variables of the interpreter; some images leave them out."""
    try:
        return sysconfig.get_config_vars()
    except ImportError:
        return {}


def check_interpreter(build: Mapping[str, object]) -> list[Finding]:
    """See whether Python itself was built for speed, by its `build` variables; unknown otherwise."""
    name = f"Python {build.get('py_version', '')}".rstrip()
    if build.get("Py_DEBUG"):
        text = f"{name} is a debug build: it checks itself at every step, and whatever runs in it is much slower"
        return [warning(text, "make geartrain's environment with a release build, such as a distribution's Python")]
    if _without_profile(build):
        text = f"{name} was configured without --enable-optimizations: what runs in it takes up to a third longer"
        fix = "make geartrain's environment with a distribution's Python, or build this one with --enable-optimizations"
        return [warning(text, fix)]
    return []


def check_temporary_folder(environ: Mapping[str, str]) -> Finding:
    """See whether files can be written where inputs and outputs are kept while a prediction runs."""
    wanted = environ.get("TMPDIR")
    if wanted and (reason := _unwritable(Path(wanted))):
        return error(f"TMPDIR={wanted}: {reason}", "name a folder that can be written to, or unset TMPDIR")
    folder = Path(wanted or tempfile.gettempdir())
    if reason := _unwritable(folder):
        return error(f"{folder}, for temporary files: {reason}", "name another folder in TMPDIR")
    free = shutil.disk_usage(folder).free
    text = f"{folder}, for temporary files: {size_text(free)} free"
    if free < _LITTLE:
        return warning(text, "make room, or name a folder with more of it in TMPDIR")
    return ok(text)


def check_port(asked: int | None, usual: int, host: str = DEFAULT_HOST) -> Finding:
    """See whether `geartrain serve` could listen at `host`: on the port that was asked for, or on the `usual` one."""
    port = usual if asked is None else asked
    reason = _taken(host, port)
    if reason is None:
        return ok(f"port {port}: free")
    sentence = f"port {port}: {reason}"
    fix = f"geartrain serve --port {_free_port(host)}"
    return error(sentence, fix) if asked is not None else warning(sentence, fix)


def check_variables(environ: Mapping[str, str], model: Mapping[str, str]) -> list[Finding]:
    """See whether variables are mistyped, in the environment or among those that a model's files set (`model`).

    A wrong `PORT` is an error: with it, `geartrain serve` does not start.
    """
    findings = [
        warning(f"the variable {name} is set, and nothing reads it", f"set {meant}")
        for name, meant in _mistyped(environ)
    ]
    findings += [
        warning(f"`environment` sets {name}, and nothing reads it", f"write {meant}")
        for name, meant in _mistyped(model)
    ]
    if (wrong := check(PORT, environ.get(PORT, ""))) is not None:
        findings.append(error(*wrong))
    return findings


def _without_profile(build: Mapping[str, object]) -> bool:
    """True if nothing at all hints at profile-guided optimization; a wrong accusation is worse than none."""
    arguments = build.get("CONFIG_ARGS")  # none on Windows and of other interpreters; empty after a plain ./configure
    if not isinstance(arguments, str) or any(word in arguments for word in _PROFILED):
        return False
    # A distribution may call `make profile-opt` itself, which leaves no trace. Debian does, and blanks the flag.
    if not str(build.get(_USE_FLAG, "")).strip() or _packaged(str(build.get("installed_base", ""))):
        return False
    flags = " ".join(str(value) for name, value in build.items() if name != _USE_FLAG)
    return not any(option in flags for option in _PROFILE_USED)


def _packaged(prefix: str) -> bool:
    """True if an interpreter lies where a distribution's does."""
    path = Path(prefix)
    return path.is_relative_to("/usr") and not path.is_relative_to("/usr/local")


def _mistyped(variables: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Give each name that is close to one of Cog's, and that one."""
    known = [name.removeprefix("COG_") for name in NAMES if name.startswith("COG_")]
    for name in sorted(variables):
        if name.startswith("COG_") and name not in NAMES:
            meant = closest(name.removeprefix("COG_"), known)
            if meant is not None:
                yield name, f"COG_{meant}"


def _unwritable(folder: Path) -> str | None:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as reason:
        return os.strerror(reason.errno) if reason.errno else str(reason)
    return None


def _taken(host: str, port: int) -> str | None:
    try:
        _listen(host, port)
    except PermissionError:
        return "this user may not listen on it"
    except OSError as reason:
        return f"something else listens there ({os.strerror(reason.errno)})" if reason.errno else str(reason)
    return None


def _free_port(host: str) -> int:
    for port in range(DEFAULT_PORT + 1, DEFAULT_PORT + 100):
        with suppress(OSError):
            _listen(host, port)
            return port
    return 0


def _listen(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    socket.create_server((host, port), family=family).close()


_PATIENCE: Final = 10.0  # seconds for a driver that does not answer
_QUERY: Final = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
_CUDA: Final = re.compile(r"CUDA Version: ([\d.]+)")
_MEBIBYTE: Final = 1 << 20
_BUILDS: Final = ("cuda", "hip")  # names in torch's `version.py`

Ask = Callable[[Sequence[str]], str]


class Torch(NamedTuple):
    """The installed torch: its version, and the version of CUDA or ROCm that it is built for; empty for none."""

    version: str
    cuda: str = ""
    hip: str = ""

    def __str__(self) -> str:
        built = f"CUDA {self.cuda}" if self.cuda else f"ROCm {self.hip}" if self.hip else "processors alone, no CUDA"
        return f"torch {self.version}, built for {built}"


def check_memory() -> Finding:
    """Tell the memory that a model may use: that of the machine, or the limit of its container."""
    memory = psutil.virtual_memory()
    total = usable_memory()
    free = min(memory.available, total)
    limit = " that this container may use" if total < memory.total else ""
    return ok(f"memory: {size_text(free)} free of {size_text(total)}{limit}")


def check_gpus(ask: Ask | None = None, torch: Torch | None = None) -> list[Finding]:
    """Tell the GPUs of NVIDIA and the build of torch, and warn where they do not fit together."""
    gpus = _gpus(ask or _ask_driver)
    torch = torch or find_torch()
    findings = [ok(f"GPU {index}: {gpu}") for index, gpu in enumerate(gpus)] or [ok("GPU: none of NVIDIA's here")]
    if torch is None:
        return findings
    if gpus and not torch.cuda:
        fix = "install the build of torch for CUDA: https://pytorch.org/get-started/locally/"
        return [*findings, warning(f"{torch}: it cannot use the GPU", fix)]
    without = ', and there is no GPU: device="cuda" fails' if torch.cuda and not gpus else ""
    return [*findings, ok(f"{torch}{without}")]


def has_gpu() -> bool:
    """Return True if NVIDIA's driver finds a GPU."""
    return bool(_gpus(_ask_driver))


def find_torch() -> Torch | None:
    """Read how the installed torch was built from its `version.py`: to import it takes seconds."""
    try:
        version = metadata.version("torch")
        spec = importlib.util.find_spec("torch")
    except (metadata.PackageNotFoundError, ImportError, ValueError):
        return None
    values: dict[str, object] = {}
    if spec is not None and spec.origin is not None:
        values = _constants(Path(spec.origin).with_name("version.py"))
    return Torch(*(str(value or "") for value in (values.get("__version__", version), *map(values.get, _BUILDS))))


def _constants(path: Path) -> dict[str, object]:
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[str, object] = {}
    for node in body:
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name) and isinstance(node, ast.AnnAssign | ast.Assign):
            found[target.id] = node.value.value if isinstance(node.value, ast.Constant) else None
    return found


def _gpus(ask: Ask) -> list[str]:
    """Return a phrase for each GPU."""
    cuda = _CUDA.search(ask(()))
    phrases = []
    for line in ask(_QUERY).splitlines():
        name, _, rest = line.partition(", ")
        size, _, driver = rest.partition(", ")
        memory = f", {size_text(int(size) * _MEBIBYTE)}" if size.isdecimal() else ""
        phrases.append(f"{name}{memory}, driver {driver}{f' for CUDA {cuda[1]}' if cuda else ''}")
    return phrases


def _ask_driver(arguments: Sequence[str]) -> str:
    """Run `nvidia-smi`; return its output, empty where there is none or it finds no GPU."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603 - the driver's own program
            [program, *arguments], check=False, capture_output=True, text=True, timeout=_PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
