"""Unpacking of tar archives from elsewhere, whose content is not trusted.

Rules, for every compression alike:

- Files are written into real folders below a new folder. Links are checked as a whole before the first one is made, and
  are made last, so no member is ever written or created through a link of the archive.
- Only plain files, folders and links are accepted. Modes are 0644 or 0755 before the umask.
- Decompressed bytes, files, folders and the depth of paths are bounded. Bytes are counted while they are decompressed.
- A header, with the long names and the pax records before it, has a few KiB. `tarfile` reads headers whole, so the
  stream below it enforces the limit.
"""

from __future__ import annotations

import contextlib
import errno
import io
import lzma
import os
import posixpath
import shutil
import struct
import tarfile
import threading
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Final

from geartrain.outbound.remote.source import MAX_FILES, MissingExtraError, RemoteError

_PIECE: Final = 1024**2
_LARGEST_RATIO: Final = 50  # of decompressed bytes to the size of the archive
_ALWAYS: Final = 1024**3  # decompressed bytes that are allowed for an archive of any size
_LARGEST_HEADER: Final = 16 * 1024  # a path and a target of PATH_MAX each, and some extended attributes
_MOST_GLOBAL_RECORDS: Final = 100  # pax records for all further members, which each member copies
_DEEPEST: Final = 100  # parts of a path: each makes a folder, and removing a tree recurses
_MOST_HOPS: Final = 40  # links followed by one path; Linux has the same limit
_XZ_MEMORY: Final = 128 * 1024**2  # bytes for the dictionary; `xz -9` needs 65 MiB
# The last four come out of `tarfile` for numbers and records that make no sense.
_BROKEN: Final = (
    *(tarfile.TarError, EOFError, zlib.error, lzma.LZMAError),
    *(ValueError, OverflowError, LookupError, struct.error),
)
_IMPOSSIBLE: Final = frozenset({errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP})
_GZIP: Final = b"\x1f\x8b"
_BZIP2: Final = b"BZh"
_XZ: Final = b"\xfd7zXZ\0"
_ZSTANDARD: Final = b"\x28\xb5\x2f\xfd"


class _Stream:
    """Decompressed archive, read forwards only, within limits of bytes for the whole and for a header.

    `tarfile` reads headers through it. Between `begin_content` and `end_content` the limit of a header is off.
    """

    def __init__(self, plain: IO[bytes], *, shown: str, limit: int, abandoned: threading.Event) -> None:
        self._plain = plain
        self._shown = shown
        self._left = limit
        self._abandoned = abandoned
        self._position = 0
        self._header_left = _LARGEST_HEADER
        self._in_content = False

    def tell(self) -> int:
        """Return the count of decompressed bytes so far."""
        return self._position

    def seek(self, position: int) -> None:
        """Skip bytes up to a position; they count towards the whole, not towards a header."""
        if position < self._position:
            raise tarfile.ReadError("a member lies before the one that precedes it")
        while skipped := position - self._position:
            if not self._take(min(skipped, _PIECE)):
                raise tarfile.ReadError("unexpected end of data")

    def read(self, size: int) -> bytes:
        """Read bytes of a header or of a file; raise RemoteError for a header that is too long, before it is read."""
        if not self._in_content:
            if not 0 <= size <= self._header_left:
                raise RemoteError(
                    f"{self._shown}: a header in the archive has more than {_LARGEST_HEADER // 1024} KiB; "
                    "use shorter names, and leave out extended attributes"
                )
            self._header_left -= size
        pieces = []
        while size > 0 and (piece := self._take(min(size, _PIECE))):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def begin_content(self) -> None:
        """Read the content of a file from here on."""
        self._in_content = True

    def end_content(self) -> None:
        """Read the header of the next member from here on."""
        self._in_content = False
        self._header_left = _LARGEST_HEADER

    def _take(self, size: int) -> bytes:
        if self._abandoned.is_set():
            raise InterruptedError
        piece = self._plain.read(size)
        self._position += len(piece)
        self._left -= len(piece)
        if self._left < 0:
            raise RemoteError(f"{self._shown}: it unpacks to more than {_LARGEST_RATIO} times its size; it is refused")
        return piece


