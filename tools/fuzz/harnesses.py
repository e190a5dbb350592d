"""What is fuzzed: readers of bytes that a client makes up, and what has to hold for each whatever they are.

A harness takes bytes and raises `AssertionError`, or whatever the reader raises that it should not. Its first byte says
where the rest is cut: a reader must find the same in two pieces as in one.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import lzma
import os
import re
import stat
import tarfile
import tempfile
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, unquote_to_bytes

import msgspec

_LIMIT: Final = 4096
_REFUSALS: Final = range(400, 600)
_LARGEST_PIECE: Final = 1 << 20
_BOUNDARY: Final = b"b0"
_MOST_MEMBERS: Final = 400


class Harness(msgspec.Struct, frozen=True):
    """What takes the bytes, what to begin with, and the words that it knows."""

    run: Callable[[bytes], None]
    seeds: Sequence[bytes]
    words: Sequence[bytes]


def _cut(data: bytes) -> tuple[bytes, list[bytes]]:
    """Return the bytes behind the first, whole and in two pieces."""
    if not data:
        return b"", []
    at, whole = data[0], data[1:]
    at = at * len(whole) // 256
    return whole, [piece for piece in (whole[:at], whole[at:]) if piece]


# heads


def _head(data: bytes) -> None:
    from geartrain.transport.wire.heads import END, read_head
    from geartrain.transport.wire.limits import WireError

    def read(given: bytes) -> object:
        try:
            return read_head(given, _LIMIT)
        except WireError as error:
            assert error.status in _REFUSALS
            assert str(error)
            return error.status

    whole, _ = _cut(data)
    found = read(whole)
    assert _head_in_pieces(data, is_refused=isinstance(found, HTTPStatus)) == found, "another head in pieces"
    if isinstance(found, tuple):
        request, size = found
        assert whole[:size].endswith(END)
        assert request.head.path[:1] == b"/" or request.head.path == b"*"
        assert b"?" not in request.head.path
        assert all(name == name.lower() and not re.search(rb"[\r\n\0]", value) for name, value in request.head.headers)
        assert read(whole[:size]) == found, "what follows a head changes it"
    elif found is None:
        assert len(whole) <= _LIMIT, "a head beyond the limit is waited for"


def _head_in_pieces(data: bytes, *, is_refused: bool) -> object:
    """As `read_head`, of two pieces. A refusal of the first is one of both.

    `is_refused`: whether the whole is. A fault in a line that comes in pieces may be found at the end of the line only.
    """
    from geartrain.transport.wire.heads import HeadReader
    from geartrain.transport.wire.limits import WireError

    reader = HeadReader(_LIMIT)
    _, pieces = _cut(data)
    size = 0
    try:
        for piece in pieces:
            at = 0
            while at < len(piece) and not reader.is_complete:
                at += reader.feed(piece[at:])
            size += at
        if is_refused and not reader.is_complete:
            reader.feed(b"\r\n")
        return (reader.result(), size) if reader.is_complete else None
    except WireError as error:
        return error.status


HEAD: Final = Harness(
    _head,
    [
        b"\x80GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x10POST /a/b%20c?d=e HTTP/1.1\r\nHost: [::1]:80\r\nContent-Length: 12\r\nExpect: 100-continue\r\n\r\nbody",
        b"\xf0\r\nPUT http://localhost/x HTTP/1.0\r\nConnection: keep-alive, close\r\nUpgrade: h2c\r\n\r\n",
        b"\x40POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nX: \xff\t\r\n\r\n0\r\n\r\n",
        b"\x40OPTIONS * HTTP/1.1\r\nhost:a\r\n\r\nGET / HTTP/1.1\r\n",
    ],
    [
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b"\r",
        b" HTTP/1.1",
        b"Host: ",
        b"Content-Length: ",
        b"Transfer-Encoding: ",
        b"chunked",
    ],
)


# bodies in chunks


def _chunks(data: bytes) -> None:
    from geartrain.transport.wire.bodies import ChunkReader
    from geartrain.transport.wire.limits import WireError

    def read(pieces: list[bytes]) -> object:
        reader = ChunkReader(_LIMIT)
        body, taken = [], 0
        try:
            for piece in pieces:
                found, size = reader.feed(piece)
                assert 0 <= size <= len(piece)
                assert size == len(piece) or reader.is_complete
                body += found
                taken += size
        except WireError as error:
            assert error.status in _REFUSALS
            assert str(error)
            return error.status
        content = b"".join(body)
        assert len(content) <= taken
        return content, taken, reader.is_complete

    whole, pieces = _cut(data)
    found = read([whole])
    assert found == read(pieces), "another body in pieces"
    assert found == read([whole[at : at + 1] for at in range(len(whole))]), "another body in single bytes"
    if isinstance(found, tuple) and found[2]:
        assert whole[: found[1]].endswith(b"\r\n")
        assert read([whole[: found[1]]]) == found, "what follows a body changes it"


CHUNKS: Final = Harness(
    _chunks,
    [
        b"\x805\r\nhello\r\n0\r\n\r\n",
        b'\x205;a="b c"\r\nhello\r\nA\r\n0123456789\r\n0\r\nX: y\r\nZ:\r\n\r\nGET /',
        b"\xc000;x\r\n\r\n",
        b"\x40ffffffffffffffff\r\nx",
    ],
    [b"\r\n", b"0\r\n", b"\r\n\r\n", b";", b"\n", b"\r", b"ff", b"X: y\r\n"],
)


# forms


class _Parts:
    """Keeps what a reader of forms tells."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def begin_part(self, head: Any) -> None:
        """Begin."""
        self.told.append((head, bytearray(), []))

    def add_data(self, data: memoryview) -> None:
        """Go on."""
        assert not self.told[-1][2], "data behind the end of a part"
        self.told[-1][1].extend(data)

    def end_part(self) -> None:
        """End."""
        self.told[-1][2].append(True)


