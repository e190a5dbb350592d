"""Requests as they came, and answers as they go: bodies of any kind, and tensors of any names.

A parameter of `run()` that is annotated `Request` or `Tensors` is its only one. `Response` and `Tensors` annotate what
it returns.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterable, Iterable, Mapping
from functools import cached_property
from typing import Any, Final
from urllib.parse import parse_qsl

JSON_TYPE: Final = "application/json"
TEXT_TYPE: Final = "text/plain; charset=utf-8"
BINARY_TYPE: Final = "application/octet-stream"

FRAMING: Final = frozenset(
    {
        "connection",
        "content-length",
        "date",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Header fields of one connection, which the server writes."""

MAX_HEADERS: Final = 100
MAX_HEADER_BYTES: Final = 16_384  # names and values together
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_STATUSES: Final = range(200, 600)
_BODILESS: Final = frozenset({204, 205, 304})

Headers = Mapping[str, str] | Iterable[tuple[str, str]]
Content = bytes | bytearray | memoryview | str | Iterable[bytes] | AsyncIterable[bytes]


class Request:
    """A request as it came.

    Attributes:
        body: the bytes of the body.
        content_type: value of the header, such as `image/png`; empty without one.
        accept: value of the header; empty without one.
        headers: the other fields by their names in lower case; those of several lines are joined with `, `. Without
            `Authorization`, cookies and the fields of one connection.
        query: what follows the `?` of the path, as it came.
        method: such as `POST`.
        path: as it came, percent-encoded.
    """

    __slots__ = ("__dict__", "accept", "body", "content_type", "headers", "method", "path", "query")

    def __init__(
        self,
        body: bytes | str = b"",
        content_type: str = "",
        *,
        accept: str = "",
        headers: Mapping[str, str] | None = None,
        query: str = "",
        method: str = "POST",
        path: str = "/invoke",
    ) -> None:
        self.body = body.encode() if isinstance(body, str) else body
        self.content_type = content_type
        self.accept = accept
        self.headers: dict[str, str] = {name.lower(): value for name, value in (headers or {}).items()}
        self.query = query
        self.method = method
        self.path = path

    @cached_property
    def parameters(self) -> dict[str, str]:
        """The decoded query; of a name that comes several times, the last value."""
        return dict(parse_qsl(self.query, keep_blank_values=True))

    @property
    def media_type(self) -> str:
        """The content type without its parameters, in lower case."""
        return media_type_of(self.content_type)

    @property
    def text(self) -> str:
        """The body as text, in the charset of the content type, or UTF-8. Raises `ValueError`."""
        charset = re.search(r'charset="?([^\s";]+)', self.content_type)
        try:
            return self.body.decode(charset[1] if charset else "utf-8")
        except LookupError as error:
            raise ValueError(f"the charset of the body is not known: {error}") from None

    def json(self) -> Any:
        """Decode the body. Raises `ValueError` if it is no JSON, or nested too deeply."""
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    def __repr__(self) -> str:
        return f"<Request {self.method} {self.path} {self.content_type or '-'} {len(self.body)} bytes>"


class Response:
    """An answer: a status, a content type, header fields and a body.

    `content` is bytes, text, any value that becomes JSON, or an iterator of bytes, which is streamed.
    """

    __slots__ = ("content", "content_type", "headers", "status")

    def __init__(
        self,
        content: Any = b"",
        content_type: str | None = None,
        *,
        status: int = 200,
        headers: Headers | None = None,
    ) -> None:
        """`content_type` follows from `content` unless it is given.

        Raises `ValueError` for a status that is none, and for header fields that a response must not have.
        """
        pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
        self.content = content
        self.headers = tuple((str(name).lower(), str(value)) for name, value in pairs)
        self.status = int(status)
        self.content_type = content_type if content_type is not None else self._content_type()
        check_response(self.status, self.content_type, self.headers)

    @property
    def streams(self) -> bool:
        """True if the content is an iterator of pieces."""
        content = self.content
        return hasattr(content, "__anext__") or (hasattr(content, "__next__") and not hasattr(content, "read"))

    def _content_type(self) -> str:
        for name, value in self.headers:
            if name == "content-type":
                self.headers = tuple(pair for pair in self.headers if pair[0] != "content-type")
                return value
        if isinstance(self.content, str):
            return TEXT_TYPE
        is_binary = isinstance(self.content, (bytes, bytearray, memoryview)) or self.streams
        return BINARY_TYPE if is_binary else JSON_TYPE

    def __repr__(self) -> str:
        return f"<Response {self.status} {self.content_type}>"


class Tensors(dict[str, Any]):
    """Tensors by name, of any names: arrays of numpy; those of BYTES hold `bytes`.

    Attributes:
        parameters: those of the request.
        requested: the names of the outputs that the client asks for, in its order; None for all of them.
        datatypes: the datatypes of the protocol by name, such as `FP32`, as they were sent.
        content_types: the `content_type` in the parameters of single inputs, by name.
        id: the one that the client gave the request; empty without one.
    """

    def __init__(
        self,
        tensors: Mapping[str, Any] | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        requested: Iterable[str] | None = None,
        datatypes: Mapping[str, str] | None = None,
        content_types: Mapping[str, str] | None = None,
        id: str = "",  # noqa: A002 - as the protocol calls it
    ) -> None:
        super().__init__(tensors or {})
        self.parameters: dict[str, Any] = dict(parameters or {})
        self.requested = None if requested is None else tuple(requested)
        self.datatypes: dict[str, str] = dict(datatypes or {})
        self.content_types: dict[str, str] = dict(content_types or {})
        self.id = id

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}: {list(getattr(array, 'shape', ()))}" for name, array in self.items())
        return f"<Tensors {shapes}>"


def media_type_of(content_type: str) -> str:
    """Return a content type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    """True for JSON, and for the types that are written as JSON."""
    media_type = media_type_of(content_type)
    return media_type == JSON_TYPE or media_type.endswith("+json")


def check_response(status: int, content_type: str, headers: Iterable[tuple[str, str]]) -> None:
    """Raise `ValueError` unless these can be the head of a response."""
    if status not in _STATUSES:
        raise ValueError(f"status {status}: it is a number from 200 to 599")
    size = 0
    for count, (name, value) in enumerate((("content-type", content_type), *headers)):
        size += len(name) + len(value)
        if count > MAX_HEADERS or size > MAX_HEADER_BYTES:
            raise ValueError(f"a response has at most {MAX_HEADERS} header fields of {MAX_HEADER_BYTES} bytes in all")
        if _TOKEN.fullmatch(name) is None:
            raise ValueError(f"header {name[:100]!r}: this is no name of a header field")
        if name in FRAMING:
            raise ValueError(f"header {name!r}: the server writes it; leave it out")
        if _VALUE.fullmatch(value) is None:
            raise ValueError(f"header {name!r}: its value has a line break, or characters that are not Latin-1")


def has_body(status: int) -> bool:
    """True if a response of this status may have a body."""
    return status not in _BODILESS
