"""Heads of HTTP/1.1 requests (RFC 9112, sections 2, 3, 5 and 6): bytes in, a checked head or an error out.

httptools (llhttp, in its strict mode) parses. Checked here is what a parser of heads does not know: limits, `Host`, the
form of the target, and which framing of the body this server speaks.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Final

import httptools
import msgspec

from geartrain.transport.wire.exchange import NO_BODY, UNKNOWN_LENGTH, Accepted, Head, NewRecord
from geartrain.transport.wire.limits import MAX_FIELDS, WireError

END: Final = b"\r\n\r\n"
_BEFORE_END: Final = len(END) - 1  # bytes of the end that may have come before the rest of it
_CONTROLS: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?!\n)|\r\n[ \t]")
_REQUEST_LINE: Final = re.compile(rb"[A-Z-]+ [^ ]+ HTTP/[0-9]\.[0-9]")
_BEGINNING: Final = re.compile(rb"\r?(?:[A-Z-]+(?: [^\x00-\x1f\x7f]*\r?)?)?")
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9\-._~%!$&'()*+,;=]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_VERSIONS: Final = frozenset({"1.0", "1.1"})
_HELD: Final = 256  # bytes of a line that are not parsed before the line ends
_MOST_DIGITS: Final = 18  # of a Content-Length
_LARGEST: Final = 2048  # bytes of a head
MAX_HEADS: Final = 512  # heads
MAX_HEADS_WITHOUT_PATH: Final = 128
_PLAIN_PATH: Final = re.compile(rb"/[A-Za-z0-9._~%/-]*")  # that means what it says: no query, nothing to refuse


class Terms(msgspec.Struct, frozen=True, gc=False):
    """Form of the answer that a request's head allows.

    Attributes:
        keeps_alive: true if the connection goes on after the answer.
        is_modern: true if the answer may come in chunks.
        is_head: true if only its head is wanted.
    """

    keeps_alive: bool = True
    is_modern: bool = True
    is_head: bool = False


PLAIN: Final = Terms()
"""Those of most requests."""


def terms_of(*, keeps_alive: bool, is_modern: bool, is_head: bool) -> Terms:
    """Return the terms; those of most requests are `PLAIN` itself."""
    return PLAIN if keeps_alive and is_modern and not is_head else Terms(keeps_alive, is_modern, is_head)


class RequestHead(msgspec.Struct, frozen=True, gc=False):
    """A head, and what the connection has to know of it.

    Attributes:
        head: what handlers see.
        keeps_alive: whether the client may send another request on the connection.
        is_modern: whether it is HTTP/1.1, so that the answer may come in chunks.
        expects_continue: whether the client waits for `100 Continue` before it sends the body.
    """

    head: Head
    keeps_alive: bool
    is_modern: bool
    expects_continue: bool


class _Parsed:
    """The parts of a head, to which the parser refers: it is apart from the reader, which refers to the parser."""

    __slots__ = ("fields", "is_complete", "target")

    def __init__(self) -> None:
        self.target = b""
        self.fields: list[tuple[bytes, bytes]] = []
        self.is_complete = False

    def on_url(self, piece: bytes) -> None:
        """Take a piece of the target."""
        self.target += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field."""
        if len(self.fields) >= MAX_FIELDS:
            text = f"The request has more than {MAX_FIELDS} header fields."
            raise WireError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text)
        self.fields.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        """Note that the head is whole."""
        self.is_complete = True