def _multipart(data: bytes) -> None:
    from geartrain.domain.errors import GeartrainError
    from geartrain.domain.multipart import MultipartReader

    def read(pieces: list[bytes]) -> object:
        parts = _Parts()
        try:
            reader = MultipartReader(b"multipart/form-data; boundary=" + _BOUNDARY, parts)
            for piece in pieces:
                reader.feed(piece)
            reader.end()
        except GeartrainError as error:
            assert str(error)
            return error.code
        assert all(ended == [True] for _, _, ended in parts.told), "a part without an end, or with two"
        assert all(b"\r\n--" + _BOUNDARY + b"\r\n" not in content for _, content, _ in parts.told)
        return [(head, bytes(content)) for head, content, _ in parts.told]

    whole, pieces = _cut(data)
    found = read([whole])
    assert found == read(pieces), "other parts in pieces"
    assert found == read([whole[at : at + 1] for at in range(len(whole))]), "other parts in single bytes"


MULTIPART: Final = Harness(
    _multipart,
    [
        b'\x80--b0\r\nContent-Disposition: form-data; name="a"\r\n\r\nvalue\r\n--b0--\r\n',
        (
            b'\x40--b0\r\nContent-Disposition: form-data; name="f"; filename="x.png"\r\nContent-Type: image/png\r\n\r\n'
            b"\x89PNG\r\n--b\r\n\r\n--b0\r\ncontent-disposition: form-data; name=b\r\n\r\n\r\n--b0--"
        ),
        b"\x20preamble\r\n--b0--\r\nepilogue",
    ],
    [
        b"--b0",
        b"--b0--",
        b"\r\n",
        b"\r\n\r\n",
        b'name="',
        b'filename="',
        b"form-data; ",
        b"filename*=UTF-8''%e2",
        b"\\",
    ],
)


# URLs that hold their data


