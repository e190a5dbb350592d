"""Requirements of geartrain on the machine: a fast interpreter, a folder for temporary files, and a port."""

from __future__ import annotations

import os
import shutil
import socket
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from geartrain.cli.wire import DEFAULT_HOST
from geartrain.outbound.allowance import size_text
from geartrain.project.checks import Finding, closest, error, ok, warning
from geartrain.project.variables import DEFAULT_PORT, NAMES, PORT, check

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