class _XzFile(io.RawIOBase):
    """Decompressed content of an xz file, with bounded memory, which `lzma.LZMAFile` does not offer."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decompressor = self._new()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read up to as many bytes as `buffer` holds; return their count, 0 at the end."""
        while True:
            if self._decompressor.eof:
                rest = self._decompressor.unused_data.lstrip(b"\0")  # zeros may lie between streams
                while not rest:
                    if not (rest := self._file.read(_PIECE)):
                        return 0
                    rest = rest.lstrip(b"\0")
                self._decompressor = self._new()
            else:
                rest = self._file.read(_PIECE) if self._decompressor.needs_input else b""
                if not rest and self._decompressor.needs_input:
                    raise EOFError("the archive ends too early")
            piece = self._decompressor.decompress(rest, len(buffer))
            if piece:
                buffer[: len(piece)] = piece
                return len(piece)

    @staticmethod
    def _new() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)


class _Unpacking:
    """One archive on its way into a folder, which is empty."""

    def __init__(self, folder: Path, *, shown: str, limit: int) -> None:
        self._folder = folder
        self._shown = shown
        self._left = limit  # bytes to write: a hard link copies what was decompressed once
        self._made = 0  # members, and folders that only their paths name
        self._folders = {""}
        self._links: dict[str, str] = {}  # target by path

    def add(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Unpack a member. Links are only noted."""
        self._count()
        if len(archive.pax_headers) > _MOST_GLOBAL_RECORDS:
            raise RemoteError(f"{self._shown}: it has more than {_MOST_GLOBAL_RECORDS} global pax records")
        name = self._inside(member.name, member.name)
        with self._blaming(member.name):
            self._make(archive, member, name)

    def finish(self) -> None:
        """Check that all links lead to members inside, then make them."""
        for name in self._links:
            self._check_parents(name)
            with self._blaming(name):
                self._make_folder(posixpath.dirname(name))
        for name in self._links:
            with self._blaming(name):
                if (self._folder / name).exists():
                    raise RemoteError(f"{self._shown}: {name!r} is in the archive twice")
                if not self._links[name] or not (self._folder / self._resolve(name)).exists():
                    raise self._dangling(name, self._links[name])
        for name, target in self._links.items():
            with self._blaming(name):
                (self._folder / name).symlink_to(target)

    @contextlib.contextmanager
    def _blaming(self, name: str) -> Iterator[None]:
        """Turn errors that no disk could avoid into those of the archive."""
        try:
            yield
        except OSError as error:
            if error.errno not in _IMPOSSIBLE:
                raise
            reason = f"{self._shown}: {name!r} cannot be unpacked: {error.strerror}; rename it there"
            raise RemoteError(reason) from error

    def _make(self, archive: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> None:
        if member.isdir():
            self._make_folder(name)
        elif member.issym():
            self._inside(posixpath.join(posixpath.dirname(name), member.linkname), member.name)
            if name in self._links or not name:
                raise RemoteError(f"{self._shown}: {member.name!r} is in the archive twice")
            self._links[name] = member.linkname
        elif member.islnk():
            source = self._folder / self._inside(member.linkname, member.name)
            if not source.is_file():
                raise RemoteError(f"{self._shown}: {member.name!r} links to {member.linkname!r}, which is not in it")
            with source.open("rb") as content:
                self._write(name, content, is_program=os.access(source, os.X_OK))
        elif member.isreg() and not member.issparse():
            content = archive.extractfile(member)  # type: ignore[assignment]
            with content:
                self._write(name, content, is_program=bool(member.mode & 0o100))
        else:
            raise RemoteError(
                f"{self._shown}: {member.name!r} is neither a file nor a folder; leave it out of the archive"
                if not member.isreg()
                else f"{self._shown}: {member.name!r} is a sparse file; make the archive without --sparse"
            )

    def _inside(self, path: str, member: str) -> str:
        """Return a path below the folder, "" for the folder itself; raise RemoteError for one that leads out of it."""
        path.encode()  # names are UTF-8: the cache keeps them in JSON
        clean = posixpath.normpath(path)
        if path.startswith("/") or clean == ".." or clean.startswith("../") or "\0" in path:
            raise self._outside(member)
        if clean.count("/") >= _DEEPEST:
            raise RemoteError(f"{self._shown}: {member[:100]!r} lies more than {_DEEPEST} folders deep")
        return "" if clean == "." else clean

    def _check_parents(self, name: str) -> None:
        parent = posixpath.dirname(name)
        while parent:
            if parent in self._links:
                raise RemoteError(f"{self._shown}: {name!r} lies behind the link {parent!r}; it is not unpacked")
            parent = posixpath.dirname(parent)

    def _resolve(self, name: str) -> str:
        """Follow the links of the archive; return a path without any. Raise RemoteError if it leaves the folder."""
        done: list[str] = []
        steps = name.split("/")[::-1]
        hops = 0
        while steps:
            step = steps.pop()
            if step in {"", "."}:
                continue
            if step == "..":
                if not done:
                    raise self._outside(name)
                if "/".join(done) not in self._folders:
                    raise self._dangling(name, self._links[name])
                done.pop()
                continue
            done.append(step)
            target = self._links.get("/".join(done))
            if target is None:
                continue
            hops += 1
            if hops > _MOST_HOPS:
                raise self._dangling(name, self._links[name])
            done.pop()
            steps += target.split("/")[::-1]
        return "/".join(done)

    def _outside(self, name: str) -> RemoteError:
        return RemoteError(f"{self._shown}: {name!r} would lie outside of the archive's folder; it is not unpacked")

    def _dangling(self, name: str, target: str) -> RemoteError:
        return RemoteError(f"{self._shown}: {name!r} links to {target!r}, which is not in the archive")

    def _count(self) -> None:
        self._made += 1
        if self._made > MAX_FILES:
            raise RemoteError(f"{self._shown}: there are more than {MAX_FILES} files in the archive")

    def _make_folder(self, name: str) -> None:
        if name in self._folders:
            return
        self._make_folder(posixpath.dirname(name))
        self._count()
        path = self._folder / name
        with contextlib.suppress(FileExistsError):
            path.mkdir()
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        self._folders.add(name)

    def _write(self, name: str, content: IO[bytes], *, is_program: bool) -> None:
        self._make_folder(posixpath.dirname(name))
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        mode = 0o755 if is_program else 0o644
        with os.fdopen(os.open(self._folder / name, flags, mode), "wb") as file:
            while piece := content.read(_PIECE):
                self._left -= len(piece)
                if self._left < 0:
                    raise RemoteError(
                        f"{self._shown}: it unpacks to more than {_LARGEST_RATIO} times its size; it is refused"
                    )
                file.write(piece)


def unpack(archive: Path, folder: Path, *, shown: str, abandoned: threading.Event) -> Path:
    """Unpack an archive into `folder`, which is made; return the folder of the model in it. Blocks.

    The model's folder is the only folder at the top of the archive, if nothing lies beside it. The first bytes tell the
    compression. Raise RemoteError for an invalid or refused archive, OSError if it cannot be written, InterruptedError
    when `abandoned` is set. If it raises, the caller removes `folder`.
    """
    folder.mkdir()
    limit = max(_ALWAYS, _LARGEST_RATIO * archive.stat().st_size)
    unpacking = _Unpacking(folder, shown=shown, limit=limit)
    try:
        with _decompressed(archive, shown) as plain:
            stream = _Stream(plain, shown=shown, limit=limit, abandoned=abandoned)
            for opened, member in _members(stream):
                unpacking.add(opened, member)
        unpacking.finish()
    except (*_BROKEN, OSError) as error:
        if isinstance(error, InterruptedError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        raise RemoteError(f"{shown}: it is no valid archive: {error}") from error  # bz2 raises OSError without errno
    tops = list(folder.iterdir())
    if not tops:
        raise RemoteError(f"{shown}: the archive is empty")
    return tops[0] if len(tops) == 1 and tops[0].is_dir() and not tops[0].is_symlink() else folder


def _members(stream: _Stream) -> Generator[tuple[tarfile.TarFile, tarfile.TarInfo], None, None]:
    with tarfile.open(fileobj=stream, mode="r:") as opened:  # type: ignore[call-overload]
        while (member := opened.next()) is not None:
            opened.members.clear()  # else all are kept, each with its pax records
            stream.begin_content()
            yield opened, member
            stream.end_content()


@contextlib.contextmanager
def _decompressed(archive: Path, shown: str) -> Iterator[IO[bytes]]:
    with archive.open("rb") as file:
        start = file.read(len(_XZ))
        file.seek(0)
        if start.startswith(_GZIP):
            import gzip

            with gzip.GzipFile(fileobj=file) as plain:
                yield plain  # type: ignore[misc]
        elif start.startswith(_BZIP2):
            import bz2

            with bz2.BZ2File(file) as plain:
                yield plain
        elif start.startswith(_XZ):
            with io.BufferedReader(_XzFile(file), _PIECE) as plain:
                yield plain
        elif start.startswith(_ZSTANDARD):
            yield from _zstandard(file, shown)
        else:
            yield file


def _zstandard(file: IO[bytes], shown: str) -> Iterator[IO[bytes]]:
    try:
        import zstandard
    except ImportError:
        raise MissingExtraError(shown, "zstandard") from None
    try:
        with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as plain:
            yield plain
    except zstandard.ZstdError as error:
        raise tarfile.ReadError(str(error)) from error


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it, if it is there."""
    shutil.rmtree(folder, ignore_errors=True)