def _data_url(data: bytes) -> None:
    from geartrain.outbound.data_urls import DataUrlError, parse_data_url

    url = "data:" + data.decode("latin-1")  # a lone surrogate is refused with the JSON that holds it
    try:
        found = parse_data_url(url)
    except DataUrlError as error:
        assert str(error)
        return
    pieces = list(found.pieces())
    assert all(len(piece) <= _LARGEST_PIECE for piece in pieces)
    assert found.name
    assert "/" not in found.name
    content = b"".join(pieces)
    payload = url.partition(",")[2]
    if not found.is_base64:
        assert content == unquote_to_bytes(payload), "other bytes in pieces"
    else:
        bare = "".join(unquote(payload).split()).rstrip("=").encode()
        assert base64.b64encode(content).rstrip(b"=")[: len(bare) - 1] == bare[:-1], "other bytes than base64 says"


DATA_URL: Final = Harness(
    _data_url,
    [
        b"text/plain,hello%20world",
        b"image/png;base64,iVBORw0KGgo=",
        b";base64,aGVs%0AbG8",
        b",%41%4",
        b"a;b=c;base64 ,",
        b",",
    ],
    [b";base64,", b"%41", b"%", b"=", b"==", b",", b"text/plain", b"%3D"],
)


# HTTP/2


