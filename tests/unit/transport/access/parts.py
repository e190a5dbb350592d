"""What the tests of access share: a request, a clock, and a file of keys."""

from __future__ import annotations

from pathlib import Path

from geartrain.transport.access.guard import ANY_MODEL
from geartrain.transport.access.keys import NEVER, Key, digest_of, write_line
from geartrain.transport.wire.exchange import Head


class Clock:
    """Stands still until a test moves it."""

    def __init__(self, time: float = 1000.0) -> None:
        self.time = time

    def __call__(self) -> float:
        return self.time


def head(method: str = "GET", path: str = "/predictions", **headers: str) -> Head:
    """A request; underscores in names of headers are hyphens."""
    fields = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return Head(method, path.encode(), b"", fields)


def line(
    secret: str,
    name: str = "ada",
    *,
    scopes: tuple[str, ...] = ("predict",),
    models: tuple[str, ...] = (ANY_MODEL,),
    expires: float = NEVER,
) -> str:
    """The line of a key."""
    return write_line(Key(name, scopes, digest_of(secret), models, expires))


def write_keys(path: Path, *lines: str) -> Path:
    """Write a file of keys in place."""
    path.write_text("".join(f"{each}\n" for each in lines))
    return path
