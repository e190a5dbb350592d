"""Mixes of pipelined requests, most of them good, and what h11 says that they are.

h11 reads the bytes of a mix and finds requests, or an error; a server is asked the same. Where both disagree without a
reason that stands in the table, one of them reads where another server would not: that is how requests are
smuggled.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import h11
import msgspec

MAX_HEAD: Final = 32 * 1024
REFUSALS: Final = frozenset({400, 408, 413, 414, 417, 431, 501, 505})
_HOST: Final = rb"(?i)\nhost:(?![ \t]*(?:[a-z0-9\-._~%!$&'()*+,;=]+|\[[0-9a-f:.]+\])(?::[0-9]{0,5})?[ \t]*\r?\n)"
_OUR_HOST: Final = rb"(?i)\nhost:[ \t]*localhost[ \t]*\r"
_SPACED_EXTENSION: Final = re.compile(rb"(\r\n[0-9A-Fa-f]+)[ \t]+;")
_EMPTY_LINES: Final = re.compile(rb"\A(?:\r\n)+")
_HAS_BODY: Final = rb"(?i)\n(?:content-length|transfer-encoding)[ \t]*:"


class Seen(Protocol):
    """An answer, as a client has read it."""

    status: int
    headers: dict[str, str]
    body: bytes


class Request(msgspec.Struct, frozen=True):
    """A request that h11 has found. `raw`: its bytes, with what stands before it."""

    method: str
    target: str
    content_type: str
    body: bytes
    raw: bytes


class Verdict(msgspec.Struct, frozen=True):
    """What h11 makes of some bytes. `end`: "error", "close", "incomplete", or "open"; `rest`: the bytes behind."""

    requests: Sequence[Request]
    end: str
    rest: bytes


class Mix(msgspec.Struct, frozen=True):
    """Some bytes, and where they are cut."""

    data: bytes
    cuts: Sequence[int]

    @property
    def pieces(self) -> list[bytes]:
        """The bytes as they are sent."""
        bounds = [0, *self.cuts, len(self.data)]
        return [self.data[begin:end] for begin, end in itertools.pairwise(bounds) if end > begin]


# making them


def make_mix(chance: random.Random) -> Mix:
    """Return a few requests, one of them faulty in every other mix, and a last one that ends the connection.

    One mix in twenty breaks off.
    """
    requests = [_request(chance) for _ in range(chance.randint(1, 5))]
    if chance.random() < 0.5:  # noqa: PLR2004
        at = chance.randrange(len(requests))
        requests[at] = chance.choice(FAULTS)(requests[at], chance)
    data = b"".join(requests) + b"GET /health-check HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    if chance.random() < 0.05:  # noqa: PLR2004
        data = data[: chance.randint(1, len(data))]
    cuts = sorted(chance.randrange(len(data)) for _ in range(chance.randint(0, 6)))
    return Mix(data, cuts)


def _request(chance: random.Random) -> bytes:
    kind = chance.random()
    if kind < 0.2:  # noqa: PLR2004
        target = chance.choice(["/health-check", "/", "/nothing", "/health-check?a=b", "/predictions"])
        return _head(chance, chance.choice(["GET", "GET", "HEAD"]), target, []) + b"\r\n"
    body = json.dumps({"input": {"s": "s" * chance.randrange(200) + str(chance.random())}}).encode()
    fields = [b"Content-Type: application/json"]
    if kind < 0.6:  # noqa: PLR2004
        fields.append(b"Content-Length: %d" % len(body))
    else:
        fields.append(chance.choice([b"Transfer-Encoding: chunked", b"transfer-encoding: Chunked"]))
        body = _chunks(chance, body)
    return _head(chance, "POST", "/predictions", fields) + b"\r\n" + body


def _head(chance: random.Random, method: str, target: str, fields: list[bytes]) -> bytes:
    more = [b"X-%d: %b" % (number, b"v" * chance.randrange(30)) for number in range(chance.randrange(4))]
    fields = [b"Host: localhost", *fields, *more]
    chance.shuffle(fields)
    spaced = [field.replace(b": ", chance.choice([b": ", b":", b":  ", b":\t"]), 1) for field in fields]
    lines = [f"{method} {target} HTTP/1.1".encode(), *(chance.choice([each, each + b" "]) for each in spaced), b""]
    return b"\r\n".join(lines)


def _chunks(chance: random.Random, body: bytes) -> bytes:
    pieces = []
    while body:
        size = chance.randint(1, len(body))
        written = (b"%x" if chance.random() < 0.5 else b"%X") % size  # noqa: PLR2004
        extension = chance.choice([b"", b"", b";a", b";a=b", b';a="b c"'])
        pieces.append(written + extension + b"\r\n" + body[:size] + b"\r\n")
        body = body[size:]
    return b"".join(pieces) + b"0\r\n" + chance.choice([b"", b"X: y\r\n", b"X: y\r\nZ:\r\n"]) + b"\r\n"


Fault = Callable[[bytes, random.Random], bytes]


def _flip(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]


def _drop(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + data[at + chance.randint(1, 3) :]


def _insert(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return (
        data[:at] + chance.choice([b"\r", b"\n", b"\r\n", b" ", b"\t", b"\x00", b":", b";", b"0", b"\xff"]) + data[at:]
    )


def _repeat_a_line(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\r\n")
    at = chance.randrange(len(lines))
    return b"\r\n".join([*lines[:at], lines[at], *lines[at:]])


def _drop_a_line(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\r\n")
    del lines[chance.randrange(len(lines))]
    return b"\r\n".join(lines)


def _swap_a_value(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\r\n")
    at = chance.randrange(len(lines))
    name = lines[at].partition(b":")[0]
    lines[at] = (
        name
        + b": "
        + chance.choice([b"", b"0", b"5", b"+5", b"gzip", b"close", b"chunked, gzip", b"a b", b"100-continue"])
    )
    return b"\r\n".join(lines)


def _add_a_field(data: bytes, chance: random.Random) -> bytes:
    line, _, rest = data.partition(b"\r\n")
    return line + b"\r\n" + chance.choice(FIELDS) + b"\r\n" + rest


def _swap_the_line(data: bytes, chance: random.Random) -> bytes:
    return chance.choice(LINES) + b"\r\n" + data.partition(b"\r\n")[2]


def _space_a_chunk(data: bytes, chance: random.Random) -> bytes:
    before, after = chance.choice([(b";a", b" ;a"), (b"\r\n0\r\n", b"\r\n0 \r\n")])
    return data.replace(before, after, 1)


FIELDS: Final = (
    b"Content-Length: 5", b"Content-Length: 0", b"Content-Length: -1", b"Content-Length: 1, 1", b"Content-Length:",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", b"Transfer-Encoding: gzip, chunked", b"Host: other",
    b"Transfer-Encoding : chunked", b" folded", b"X: a\r\n b", b"X: a\rb", b"X: a\nb", b"X", b": x", b"X y: z",
    b"Connection: close", b"Connection: keep-alive", b"Connection: Upgrade\r\nUpgrade: h2c", b"Upgrade: foo",
    b"Expect: 100-continue", b"Expect: other", b"X: \x01", b"X: \x7f", b"X: \xff", b"TE: trailers",
)  # fmt: skip
LINES: Final = (
    b"get /health-check HTTP/1.1", b"GET /health-check HTTP/1.0", b"GET /health-check HTTP/2.0", b"GET  / HTTP/1.1",
    b"GET /health-check", b"GET /\x00 HTTP/1.1", b"POST /predictions HTTP/1.0", b"OPTIONS * HTTP/1.1", b"",
    b"GET http://localhost/ HTTP/1.1", b"CONNECT localhost:80 HTTP/1.1", b"FROB / HTTP/1.1", b"GET /a#b HTTP/1.1",
    b"GET / HTTP/1.1 ", b" GET / HTTP/1.1", b"GET /a b HTTP/1.1", b"PUT /predictions/x HTTP/1.1", b"GET / http/1.1",
)  # fmt: skip
FAULTS: Final[tuple[Fault, ...]] = (
    _flip, _drop, _insert, _repeat_a_line, _drop_a_line, _swap_a_value, _add_a_field, _add_a_field, _swap_the_line,
    _space_a_chunk,
)  # fmt: skip


# what h11 says


def judge(data: bytes) -> Verdict:
    """Return the requests that h11 finds, each answered before the next, and how it ends.

    Two things are taken away first, which h11 refuses: empty lines before a request, which a server should ignore, and
    white space before the extension of a chunk, which it has to remove (RFC 9112, sections 2.2 and 7.1.1).
    """
    data = _SPACED_EXTENSION.sub(rb"\1;", data)
    requests: list[Request] = []
    try:
        while True:
            data = _EMPTY_LINES.sub(b"", data)
            connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
            connection.receive_data(data)
            found = _next_request(connection, data)
            if found is None:
                return Verdict(requests, "incomplete" if data else "open", data)
            requests.append(found)
            data = data[len(found.raw) :]
            connection.send(h11.Response(status_code=404, headers=[(b"content-length", b"0")]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is not h11.DONE:
                return Verdict(requests, "close", data)
    except h11.RemoteProtocolError:
        return Verdict(requests, "error", data)


def _next_request(connection: h11.Connection, data: bytes) -> Request | None:
    head: Any = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            raw = data[: len(data) - len(connection.trailing_data[0])]
            kinds = [value.decode("latin-1") for name, value in head.headers if name == b"content-type"]
            target = head.target.decode("latin-1")
            return Request(head.method.decode(), target, "".join(kinds), bytes(body), raw)
        else:
            return None


# what may differ

STRICTER: Final[tuple[tuple[str, bytes], ...]] = (
    ("a bare LF ends no line (RFC 9112, 2.2: may be taken for one)", rb"(?<!\r)\n"),
    ("a bare CR is refused (RFC 9112, 2.2: or replaced by a space)", rb"\r(?!\n)"),
    ("a folded line is refused (RFC 9112, 5.2: or unfolded)", rb"\r\n[ \t]"),
    ("a control in a value (RFC 9110, 5.5: may be kept)", rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"),
    (
        "Content-Length beside Transfer-Encoding (RFC 9112, 6.1: may be refused)",
        rb"(?is)^(?=.*\ncontent-length[ \t]*:).*\ntransfer-encoding",
    ),
    (
        "Content-Length twice (RFC 9110, 8.6: may be merged)",
        rb"(?is)\ncontent-length:.*\ncontent-length:|\ncontent-length:[^\r]*,",
    ),
    (
        "a transfer coding in HTTP/1.0 (RFC 9112, 6.1: to be taken as faulty)",
        rb"(?is)^[^\n]* HTTP/1\.0\r?(?=\n).*\ntransfer-encoding",
    ),
    ("white space behind the size of a chunk (RFC 9112, 7.1: before an extension)", rb"\n[0-9A-Fa-f]+[ \t]+\r\n"),
    ("a Host that is none (RFC 9112, 3.2: 400; h11 does not look)", _HOST),
    ("a version that is neither 1.0 nor 1.1", rb"(?s)\A\s*[^\n]*HTTP/(?!1\.[01]\r?\n)"),
    ("a method that nobody knows is refused by the parser", rb"\A\s*(?!(?:GET|HEAD|POST|PUT|OPTIONS|DELETE|PATCH) )"),
    ("a target of no form that RFC 9112, 3.2, knows for its method", rb"\A\s*\S+ +(?!/|https?://)"),
    ("a fragment in the target, or a byte that no URI has", rb"\A\s*\S+ +\S*[#\x80-\xff\"<>\\^`{|}]"),
    ("an expectation that nobody knows is 417", rb"(?i)\nexpect:(?![ \t]*100-continue[ \t]*\r\n)"),
)  # fmt: skip
"""Why a request is refused that h11 takes, and what its bytes then match."""


def difference(mix: Mix, answers: Sequence[Seen]) -> str:
    """Return how the answers to a mix differ from what h11 finds in it, "" if they do not or may."""
    verdict = judge(mix.data)
    finals = [answer for answer in answers if answer.status >= 200]  # noqa: PLR2004
    for index, request in enumerate(verdict.requests):
        if index >= len(finals):
            return f"no answer to request {index}"
        if _is_refusal(finals[index]):
            reasons = [text for text, pattern in STRICTER if re.search(pattern, request.raw)]
            if not reasons:
                return f"request {index} is refused: {finals[index].body!r}"
            return "" if index == len(finals) - 1 else "there are answers after a refusal"
        fault = _wrong(request, finals[index])
        if fault:
            return f"request {index}: {fault}"
        if _is_early(request, finals[index]):
            return "" if index == len(finals) - 1 else "there are answers after an early one"
    more = finals[len(verdict.requests) :]
    if verdict.end == "error":
        return _differs_at_error(verdict, more)
    if verdict.end == "close" and more:
        return "there are answers behind the end"
    if not _may_be_answered(verdict, more):
        return "there are answers to requests that nobody has completed"
    return ""


def _may_be_answered(verdict: Verdict, more: Sequence[Seen]) -> bool:
    """Whether half a request may get these answers: a refusal, or one that does not wait for the body."""
    if len(more) != 1:
        return not more
    return _is_refusal(more[0]) or (re.search(_HAS_BODY, verdict.rest) is not None and b'"output"' not in more[0].body)


def _differs_at_error(verdict: Verdict, more: Sequence[Seen]) -> str:
    if not more:
        return "what h11 refuses gets no answer"
    if _is_refusal(more[0]):
        return "" if len(more) == 1 else "there are answers after a refusal"
    if len(more) == 1 and _closes(more[0]) and re.search(_HAS_BODY, verdict.rest):
        return ""  # it did not read the body, where the fault is
    return f"what h11 refuses is served: {more[0].status} {more[0].body!r}"


def _is_refusal(answer: Seen) -> bool:
    """Whether an answer is of the wire, not of an endpoint: the connection ends after it."""
    return answer.status in REFUSALS and _closes(answer)


def _is_early(request: Request, answer: Seen) -> bool:
    """Whether an endpoint answers without reading the body, so that the connection ends (RFC 9112, 9.3)."""
    return _closes(answer) and bool(request.body)


def _closes(answer: Seen) -> bool:
    return answer.headers.get("connection") == "close"


def _wrong(request: Request, answer: Seen) -> str:
    """Return what is wrong with the answer to a request that was understood, "" if nothing is."""
    if answer.status == 403 and not re.search(_OUR_HOST, request.raw):  # noqa: PLR2004
        return ""
    if request.method == "POST" and request.target == "/predictions":
        wanted = _echo_of(request)
        if wanted is None:
            return "" if answer.status in {200, 400, 415, 422} else f"status {answer.status}"
        output = json.loads(answer.body).get("output") if answer.status == 200 else None  # noqa: PLR2004
        return "" if output == wanted else f"{wanted!r} became {answer.status} {answer.body!r}"
    return "" if answer.status < 500 or answer.status == 501 else f"status {answer.status}"  # noqa: PLR2004


def _echo_of(request: Request) -> str | None:
    """Return what a good prediction gives back, None for another."""
    try:
        values = json.loads(request.body)["input"]
    except (ValueError, KeyError, TypeError):
        return None
    if request.content_type != "application/json" or set(values) != {"s"} or not isinstance(values["s"], str):
        return None
    return str(values["s"])
