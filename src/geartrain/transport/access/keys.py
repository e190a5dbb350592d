"""Keys, and the lines of a file of keys.

A key is 32 random bytes in text, and the file has only its SHA-256. Nothing can be guessed of a key of that size, so
the digest needs neither salt nor many rounds.

A key is looked up by its digest in a dict, whose time depends on a salted hash of the digest of what the client sent.
It tells nothing of the digests in the file, and a client cannot choose the digest of its guess: this is as good as a
comparison in constant time, and takes as long for a thousand keys as for one.
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from geartrain.domain.principal import Principal
from geartrain.transport.access.errors import AccessError
from geartrain.transport.access.grants import ANY_MODEL, SCOPES, Grant

PREFIX: Final = "gt_"
NEVER: Final = math.inf

_BYTES: Final = 32
_DIGEST: Final = re.compile(r"(?:sha256:)?([0-9a-fA-F]{64})")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_FORM: Final = "NAME SCOPE,… sha256:DIGEST [models=PATTERN,…] [expires=DATE]"


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
