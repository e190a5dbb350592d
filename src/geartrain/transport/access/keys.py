"""Keys: the lines of their file, the keys of a running server, and the changes that `geartrain keys` makes to the file.

A key is 32 random bytes in text, and the file has only its SHA-256. Nothing can be guessed of a key of that size, so
the digest needs neither salt nor many rounds.

A key is looked up by its digest in a dict, whose time depends on a salted hash of the digest of what the client sent.
It tells nothing of the digests in the file, and a client cannot choose the digest of its guess: this is as good as a
comparison in constant time, and takes as long for a thousand keys as for one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import math
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.principal import Principal
from geartrain.transport.access.guard import ANY_MODEL, SCOPES, Grant
from geartrain.transport.access.options import AccessError

PREFIX: Final = "gt_"
NEVER: Final = math.inf

_BYTES: Final = 32
_DIGEST: Final = re.compile(r"(?:sha256:)?([0-9a-fA-F]{64})")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_FORM: Final = "NAME SCOPE,… sha256:DIGEST [models=PATTERN,…] [expires=DATE]"
logger = logging.getLogger(__name__)

_INTERVAL: Final = 1.0  # seconds between two looks at the file because of requests
_MAX_SIZE: Final = 4 * 1024**2

_Stamp = tuple[int, ...]  # differs after a change of the file
_MISSING: Final[_Stamp] = ()
_OWNER_ONLY: Final = 0o600


class Key(msgspec.Struct, frozen=True):
    """A line of the file. `expires` is a Unix time, `NEVER` without one."""

    name: str
    scopes: tuple[str, ...]
    digest: bytes
    models: tuple[str, ...] = (ANY_MODEL,)
    expires: float = NEVER

    def grant(self) -> Grant:
        """Return the grant of the key."""
        principal = Principal(f"key:{self.name}", "admin" in self.scopes)
        return Grant(f"key '{self.name}'", frozenset(self.scopes), self.models, name=self.name, principal=principal)


def new_key() -> str:
    """Make a key."""
    return PREFIX + secrets.token_urlsafe(_BYTES)


def digest_of(key: str) -> bytes:
    """Return the SHA-256 of a key."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def write_line(key: Key) -> str:
    """Return the line of a key, without its end."""
    words = [key.name, ",".join(key.scopes), f"sha256:{key.digest.hex()}"]
    if key.models != (ANY_MODEL,):
        words.append(f"models={','.join(key.models)}")
    if key.expires != NEVER:
        words.append(f"expires={write_time(key.expires)}")
    return " ".join(words)


def read_lines(text: str, source: str) -> list[Key | None]:
    """Read each line of a file of keys; None for a blank line and a comment.

    Raises `AccessError`, which names `source`, the line, and what to do.
    """
    keys: list[Key | None] = []
    first: dict[str | bytes, int] = {}  # the line of each name and digest
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            keys.append(None)
            continue
        try:
            key = _read_key(words)
            _check_new("name", key.name, first)
            _check_new("digest", key.digest, first)
        except ValueError as error:
            raise AccessError(f"{source}, line {number}: {error}") from None
        first[key.name] = first[key.digest] = number
        keys.append(key)
    return keys


def _check_new(what: str, value: str | bytes, first: Mapping[str | bytes, int]) -> None:
    if value in first:
        raise ValueError(f"line {first[value]} has the same {what}; remove one of the two")


def _read_key(words: list[str]) -> Key:
    if len(words) < 3:  # noqa: PLR2004 - the words that every line has
        raise ValueError(f"a key has the form {_FORM}; this line has too few words")
    name, scopes, digest, *rest = words
    options = dict(_read_option(word) for word in rest)
    if len(options) < len(rest):
        raise ValueError("an option is given twice; write it once, with commas between its values")
    return Key(
        check_name(name),
        check_scopes(scopes.split(",")),
        _read_digest(digest),
        check_models(options["models"].split(",")) if "models" in options else (ANY_MODEL,),
        read_time(options["expires"]) if "expires" in options else NEVER,
    )


def _read_option(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    if name not in {"models", "expires"}:
        raise ValueError(f"{word[:80]!r} is no option of a key; write models=PATTERN,… or expires=DATE")
    return name, value


def _read_digest(text: str) -> bytes:
    match = _DIGEST.fullmatch(text)
    if match is not None:
        return bytes.fromhex(match[1])
    if text.startswith(PREFIX):
        raise ValueError("the third word is the key itself; write its SHA-256 there, as `geartrain keys new` does")
    raise ValueError("the third word is no SHA-256; write sha256: and 64 hexadecimal digits")


def check_name(name: str) -> str:
    """Return the name of a key; raises ValueError for one that cannot be."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name[:80]!r} is no name of a key; write up to 64 letters, digits and . _ @ -")
    return name


def check_scopes(scopes: list[str]) -> tuple[str, ...]:
    """Return scopes without repetition; raise ValueError for an unknown one."""
    for scope in scopes:
        if scope not in SCOPES:
            raise ValueError(f"there is no scope {scope[:80]!r}; the scopes are {', '.join(SCOPES)}")
    return tuple(dict.fromkeys(scopes))


def check_models(patterns: list[str]) -> tuple[str, ...]:
    """Return patterns of models; raises ValueError for one that no line can hold."""
    for pattern in patterns:
        if not pattern or "," in pattern or not pattern.isprintable() or pattern.split() != [pattern]:
            raise ValueError(f"{pattern[:80]!r} is no pattern of models; write names such as ec*, and * for all")
    return tuple(dict.fromkeys(patterns))


def read_time(text: str) -> float:
    """Return a date, or a date and time, in UTC unless it says otherwise; raises ValueError."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:80]!r} is no date; write one such as 2027-01-31") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def write_time(seconds: float) -> str:
    """Return a time as `read_time` reads it, a date where it is midnight."""
    text = datetime.fromtimestamp(int(seconds), UTC).isoformat().removesuffix("+00:00")
    return text.removesuffix("T00:00:00") if text.endswith("T00:00:00") else f"{text}Z"