def _http2_frames(data: bytes) -> None:
    from geartrain.transport.http2.frames import DATA, PADDING, UNKNOWN, ConnectionFaultError, FrameReader

    def read(pieces: list[bytes]) -> object:
        reader = FrameReader(_LIMIT, _LIMIT // 4)
        frames: list[tuple[int, int, int, bytes]] = []
        code = -1
        try:
            for piece in pieces:
                for kind, flags, stream, payload in reader.read(piece):
                    assert 0 <= kind <= PADDING
                    assert 0 <= stream < 1 << 31
                    assert len(payload) <= (_LIMIT if kind == DATA else 0 if kind >= UNKNOWN else _LIMIT // 4)
                    frames.append((kind, flags, stream, bytes(payload)))
        except ConnectionFaultError as error:
            assert str(error)
            code = error.code
        assert sum(len(payload) for *_, payload in frames) <= sum(map(len, pieces))
        return _joined(frames), code

    whole, pieces = _cut(data)
    found = read([whole])
    assert found == read(pieces), "other frames in pieces"
    assert found == read([whole[at : at + 1] for at in range(len(whole))]), "other frames in single bytes"


def _joined(frames: list[tuple[int, int, int, bytes]]) -> list[tuple[int, int, int, bytes]]:
    """Return the frames with the parts of DATA joined, where no other frame is between."""
    joined: list[tuple[int, int, int, bytes]] = []
    for kind, flags, stream, payload in frames:
        if kind == 0 and joined and joined[-1][0] == 0 and joined[-1][2] == stream:
            _, known, _, before = joined.pop()
            joined.append((0, known | flags, stream, before + payload))
        elif kind or flags or payload:
            joined.append((kind, flags, stream, payload))
    return joined


HTTP2_FRAMES: Final = Harness(
    _http2_frames,
    [
        b"\x80\0\0\0\4\0\0\0\0\0\0\0\6\4\0\0\0\0\0\0\3\0\0\0\x64\0\0\x08\6\0\0\0\0\0abcdefgh",
        b"\x40\0\0\4\1\4\0\0\0\1\x82\x86\x84\x41\0\0\5\0\1\0\0\0\1hello",
        b"\x20\0\0\x0a\0\x09\0\0\0\1\4hello\0\0\0\0\0\0\4\x08\0\0\0\0\0\0\1\0\0",
        b"\xc0\0\0\3\xfe\xff\x80\0\0\5xyz\0\0\4\3\0\0\0\0\1\0\0\0\x08",
        b"\x60\0\x10\0\0\1\0\0\0\1" + bytes(4096),
    ],
    [b"\0\0\0", b"\0\0\1", b"\0\x10\0", b"\xff\xff\xff", b"\0\x08", b"\0\1\0\0\0\1", b"\0\0\5\0\x08"],
)


def _http2_heads(data: bytes) -> None:
    from geartrain.transport.http2.frames import ConnectionFaultError
    from geartrain.transport.http2.headers import HeadReader, HeadTooLargeError, MalformedError
    from geartrain.transport.http2.interface import RequestHead

    def read(reader: HeadReader, block: bytes) -> object:
        try:
            return reader.read_request(block, is_whole=False)
        except (MalformedError, HeadTooLargeError, ConnectionFaultError) as error:
            return type(error).__name__

    def new_reader() -> HeadReader:
        return HeadReader(max_size=_LIMIT, max_fields=32, table_size=_LIMIT)

    _, pieces = _cut(data)
    blocks = [*pieces, *pieces]  # again: what is known of a block must be what is read in it
    reader, other = new_reader(), new_reader()
    for block in blocks:
        found = read(reader, block)
        other.forget()
        again = read(other, block)
        if isinstance(found, RequestHead) and isinstance(again, RequestHead):
            assert _values(found) == _values(again), "a head that is known is another one"
            _check_head(found)
        else:
            assert found == again, "a head that is known is none"
        if found == ConnectionFaultError.__name__:
            return


def _values(head: Any) -> tuple[Any, ...]:
    return head.method, head.scheme, head.path, head.fields, head.length


def _check_head(head: Any) -> None:
    assert head.method
    assert head.method != "CONNECT"
    assert head.scheme in {"http", "https"}
    assert head.path[:1] == b"/" or (head.path == b"*" and head.method == "OPTIONS")
    assert not re.search(rb"[\0-\x20\x7f-\xff]", head.path)
    names = [name for name, _ in head.fields]
    assert names[0] == b"host"
    assert names.count(b"host") == 1
    assert names.count(b"cookie") <= 1
    assert all(re.fullmatch(rb"[!-9;-@\[-~]+", name) for name in names), "a name has characters that it must not have"
    assert all(value.strip(b" \t") == value and not re.search(rb"[\r\n\0]", value) for _, value in head.fields)
    assert not {b"connection", b"transfer-encoding", b"upgrade", b"keep-alive", b"proxy-connection"} & {*names}
    assert sum(len(name) + len(value) for name, value in head.fields) <= 2 * _LIMIT


HTTP2_HEADS: Final = Harness(
    _http2_heads,
    [
        b"\x80\x82\x86\x84\x41\x09localhost\x82\x86\x84\xbe",
        b"\x60\x83\x86\x04\x04/a?b\x01\x01a\x0f\x10\x10application/grpc\x40\x02te\x08trailers",
        b"\x80\x83\x87\x44\x89\x62\xbb\x0b\x21\x88\x93\x1e\xa4\x7f\x41\x86\xa0\xe4\x1d\x13\x9d\x09\x60\x03a=b",
        b"\x40\x3f\xe1\x1f\x82\x86\x84\x66\x01a\x10\x0econtent-length\x012",
        b"\x50\x20\x82\x86\x84\x01\x0b[::1]:65535\x07\x07OPTIONS\x04\x01*",
    ],
    [
        b"\x82",
        b"\x86",
        b"\x84",
        b"\x41",
        b"\x40\x01",
        b"\x00\x01",
        b"\x10",
        b"\x20",
        b"\x3f\xe1\x1f",
        b"\xbe",
        b"host",
        b":path",
    ],
)


# archives


def _tar_of(lines: bytes) -> bytes:
    """Make a tar archive of lines `TYPE NAME>TARGET=CONTENT`; a line that begins with `!` is taken as blocks."""
    packed = bytearray()
    for line in lines.split(b"\n")[:_MOST_MEMBERS]:
        if line[:1] == b"!":
            packed += line[1:].ljust(-(-len(line) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE, b"\0")
            continue
        start, _, content = line.partition(b"=")
        name, _, target = start[1:].partition(b">")
        member = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
        member.linkname = target.decode("utf-8", "surrogateescape")
        member.type = start[:1]
        member.size = len(content)
        member.mode = 0o7777 if content[:1] == b"s" else 0o644
        packed += member.tobuf(tarfile.GNU_FORMAT if len(line) % 2 else tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        packed += content.ljust(-(-len(content) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE, b"\0")
    return bytes(packed) + bytes(2 * tarfile.BLOCKSIZE)


_COMPRESSIONS: Final[Sequence[Callable[[bytes], bytes]]] = (
    lambda plain: plain,
    lambda plain: gzip.compress(plain, mtime=0),
    bz2.compress,
    lzma.compress,
)


def _archive(data: bytes) -> None:
    """The first byte tells the compression, and whether the rest is lines or the archive itself."""
    from geartrain.outbound.remote.archives import unpack
    from geartrain.outbound.remote.source import RemoteError

    kind, rest = (data[0], data[1:]) if data else (0, b"")
    plain = rest if kind & 8 else _tar_of(rest)
    packed = _COMPRESSIONS[kind % 4](plain)
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        (top / "archive").write_bytes(packed if not kind & 16 else packed[: len(packed) // 2])
        (top / "victim").mkdir()
        out = top / "out"
        try:
            root = unpack(top / "archive", out, shown="it", abandoned=threading.Event())
        except RemoteError as error:
            assert str(error)
        else:
            assert out in {root, root.parent}
        _check_unpacked(top, len(plain))


def _check_unpacked(top: Path, size: int) -> None:
    assert {path.name for path in top.iterdir()} == {"archive", "victim", "out"}, "something was made outside"
    assert not list((top / "victim").iterdir()), "something was made outside"
    out, written = (top / "out").resolve(), 0
    for folder, folders, files in os.walk(out):
        for name in (*folders, *files):
            path = Path(folder, name)
            mode = path.lstat().st_mode
            assert stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode), "a member is no file"
            if stat.S_ISLNK(mode):
                assert path.resolve(strict=True).is_relative_to(out), "a link leads outside"
                continue
            assert not mode & 0o7000, "a mode has more than permissions"
            written += path.stat().st_size if stat.S_ISREG(mode) else 0
    assert written <= size * _MOST_MEMBERS, "more was written than is in the archive"


ARCHIVE: Final = Harness(
    _archive,
    [
        b"\x000run.py=code\n5w\n0w/a=weights\n2w/l>a\n1copy>run.py",
        b"\x012d>in\n0in/a=x\n2d/b>a\n0d/c=x",
        b"\x020in/a=x\n2up>in/..\n2up/out>../victim\n2up/out/made>../in",
        b"\x03Llong=" + b"n/" * 60 + b"x\n0short=s\nxpax=11 path=abc\n\n0b=x",
        b"\x00xpax=19 path=../victim\n\n0b=x\ngpax=9 size=1\n\n0c=y\nKl=../victim\n2k>x",
        b"\x013dev\n4block\n6fifo\n7cont=x\nSsparse=x\n0../victim/x=x\n0/etc/x=x",
        b"\x082raw",
        b"\x08\x1f\x8b\x08\0\0\0\0\0\0\xff",
        b"\x08\xfd7zXZ\0\0\x04",
    ],
    [
        b"\n",
        b"../",
        b"..",
        b"/",
        b"victim",
        b"\n2",
        b"\n1",
        b">in",
        b"=",
        b"\n0d/b=x",
        b"GNU.sparse.major=1",
        b"-1",
        b"\xff",
        b"\nx",
    ],
)

HARNESSES: Final = {
    "archive": ARCHIVE,
    "head": HEAD,
    "chunks": CHUNKS,
    "multipart": MULTIPART,
    "data-url": DATA_URL,
    "http2-frames": HTTP2_FRAMES,
    "http2-heads": HTTP2_HEADS,
}