class HeadReader:
    """Reads one head, in whatever pieces it comes."""

    __slots__ = (
        "_has_line",
        "_held",
        "_limit",
        "_line",
        "_parsed",
        "_parser",
        "_tail",
        "size",
    )

    def __init__(self, limit: int) -> None:
        """`limit`: the largest head in bytes; 0 disables it."""
        self._limit = limit
        self.size = 0
        self._held = b""  # of a line that comes in small pieces: to look at each of them costs more than it is worth
        self._tail = b""  # the last bytes that were parsed: the end of a head may be cut
        self._line = b""  # the request line, as far as it has come
        self._has_line = False  # all of it
        self._parsed = _Parsed()
        self._parser = httptools.HttpRequestParser(self._parsed)

    @property
    def is_complete(self) -> bool:
        """True if all of the head has come."""
        return self._parsed.is_complete

    def feed(self, data: bytes) -> int:
        """Take what has come, and return how many bytes of it belong to the head; raise `WireError`."""
        held = len(self._held)
        room = min(_HELD, self._limit - self.size) if self._limit else _HELD
        if b"\n" not in data and held + len(data) <= room:
            self._held += data
            if not self._line and not _BEGINNING.fullmatch(self._held):
                raise _bad("it does not begin with a method")
            return len(data)
        data, self._held = self._held + data, b""
        return self._parse(data) - held

    def _parse(self, data: bytes) -> int:
        joined = self._tail + data
        end = joined.find(END)
        taken = len(data) if end < 0 else end + len(END) - len(self._tail)
        self.size += taken
        if self._limit and self.size > self._limit:
            room = self._limit - self.size + taken
            if room > 0:
                self._feed(data[:room])  # to know what is too large
            raise self._too_large()
        self._feed(data[:taken])
        self._tail = joined[-_BEFORE_END:] if end < 0 else b""
        return taken

    def _feed(self, piece: bytes) -> None:
        # A LF that has come was behind a CR, or it would have been refused.
        before = b"\r\n" if self._tail[-1:] == b"\n" else self._tail[-1:]
        if _CONTROLS.search(before + piece.removesuffix(b"\r")):
            raise _bad("it has a control character, a bare CR or LF, or a folded line")
        if not self._has_line:
            self._read_line(piece)
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            pass  # no other protocol is spoken here, so the offer is ignored (RFC 9110, section 7.8)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, WireError):
                raise cause from None
            raise _bad(str(error)) from None

    def _read_line(self, piece: bytes) -> None:
        """Check what the parser forgives: spaces, other protocols, and no version."""
        line, end, _ = (self._line + piece).lstrip(b"\r\n").partition(b"\r\n")
        self._line = line
        if end:
            self._has_line = True
            if _REQUEST_LINE.fullmatch(line) is None:
                raise _bad("its first line must be a method, a target and HTTP/1.1, with one space between them")

    def _too_large(self) -> WireError:
        if 2 * len(self._parsed.target) > self._limit:
            text = f"The request target is longer than the limit of {self._limit} bytes for a head."
            return WireError(HTTPStatus.REQUEST_URI_TOO_LONG, f"{text} The server's --max-head-size sets it.")
        text = f"The head of the request is larger than the limit of {self._limit} bytes."
        return WireError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"{text} The server's --max-head-size sets it.")

    def result(self) -> RequestHead:
        """Return the head, which is complete; raise `WireError` if it is none that can be served."""
        version = self._parser.get_http_version()
        if version not in _VERSIONS:
            raise WireError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "This server speaks HTTP/1.1 and HTTP/1.0.")
        is_modern = version == "1.1"
        method = self._parser.get_method().decode()
        parsed = self._parsed
        hosts = [value for name, value in parsed.fields if name == b"host"]
        if len(hosts) != 1 and (is_modern or hosts):
            raise _bad("it must have exactly one Host field")
        if hosts and _HOST.fullmatch(hosts[0]) is None:
            raise _bad("its Host field is not a host with an optional port")
        path, query = self._read_target(method)
        length = _read_length(parsed.fields, is_modern=is_modern)
        keeps_alive = _keeps_alive(parsed.fields, is_modern=is_modern)
        head = Head(method, path, query, parsed.fields, length)
        return RequestHead(head, keeps_alive, is_modern, is_modern and _expects_continue(head))

    def _read_target(self, method: str) -> tuple[bytes, bytes]:
        """Return path and query (RFC 9112, section 3.2); the authority of an absolute target replaces `Host`."""
        parsed = self._parsed
        target = parsed.target
        if method == "CONNECT":
            raise WireError(HTTPStatus.NOT_IMPLEMENTED, "This server is no proxy: it does not know CONNECT.")
        if target[:1] != b"/":
            absolute = _ABSOLUTE.fullmatch(target)
            if absolute is not None and _HOST.fullmatch(absolute[1]) is not None:
                fields = [field for field in parsed.fields if field[0] != b"host"]
                if len(fields) < len(parsed.fields):
                    parsed.fields = [(b"host", absolute[1]), *fields]
                target = absolute[2] if absolute[2][:1] == b"/" else b"/" + absolute[2]
            elif target != b"*" or method != "OPTIONS":
                raise _bad("its target must begin with a slash or be an http:// URL with a host")
        if b"#" in target:
            raise _bad("its target has a fragment")
        path, _, query = target.partition(b"?")
        return path, query


def read_head(data: bytes, limit: int) -> tuple[RequestHead, int] | None:
    """Return the head at the beginning of `data` and its size; None if it is not complete. Raises `WireError`."""
    reader = HeadReader(limit)
    at = 0
    while not reader.is_complete:
        if at == len(data):
            return None
        at += reader.feed(data[at:])
    return reader.result(), at


def _bad(fault: str) -> WireError:
    return WireError(HTTPStatus.BAD_REQUEST, f"The request is not valid HTTP/1.1: {fault}.")


