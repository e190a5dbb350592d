"""What geartrain needs of the machine: a fast interpreter, a folder for temporary files, and a port."""

from __future__ import annotations

import os
import shutil
import socket
import sysconfig
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from geartrain.outbound.allowance import size_text
from geartrain.project.findings import Finding, closest, error, ok, warning

DEFAULT_PORT: Final = 5000
_LITTLE: Final = 1 << 30  # bytes
_OURS: Final = frozenset(
    {
        "COG_LOG_LEVEL",
        "COG_MAX_CONCURRENCY",
        "COG_PREDICT_TYPE_STUB",
        "COG_SETUP_TIMEOUT",
        "COG_STREAM_HISTORY_CAPACITY",
        "COG_THROTTLE_RESPONSE_INTERVAL",
        "COG_TRAIN_TYPE_STUB",
        "COG_USER_AGENT",
        "COG_WEIGHTS",
    }
)
_PROFILED: Final = ("enable-optimizations", "enable-bolt", "PROFILE_TASK")  # to `configure`, by who wants a profile
_PROFILE_USED: Final = ("-fprofile-use", "-fprofile-instr-use", "-fauto-profile", "-prof-use")  # to the compiler
_USE_FLAG: Final = "PGO_PROF_USE_FLAG"  # what `make profile-opt` would add; says nothing about whether it ran


def build_variables() -> Mapping[str, object]:
    """Return what is known of how the interpreter was built; some images leave it out."""
    try:
        return sysconfig.get_config_vars()
    except ImportError:
        return {}


def check_interpreter(build: Mapping[str, object]) -> list[Finding]:
    """See whether Python itself was built for speed, by its `build` variables; where these are silent, so are we."""
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


def check_port(asked: int | None, environ: Mapping[str, str]) -> Finding:
    """See whether `geartrain serve` could listen: on the port that was asked for, or that it would take."""
    text = environ.get("PORT", "").strip()
    port = asked if asked is not None else int(text) if text.isdecimal() else DEFAULT_PORT
    reason = _taken(port)
    if reason is None:
        return ok(f"port {port}: free")
    sentence = f"port {port}: {reason}"
    fix = f"geartrain serve --port {_free_port()}"
    return error(sentence, fix) if asked is not None else warning(sentence, fix)


def check_variables(environ: Mapping[str, str], model: Mapping[str, str]) -> list[Finding]:
    """See whether variables of Cog's are set where they have no effect: mistyped, or for the model (`model`) alone."""
    mistyped = [
        warning(f"the variable {name} is set, and nothing reads it", f"set {meant}")
        for name in sorted(environ)
        if name.startswith("COG_") and name not in _OURS and (meant := _meant(name))
    ]
    out_of_place = [
        warning(
            f"cog.yaml: `environment` sets {name} for the model alone; the server does not see it",
            f"set it where geartrain is started: {name}={model[name]} geartrain serve",
        )
        for name in sorted(model)
        if name in _OURS | {"PORT", "LOG_FORMAT", "RUST_LOG"}
    ]
    return mistyped + out_of_place


def _without_profile(build: Mapping[str, object]) -> bool:
    """Whether nothing at all hints at profile-guided optimization; a wrong accusation is worse than none."""
    arguments = build.get("CONFIG_ARGS")  # none on Windows and of other interpreters; empty after a plain ./configure
    if not isinstance(arguments, str) or any(word in arguments for word in _PROFILED):
        return False
    # A distribution may call `make profile-opt` itself, which leaves no trace. Debian does, and blanks the flag.
    if not str(build.get(_USE_FLAG, "")).strip() or _packaged(str(build.get("installed_base", ""))):
        return False
    flags = " ".join(str(value) for name, value in build.items() if name != _USE_FLAG)
    return not any(option in flags for option in _PROFILE_USED)


def _packaged(prefix: str) -> bool:
    """Whether an interpreter lies where a distribution's does."""
    path = Path(prefix)
    return path.is_relative_to("/usr") and not path.is_relative_to("/usr/local")


def _meant(name: str) -> str | None:
    found = closest(name.removeprefix("COG_"), (known.removeprefix("COG_") for known in _OURS))
    return None if found is None else f"COG_{found}"


def _unwritable(folder: Path) -> str | None:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as reason:
        return os.strerror(reason.errno) if reason.errno else str(reason)
    return None


def _taken(port: int) -> str | None:
    try:
        socket.create_server(("", port)).close()
    except PermissionError:
        return "this user may not listen on it"
    except OSError as reason:
        return f"something else listens there ({os.strerror(reason.errno)})" if reason.errno else str(reason)
    return None


def _free_port() -> int:
    for port in range(DEFAULT_PORT + 1, DEFAULT_PORT + 100):
        with suppress(OSError):
            socket.create_server(("", port)).close()
            return port
    return 0
