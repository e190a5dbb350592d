"""System shared memory: regions that clients on the same machine register, for tensors that need not be sent.

A region is a part of a POSIX shared memory object, which its client has made. It is read and written through a file
descriptor and never mapped: a client that shrinks its object under a mapping would end this process with a signal.

Source: Triton's system shared memory extension; observed Triton, section 15. Several regions may lie on one object, at
any offset (T9).
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.rendering import clip
from geartrain.domain.tensors.tensor import Buffer

_FOLDER: Final = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory objects are on Linux
_LONGEST: Final = 255  # bytes of the name of an object
_LONGEST_NAME: Final = 1024  # characters of the name of a region
MAX_REGIONS: Final = 4096  # regions: each has a descriptor
_OFF: Final = (
    "This server takes no tensors in shared memory: it was not started with --shared-memory. Send the tensors' bytes."
)


class Region(msgspec.Struct, frozen=True):
    """A registered region, as its status shows it. Offset and size in bytes."""

    name: str
    key: str
    offset: int
    byte_size: int


class SharedRegions:
    """The registered regions of a server."""

    def __init__(self, *, enabled: bool = True, folder: Path = _FOLDER) -> None:
        """Unless `enabled`, every use is refused: any client of the server could read what others share."""
        self.enabled = enabled
        self._folder = folder
        self._regions: dict[str, tuple[Region, int]] = {}  # with the descriptor of its object

    def register(self, name: str, key: str, *, offset: int, byte_size: int) -> None:
        """Register a region of the object `key`, with or without its slash.

        Raises `UNSUPPORTED`, `CONFLICT` for a name that is taken, `INVALID_INPUT` for an object that is not there or is
        too small.
        """
        self._check_enabled()
        if name in self._regions:
            raise GeartrainError(Code.CONFLICT, f"shared memory region '{clip(name)}' already in manager")
        if len(name) > _LONGEST_NAME:
            raise _invalid(f"a name of a shared memory region has at most {_LONGEST_NAME} characters")
        if len(self._regions) >= MAX_REGIONS:
            raise _invalid(f"there are {MAX_REGIONS} shared memory regions already; unregister some")
        if offset < 0 or byte_size <= 0:
            raise _invalid(
                f"failed to register shared memory region '{clip(name)}': offset and size must not be negative"
            )
        descriptor = self._open(key)
        size = os.fstat(descriptor).st_size
        if offset + byte_size > size:
            os.close(descriptor)
            msg = (
                f"failed to register shared memory region '{clip(name)}': invalid args. It would end at byte "
                f"{clip(str(offset + byte_size))} of '{clip(key)}', which has {size}"
            )
            raise _invalid(msg)
        self._regions[name] = Region(name, key, offset, byte_size), descriptor

    def unregister(self, name: str | None) -> None:
        """Forget a region, or all; one that is not there is no error. Raises `UNSUPPORTED`."""
        self._check_enabled()
        for one in list(self._regions) if name is None else [name]:
            _, descriptor = self._regions.pop(one, (None, -1))
            if descriptor >= 0:
                os.close(descriptor)

    def status(self, name: str | None) -> list[Region]:
        """Describe a region, or all of them; raise `NOT_FOUND`, `UNSUPPORTED`."""
        self._check_enabled()
        if name is None:
            return [region for region, _ in self._regions.values()]
        if name not in self._regions:
            raise GeartrainError(Code.NOT_FOUND, f"Unable to find system shared memory region: '{clip(name)}'")
        return [self._regions[name][0]]

    def read(self, name: str, offset: int, size: int) -> memoryview:
        """Return a copy of `size` bytes from `offset` of a region; raise as `register` does, and `NOT_FOUND`."""
        region, descriptor = self._find(name, offset, size)
        data = memoryview(bytearray(size))
        done = 0
        while done < size:  # the system gives at most 2 GiB at a time
            more = os.preadv(descriptor, [data[done:]], region.offset + offset + done)
            if not more:
                raise _shrunk(region)
            done += more
        return data

    def write(self, name: str, offset: int, data: Buffer) -> None:
        """Write to a region; raise as `read` does."""
        region, descriptor = self._find(name, offset, len(data))
        begin = region.offset + offset
        if os.fstat(descriptor).st_size < begin + len(data):  # writing beyond the end would make the object grow
            raise _shrunk(region)
        rest = memoryview(data)
        while rest:
            done = os.pwrite(descriptor, rest, begin)
            begin, rest = begin + done, rest[done:]

    def close(self) -> None:
        """Close the descriptors."""
        for _, descriptor in self._regions.values():
            os.close(descriptor)
        self._regions.clear()

    def _check_enabled(self) -> None:
        if not self.enabled:
            raise GeartrainError(Code.UNSUPPORTED, _OFF)

    def _find(self, name: str, offset: int, size: int) -> tuple[Region, int]:
        self._check_enabled()
        found = self._regions.get(name)
        if found is None:
            raise GeartrainError(Code.NOT_FOUND, f"Unable to find shared memory region: '{clip(name)}'")
        region = found[0]
        if offset < 0 or size < 0 or offset + size > region.byte_size:
            msg = (
                f"Invalid offset + byte size for shared memory region: '{clip(name)}'. "
                f"{clip(str(offset))} + {clip(str(size))} is more than its {region.byte_size} bytes"
            )
            raise _invalid(msg)
        return found

    def _open(self, key: str) -> int:
        """Open the object that a key names. A key cannot lead to any other file."""
        name = key.removeprefix("/")
        if (
            not name
            or "/" in name
            or "\0" in name
            or name in {".", ".."}
            or len(name.encode(errors="replace")) > _LONGEST
        ):
            msg = f"'{clip(key)}' is no key of a shared memory object: a name, with or without one slash before it"
            raise _invalid(msg)
        try:
            descriptor = os.open(self._folder / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            reason = errno.errorcode.get(error.errno or 0, "") if isinstance(error, OSError) else "not a name"
            raise _invalid(f"Unable to open shared memory region: '{clip(key)}' ({reason})") from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise _invalid(f"Unable to open shared memory region: '{clip(key)}' is no shared memory object")
        return descriptor


def _shrunk(region: Region) -> GeartrainError:
    return _invalid(
        f"shared memory region '{clip(region.name)}': its object '{clip(region.key)}' has become smaller than it"
    )


def _invalid(message: str) -> GeartrainError:
    return GeartrainError(Code.INVALID_INPUT, message)
