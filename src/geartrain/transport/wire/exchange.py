"""Interface of a wire and a handler for one request and its answer.

A wire reads the head of a request and gives it to a `Handler`. The handler answers at once, or returns the form and the
receiver of the body: an `Exchange`, made for this request with the `Responder` that its answer goes to. HTTP/1.1,
HTTP/2 and ASGI are three wires; a handler cannot tell them apart, but for trailers, which HTTP/2 alone has.

Everything here runs on the event loop. The order of calls for one request: `Handler.begin`, `Accepted.new_exchange`,
`Exchange.receive` once, then one `Responder.respond` or one `Responder.open_stream`. `Exchange.abandon` may come at any
time before the answer is complete, and nothing comes after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final, Protocol

import msgspec

from geartrain.domain.principal import ANYONE, Principal
from geartrain.domain.tensors.tensor import Buffer

Body = bytes | bytearray
Headers = Sequence[tuple[bytes, bytes]]  # names in lower case, in the order in which they came
Fields = tuple[tuple[bytes, bytes], ...]

JSON: Final = ((b"content-type", b"application/json"),)
NO_BODY: Final = 0
UNKNOWN_LENGTH: Final = -1
NOWHERE: Final = -1
_IDS: Final = frozenset({b"x-request-id", b"traceparent"})
logger = logging.getLogger(__name__)


class ClientGoneError(Exception):
    """The client has disconnected; further output has no reader."""


def _allow(_: str) -> None:
    """Allow a client every model."""


class RequestNotes(msgspec.Struct, gc=False):
    """Notes of a handler about requests with one head.

    Requests with the same head share them.

    Attributes:
        protocol: the name of that of the request, or `system`.
        shows_logs: true if the answers of the protocol have a place for the prints of a run.
        key: the name of the key that the client has shown; empty for none.
        model: that the request names; empty for none.
        is_routine: true for the many that watch a server, such as probes.
        prediction_id: of the prediction that the request is about, where it runs none.
        is_relayed: true if another server has checked the client and handed the request over.
        principal: the client, as the owner of predictions.
        models: patterns of the models that the client's key is for.
        check_model: raises `GeartrainError` for the name of a model that the client's key is not for.
    """

    protocol: str = "system"
    shows_logs: bool = True
    key: str = ""
    model: str = ""
    is_routine: bool = False
    prediction_id: str = ""
    is_relayed: bool = False
    principal: Principal = ANYONE
    models: tuple[str, ...] = ("*",)
    check_model: Callable[[str], None] = _allow


class Head(msgspec.Struct, frozen=True, gc=False):
    """The head of a request.

    Attributes:
        method: as it came, such as `POST`; methods are case-sensitive.
        path: percent-encoded as it came, without the query. It begins with a slash, or is `*`.
        query: what follows the first `?`, without it; empty if there is none.
        headers: all of them. A name may come several times.
        length: `Content-Length` in bytes, 0 for no body, `UNKNOWN_LENGTH` for one that comes in chunks.
        has_trailers: whether the answer may have trailers, as gRPC needs them: over HTTP/2.
        root: what stands before `path` for a client, percent-encoded, where this server is mounted in another one. What
            links to a path of this server begins with it.
        notes: for the handler to fill in.
    """

    method: str
    path: bytes
    query: bytes
    headers: Headers
    length: int = NO_BODY
    root: str = ""
    has_trailers: bool = False
    notes: RequestNotes = msgspec.field(default_factory=RequestNotes)

    def header(self, name: bytes) -> bytes | None:
        """Return the value of the first header of this name (in lower case), None without one."""
        for each, value in self.headers:
            if each == name:
                return value
        return None

    @property
    def is_unique(self) -> bool:
        """True if it has an id of its request, so that no other request is likely to have the same head."""
        return any(name in _IDS for name, _ in self.headers)


class Answer(msgspec.Struct, frozen=True):
    """A whole answer, whose body may be in parts. The wire adds its length, the date, and what framing needs.

    Attributes:
        status: of HTTP.
        parts: the body. None at all, as opposed to an empty one, for an answer of gRPC that is a head alone.
        headers: names in lower case.
        trailers: fields behind the body. Only for requests with `Head.has_trailers`; such an answer has no length.
        error: the reason of a refusal, for the log.
    """

    status: HTTPStatus
    parts: Sequence[Buffer] = (b"",)
    headers: tuple[tuple[bytes, bytes], ...] = JSON
    trailers: tuple[tuple[bytes, bytes], ...] = ()
    error: str = ""


class AnswerStream(Protocol):
    """The body of an answer whose length is not known beforehand."""

    async def write(self, data: bytes) -> None:
        """Send a piece; wait while the client does not read. Raises `ClientGoneError`."""

    def end(self) -> None:
        """Complete the body. Does nothing if the client has disconnected."""

    def abort(self) -> None:
        """Break off, so that the client notices that the body is not whole. Does nothing if it has disconnected."""


class MessageStream(AnswerStream, Protocol):
    """The body of an answer to a request with `Head.has_trailers`."""

    def send(self, *parts: Buffer) -> None:
        """Send a piece without waiting; call `drained` before there are many. It is dropped if the client has gone."""

    async def drained(self) -> None:
        """Wait while the client does not read. Raises `ClientGoneError`."""

    def end(self, trailers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """Complete the body; a request that is still coming is ignored."""


class Record(Protocol):
    """Record of one request, from its head to the end of its answer: a wire makes it, and fills it in.

    Attributes:
        received: bytes of the body so far.
        sent: bytes of the body of the answer so far.
        error: the reason of a refusal.
    """

    received: int
    sent: int
    error: str

    def fields(self) -> Fields:
        """Return the header fields that the answer has besides its own, such as the id of the request."""

    def lines(self) -> bytes:
        """Return the fields as the lines of a head of HTTP/1.1."""

    def end(self, status: int, trailers: Fields = ()) -> None:
        """Note that the answer is complete; `trailers` are those of gRPC, wherever they stand."""

    def leave(self) -> None:
        """Note that the client has left before the answer was complete."""


class NoRecord:
    """Keeps nothing of a request."""

    received = 0
    sent = 0
    error = ""

    def fields(self) -> Fields:
        """Return none."""
        return ()

    def lines(self) -> bytes:
        """Return none."""
        return b""

    def end(self, status: int, trailers: Fields = ()) -> None:
        """Do nothing."""

    def leave(self) -> None:
        """Do nothing."""


NO_RECORD: Final[Record] = NoRecord()
NewRecord = Callable[[str], Record]  # of a client's address
Records = Callable[[Head], NewRecord]
"""Gives, of a head about which the handler has decided, what makes the records of the requests that have it."""


def keep_nothing(_: Head) -> NewRecord:
    """Keep no records. See `Records`."""
    return lambda _peer: NO_RECORD


class Responder(Protocol):
    """Receiver of the answer to one request. Output after the client has left is dropped."""

    @property
    def record(self) -> Record:
        """The record of the request, made by the `Records` of the wire."""

    def respond(self, answer: Answer) -> None:
        """Send a whole answer."""

    def open_stream(self, status: HTTPStatus, headers: tuple[tuple[bytes, bytes], ...]) -> AnswerStream:
        """Send the head of an answer whose body follows in pieces."""


class BodyReader(Protocol):
    """The body of a request in pieces. No more is read from the client than has been taken, but for a small buffer."""

    async def read(self) -> bytes:
        """Return the next piece, `b""` at the end.

        Raises `ClientGoneError` if it will never come whole, `GeartrainError` (`TOO_LARGE`) beyond the limit.
        """


class MessageReader(BodyReader, Protocol):
    """The body of a request with `Head.has_trailers`."""

    async def gather(self, size: int) -> Body:
        """Return the next `size` bytes in one piece; fewer if the body ends before.

        They count as buffered until the next call. Raises `ClientGoneError` if they will never come.
        """


class BodyMemory(Protocol):
    """Memory for bodies that workers can read where they have been received."""

    def take(self, size: int, contents_at: int) -> memoryview | None:
        """Return memory for a body of `size` bytes, None if there is none to spare. See `Accepted.contents_at`.

        It is given back when no view of it is left.
        """

    def tidy(self) -> None:
        """Give the system what has not been used since the last call, which was about a second ago."""

    def close(self) -> None:
        """Lend nothing more. Repeating it is harmless."""


class Exchange(Protocol):
    """One request, from the end of its head to its answer."""

    def receive(self, body: Body) -> None:
        """Take the whole body, and answer now or later. Raises nothing."""

    def abandon(self) -> None:
        """Note that the client has disconnected. Raises nothing."""


class PartsExchange(Protocol):
    """One request whose body is read in pieces."""

    def receive(self, body: BodyReader) -> None:
        """Take a body whose pieces are still coming, and answer later. Raises nothing."""

    def abandon(self) -> None:
        """Note that the client has disconnected. Raises nothing."""


def unannounced(_: Buffer) -> int:
    """Return that the length of a body is not told by its first bytes."""
    return UNKNOWN_LENGTH


def without_contents(_: Buffer) -> int:
    """Return that the place of contents is not told by the first bytes of a body."""
    return NOWHERE


class Accepted(msgspec.Struct, frozen=True):
    """A request whose body is wanted.

    Attributes:
        new_exchange: makes what takes the body. It may be called once for every request with exactly this head, also
            later and on other connections, unless `is_reusable` is False.
        max_body: the largest body in bytes; the wire refuses a larger one with the answer of `refuse_size`.
        refuse_size: makes that answer, in the form of the protocol.
        is_reusable: whether a later request with the same head may go to `new_exchange` without asking the handler.
        announced: reads the length of the whole body from its first bytes, where the head does not tell it and the body
            does; `UNKNOWN_LENGTH` if it cannot be told, or not yet.
        contents_at: where the contents of a tensor begin in the body, which then may come as a writable
            view of memory that workers read; `NOWHERE` for a body that is to come as bytes.
        contents_of: reads `contents_at` from the first bytes of a body, where the head does not tell it and they do.
    """

    new_exchange: Callable[[Responder], Exchange]
    max_body: int
    refuse_size: Callable[[int], Answer]
    is_reusable: bool = True
    announced: Callable[[Buffer], int] = unannounced
    contents_at: int = NOWHERE
    contents_of: Callable[[Buffer], int] = without_contents


class AcceptedInParts(msgspec.Struct, frozen=True):
    """A request whose body is wanted in pieces. Attributes as those of `Accepted`, and one more.

    Attributes:
        is_bidirectional: whether the client may take its time between two pieces, as it answers what it is told. Only
            for requests with `Head.has_trailers`. Its reader is a `MessageReader`, its stream a `MessageStream`.
    """

    new_exchange: Callable[[Responder], PartsExchange]
    max_body: int
    refuse_size: Callable[[int], Answer]
    is_bidirectional: bool = False


Decision = Accepted | AcceptedInParts | Answer  # of a request


class Handler(Protocol):
    """Takes requests by their heads."""

    def begin(self, head: Head) -> Decision:
        """Decide what becomes of a request, before its body is read. An answer refuses it, or is all it needs."""


def abandon(exchange: Exchange | PartsExchange | None) -> None:
    """Abandon an exchange, whatever it raises; None where it has not been made, or is over."""
    try:
        if exchange is not None:
            exchange.abandon()
    except Exception:
        logger.exception("a handler failed when its client had left")