def _read_length(fields: list[tuple[bytes, bytes]], *, is_modern: bool) -> int:
    """Return the length of the body as `Head.length` has it (RFC 9112, section 6)."""
    lengths = [value for name, value in fields if name == b"content-length"]
    codings = [value.lower() for name, value in fields if name == b"transfer-encoding"]
    if codings:
        if lengths or not is_modern:
            raise _bad("Transfer-Encoding cannot stand beside Content-Length or in HTTP/1.0")
        if codings == [b"chunked"]:
            return UNKNOWN_LENGTH
        if codings[-1].rpartition(b",")[2].strip() != b"chunked":
            raise _bad("the last transfer coding of a request must be chunked")
        text = (
            "This server knows no transfer coding but chunked, and that once. Use Content-Encoding to compress a body."
        )
        raise WireError(HTTPStatus.NOT_IMPLEMENTED, text)
    if not lengths:
        return NO_BODY
    if len(lengths) > 1 or not lengths[0].isdigit() or len(lengths[0]) > _MOST_DIGITS:
        raise _bad("Content-Length must be one number of bytes")
    return int(lengths[0])


def _keeps_alive(fields: list[tuple[bytes, bytes]], *, is_modern: bool) -> bool:
    """Return True if the client may send another request on the connection (RFC 9112, section 9.3)."""
    options = {
        option.strip(b" \t") for name, value in fields if name == b"connection" for option in value.lower().split(b",")
    }
    return b"close" not in options and (is_modern or b"keep-alive" in options)


def _expects_continue(head: Head) -> bool:
    expectation = head.header(b"expect")
    if expectation is None:
        return False
    if expectation.lower() != b"100-continue":
        raise WireError(HTTPStatus.EXPECTATION_FAILED, "The only expectation that this server knows is 100-continue.")
    return True


class KnownHead(msgspec.Struct, frozen=True, gc=False):
    """A known head of HTTP/1.1, on a connection that goes on after the request.

    Attributes:
        accepted: the decision of its handler.
        length: bytes of the body.
        terms: the required form of answers.
        new_record: makes the records of its requests.
    """

    accepted: Accepted
    length: int
    terms: Terms
    new_record: NewRecord


class HeadCache:
    """The heads of a server's latest clients: of all connections together, since clients are often of one kind."""

    def __init__(self) -> None:
        self._known: dict[bytes, KnownHead] = {}
        self.generation = 0  # number of times that all have been forgotten
        self.find = self._known.get  # known head by its bytes, end included; None for an unknown one

    def learn(self, head: bytes, known: KnownHead) -> None:
        """Remember a head that came in one piece."""
        if len(head) > _LARGEST or not head.endswith(END):
            return
        if len(self._known) >= MAX_HEADS:
            self._known.clear()
        self._known[head] = known

    def clear(self) -> None:
        """Forget all heads: their handlers might decide otherwise now."""
        self._known.clear()
        self.generation += 1


class ParsedHeads:
    """Heads without their paths, of all connections together: a client that PUTs many ids changes nothing else."""

    def __init__(self, limit: int) -> None:
        """`limit`: the largest head in bytes that is accepted; 0 disables it."""
        self._longest = min(limit, _LARGEST) if limit else _LARGEST
        self._known: dict[tuple[bytes, bytes], RequestHead] = {}

    def recall(self, head: bytes) -> RequestHead | None:
        """Return the known head that differs in the path alone, None if there is none. Takes any bytes."""
        before, path, after = _without_path(head)
        known = self._known.get((before, after))
        if known is None or len(head) > self._longest or _PLAIN_PATH.fullmatch(path) is None:
            return None
        other = known.head
        return RequestHead(
            Head(other.method, path, b"", other.headers, other.length),
            known.keeps_alive,
            known.is_modern,
            known.expects_continue,
        )

    def learn(self, head: bytes, request: RequestHead) -> None:
        """Remember what a head says that came in one piece, unless it has ids of its own besides the path."""
        if len(head) > self._longest or not head.endswith(END) or request.head.is_unique:
            return
        before, path, after = _without_path(head)
        if path != request.head.path or _PLAIN_PATH.fullmatch(path) is None:
            return
        if len(self._known) >= MAX_HEADS_WITHOUT_PATH:
            self._known.clear()
        self._known[before, after] = request


def _without_path(head: bytes) -> tuple[bytes, bytes, bytes]:
    """Split a head into the part before the target of a request, the target, and the part behind it."""
    begin = head.find(b" ") + 1
    end = head.find(b" ", begin)
    return head[:begin], head[begin:end], head[end:]
