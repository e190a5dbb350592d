"""Answers of one model that outlive the server: a file for each, below the folder that `cache.folder` names.

A file has a checksum over its name and content, so a damaged one, or another's, is never an answer. It is written
beside its place and then renamed, so a reader sees all of it or nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

logger = logging.getLogger(__name__)

_FORMAT: Final = b"geartrain answer 1\n"  # another number where keys or contents are made in another way
_HEAD: Final = struct.Struct("<d32s")  # seconds since the epoch, checksum
_NAME: Final = re.compile(r"([0-9a-f]{32})-([0-9a-f]{64})\.answer")
_PART: Final = re.compile(r"[0-9a-f]{32}-[0-9a-f]{64}\.[0-9]+\.part")
_ABANDONED: Final = 3600.0  # seconds after which a file that was not completed has no writer any more
_SKEW: Final = 60.0  # seconds by which the clock may have been set back
_LONGEST_NAME: Final = 150  # characters of a model's name in that of its folder
MAX_PENDING: Final = 16 * 1024**2
"""Bytes of answers that wait for being written; further ones stay in memory alone."""


class StoredAnswer(NamedTuple):
    """An answer as it was written; `kept_at` in seconds since the epoch."""

    key: bytes
    kept_at: float
    content: bytes


class _Place(NamedTuple):
    kept_at: float
    size: int


class AnswerFolder:
    """The files of one version of a model. One thread does all the work; a disk that fails costs answers, and no more.

    Files of the same version with another `digest` of its model are not read, and go when they are too old.
    """

    def __init__(self, folder: Path, *, model: str, version: str, digest: str, ttl: float, max_bytes: int) -> None:
        self._folder = folder / f"{quote(model, safe='')[:_LONGEST_NAME]}@{version}"
        self._ttl = ttl
        self._max_bytes = max_bytes
        self._print = hashlib.blake2b(_FORMAT + digest.encode(), digest_size=16).hexdigest()
        self._places: OrderedDict[str, _Place] = OrderedDict()  # the oldest first
        self._size = 0
        self._pending = 0  # bytes
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="geartrain-answers")
        self._has_failed = False

    def read(self) -> list[StoredAnswer]:
        """Return all answers that are young enough, the oldest first. Blocks."""
        try:
            return self._thread.submit(self._read).result()
        except RuntimeError:  # it is closed
            return []

    def write(self, key: bytes, kept_at: float, *, size: int, encode: Callable[[], bytes]) -> None:
        """Have an answer of about `size` bytes written, unless too much waits for it. `encode` runs in the thread."""
        with self._lock:
            if self._pending + size > MAX_PENDING:
                return
            self._pending += size
        with suppress(RuntimeError):  # it is closed
            self._thread.submit(self._write, key, kept_at, size=size, encode=encode)

    def remove_expired(self) -> None:
        """Have the files removed that are too old."""
        with suppress(RuntimeError):
            self._thread.submit(self._make_room, 0)

    def close(self) -> None:
        """Write what waits for it, and end the thread. Blocks."""
        self._thread.shutdown()

    # in the thread

    def _read(self) -> list[StoredAnswer]:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._find()
        except OSError as error:
            self._report(error)
            return []
        self._make_room(0)
        found: list[StoredAnswer] = []
        for name, place in list(self._places.items()):
            key = self._key_of(name)
            if key is None:
                continue
            answer = self._read_one(name, key)
            if answer is None or not self._is_young(answer.kept_at):
                self._remove(name)
                continue
            self._places[name] = _Place(answer.kept_at, place.size)
            found.append(answer)
        found.sort(key=lambda answer: answer.kept_at)
        return found

    def _find(self) -> None:
        now = time.time()
        found: list[tuple[str, _Place]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if not entry.is_file(follow_symlinks=False):
                    continue
                if _NAME.fullmatch(entry.name):
                    status = entry.stat(follow_symlinks=False)
                    found.append((entry.name, _Place(status.st_mtime, status.st_size)))
                elif _PART.fullmatch(entry.name) and entry.stat().st_mtime < now - _ABANDONED:
                    Path(entry.path).unlink(missing_ok=True)
        found.sort(key=lambda each: each[1].kept_at)
        self._places = OrderedDict(found)
        self._size = sum(place.size for place in self._places.values())

    def _key_of(self, name: str) -> bytes | None:
        """Return the key in the name of a file; None for one of another digest."""
        fingerprint, _, rest = name.partition("-")
        return bytes.fromhex(rest.partition(".")[0]) if fingerprint == self._print else None

    def _read_one(self, name: str, key: bytes) -> StoredAnswer | None:
        try:
            data = (self._folder / name).read_bytes()
        except OSError:
            return None
        begin = len(_FORMAT) + _HEAD.size
        if len(data) < begin or not data.startswith(_FORMAT):
            return None
        kept_at, checksum = _HEAD.unpack_from(data, len(_FORMAT))
        content = data[begin:]
        if not hmac.compare_digest(checksum, self._checksum(key, kept_at, content)):
            return None
        return StoredAnswer(key, kept_at, content)

    def _checksum(self, key: bytes, kept_at: float, content: bytes) -> bytes:
        digest = hashlib.blake2b(b"%b%b%r" % (self._print.encode(), key, kept_at), digest_size=32)
        digest.update(content)
        return digest.digest()

    def _is_young(self, kept_at: float) -> bool:
        return -_SKEW < time.time() - kept_at < self._ttl

    def _write(self, key: bytes, kept_at: float, *, size: int, encode: Callable[[], bytes]) -> None:
        name = f"{self._print}-{key.hex()}.answer"
        part = self._folder / f"{self._print}-{key.hex()}.{os.getpid()}.part"
        try:
            content = encode()
            data = b"".join((_FORMAT, _HEAD.pack(kept_at, self._checksum(key, kept_at, content)), content))
            if len(data) > self._max_bytes:
                return
            self._remove(name)
            self._make_room(len(data))
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            part.replace(self._folder / name)
            self._places[name] = _Place(kept_at, len(data))
            self._size += len(data)
        except (TypeError, ValueError, OverflowError) as error:  # a metric has no such form
            logger.debug("an answer cannot be written: %s", error)
        except OSError as error:
            part.unlink(missing_ok=True)
            self._report(error)
        finally:
            with self._lock:
                self._pending -= size

    def _make_room(self, size: int) -> None:
        """Remove what is too old, and then the oldest files until `size` bytes have room."""
        for name, place in list(self._places.items()):
            if self._is_young(place.kept_at) and self._size + size <= self._max_bytes:
                break
            self._remove(name)

    def _remove(self, name: str) -> None:
        place = self._places.pop(name, None)
        if place is not None:
            self._size -= place.size
            with suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)

    def _report(self, error: OSError) -> None:
        if not self._has_failed:  # once: the disk may be full for long
            self._has_failed = True
            logger.warning("answers cannot be kept in %s (`cache.folder`): %s", self._folder, error.strerror or error)