class KeyRing:
    """Finds keys, and follows their file. A new file that cannot be read changes nothing, and is logged once."""

    def __init__(
        self,
        path: Path,
        on_change: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Read the file; raises `AccessError`.

        `on_change` is called whenever a key that was valid may no longer be: what was remembered of it has to go.
        """
        self._path = path
        self._on_change = on_change
        self._clock = clock
        self._now = now
        self._keys, self._stamp = _read(path)
        self._grants = {digest: key.grant() for digest, key in self._keys.items()}
        self._next_end = self._find_next_end()
        self._next_look = clock() + _INTERVAL
        self._looked_at = now()

    def find(self, token: str) -> Grant | None:
        """Return the grant of a key, None for an unknown one; raise `UNAUTHENTICATED` for one that has expired."""
        if self._clock() >= self._next_look:
            self.refresh()
        digest = digest_of(token)
        grant = self._grants.get(digest)
        if grant is not None and self._keys[digest].expires <= self._now():
            raise GeartrainError(Code.UNAUTHENTICATED, f"The {grant.holder} has expired.")
        return grant

    def refresh(self) -> None:
        """Look whether the file has changed or a key has expired: one system call if not."""
        self._next_look = self._clock() + _INTERVAL
        stamp = _stamp_of(self._path)
        if stamp != self._stamp:
            self._stamp = stamp
            self._reread()
        now = self._now()
        if now >= self._next_end:
            self._next_end = self._find_next_end()
            self._on_change()
        elif now < self._looked_at:  # the clock was set back: a key that had expired is valid, and has an end again
            self._next_end = self._find_next_end()
        self._looked_at = now

    def _reread(self) -> None:
        try:
            keys, self._stamp = _read(self._path)
        except AccessError as error:
            logger.error("%s. The keys stay as they were.", error)  # noqa: TRY400 - the sentence says it all
            return
        if keys == self._keys:
            return
        self._keys = keys
        self._grants = {digest: key.grant() for digest, key in keys.items()}
        self._next_end = self._find_next_end()
        logger.info("the keys have changed; there are %d", len(keys))
        self._on_change()

    def _find_next_end(self) -> float:
        now = self._now()
        return min((key.expires for key in self._keys.values() if key.expires > now), default=NEVER)


def _read(path: Path) -> tuple[dict[bytes, Key], _Stamp]:
    """Return the keys by their digests, and the stamp of what was read."""
    try:
        with path.open("rb") as file:
            stamp = _stamp(os.fstat(file.fileno()))
            data = file.read(_MAX_SIZE + 1)
    except OSError as error:
        raise AccessError(f"--keys {path}: it cannot be read: {error.strerror or error}") from error
    if len(data) > _MAX_SIZE:
        raise AccessError(f"--keys {path}: it is larger than {_MAX_SIZE} bytes, and no file of keys")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise AccessError(f"--keys {path}: it is no text in UTF-8: write it with geartrain keys new") from error
    return {key.digest: key for key in read_lines(text, f"--keys {path}") if key is not None}, stamp


def _stamp_of(path: Path) -> _Stamp:
    try:
        return _stamp(path.stat())
    except OSError:
        return _MISSING


def _stamp(found: os.stat_result) -> _Stamp:
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def list_keys(path: Path) -> list[Key]:
    """Return the keys in the order of their lines; raises `AccessError`."""
    return [key for key in read_lines(_read_text(path), str(path)) if key is not None]


def add_key(path: Path, key: Key) -> None:
    """Add a line; make a file that only its owner can read if there is none. Raises `AccessError`."""
    with _locked(path):
        text = _read_text(path) if path.exists() else ""
        if any(other is not None and other.name == key.name for other in read_lines(text, str(path))):
            raise AccessError(f"{path} has a key '{key.name}' already; choose another name, or revoke that one first")
        if text and not text.endswith("\n"):
            text += "\n"
        _replace(path, f"{text}{write_line(key)}\n")


def revoke_key(path: Path, name: str) -> None:
    """Remove the line of a key; raises `AccessError`, also if there is none of this name."""
    with _locked(path):
        text = _read_text(path)
        keys = read_lines(text, str(path))
        names = [key.name for key in keys if key is not None]
        if name not in names:
            there = f"there are {', '.join(names)}" if names else "there is none"
            raise AccessError(f"{path} has no key '{name}'; {there}")
        lines = text.splitlines(keepends=True)
        _replace(path, "".join(line for line, key in zip(lines, keys, strict=True) if key is None or key.name != name))


def _read_text(path: Path) -> str:
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
