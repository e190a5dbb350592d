"""The keys of a running server, as its file has them now."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from geartrain.domain.errors import Code, GeartrainError
from geartrain.transport.access.errors import AccessError
from geartrain.transport.access.grants import Grant
from geartrain.transport.access.keys import NEVER, Key, digest_of, read_lines

logger = logging.getLogger(__name__)

_INTERVAL: Final = 1.0  # seconds between two looks at the file because of requests
_MAX_SIZE: Final = 4 * 1024**2

_Stamp = tuple[int, ...]  # differs after a change of the file
_MISSING: Final[_Stamp] = ()


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
