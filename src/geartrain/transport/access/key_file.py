"""Changes a file of keys as `geartrain keys` does. Comments and the order of lines stay."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from geartrain.transport.access.errors import AccessError
from geartrain.transport.access.keys import Key, read_lines, write_line

_OWNER_ONLY: Final = 0o600


def list_keys(path: Path) -> list[Key]:
    """Return the keys in the order of their lines; raises `AccessError`."""
    return [key for key in read_lines(_read(path), str(path)) if key is not None]


def add_key(path: Path, key: Key) -> None:
    """Add a line; make a file that only its owner can read if there is none. Raises `AccessError`."""
    with _locked(path):
        text = _read(path) if path.exists() else ""
        if any(other is not None and other.name == key.name for other in read_lines(text, str(path))):
            raise AccessError(f"{path} has a key '{key.name}' already; choose another name, or revoke that one first")
        if text and not text.endswith("\n"):
            text += "\n"
        _replace(path, f"{text}{write_line(key)}\n")


def revoke_key(path: Path, name: str) -> None:
    """Remove the line of a key; raises `AccessError`, also if there is none of this name."""
    with _locked(path):
        text = _read(path)
        keys = read_lines(text, str(path))
        names = [key.name for key in keys if key is not None]
        if name not in names:
            there = f"there are {', '.join(names)}" if names else "there is none"
            raise AccessError(f"{path} has no key '{name}'; {there}")
        lines = text.splitlines(keepends=True)
        _replace(path, "".join(line for line, key in zip(lines, keys, strict=True) if key is None or key.name != name))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AccessError(f"cannot read {path}: {_why(error)}") from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time change the files of the folder."""
    try:
        folder = os.open(path.resolve().parent, os.O_RDONLY)
    except OSError as error:
        raise AccessError(f"cannot write {path}: {_why(error)}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _replace(path: Path, text: str) -> None:
    """Replace the file in one step, so that a server never reads half of it; its owner and mode stay."""
    target = path.resolve()
    try:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                _take_over_owner(target, file.fileno())
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise AccessError(f"cannot write {path}: {_why(error)}") from error


def _take_over_owner(target: Path, descriptor: int) -> None:
    try:
        old = target.stat()
    except FileNotFoundError:
        os.fchmod(descriptor, _OWNER_ONLY)
        return
    if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, old.st_mode & 0o7777)


def _why(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror if isinstance(error, OSError) else "it is no text in UTF-8") or str(error)
