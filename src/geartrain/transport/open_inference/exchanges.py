"""Requests of the Open Inference Protocol: refusals, the model of a path, and heads and bodies of runs.

Bodies may be compressed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import msgspec

from geartrain.apis import open_inference, tensor_json
from geartrain.apis.infer_parameters import timeout_of
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.rendering import clip
from geartrain.service.models.catalogue import Catalogue, normal
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport import compression
from geartrain.transport.compression import Encoding
from geartrain.transport.errors import OPEN_INFERENCE_HTTP_STATUS, error_headers
from geartrain.transport.large_bodies import LargeBodies
from geartrain.transport.routing import Begin, Params
from geartrain.transport.runs import DIRECT_LIMIT, RunExchange, size_refusal
from geartrain.transport.wire.exchange import JSON, NOWHERE, Accepted, Answer, Body, Exchange, Head, Headers, Responder

_OK: Final = HTTPStatus.OK  # to read it from its class takes several times as long

EMPTY: Final = Answer(_OK, (b"",), ())
_NOT_FOUND: Final = Answer(HTTPStatus.NOT_FOUND, (open_inference.encode_fault("Not Found"),))
JSON_SIZE: Final = b"inference-header-content-length"
_LONGEST_SIZE: Final = 18  # digits


class OpenInferenceApi:
    """The answers to requests that are refused. See `Api`."""

    shows_logs = False

    def __init__(self, name: str) -> None:
        self.name = name

    def refuse(self, error: GeartrainError) -> Answer:
        """Return the answer to a request that failed."""
        headers: Headers = JSON
        if error.code is Code.UNSUPPORTED_MEDIA_TYPE:
            headers = (*JSON, (b"accept-encoding", compression.ACCEPTED))
        status = OPEN_INFERENCE_HTTP_STATUS[error.code]
        headers = (*headers, *error_headers(status, error))
        return Answer(status, (open_inference.encode_error(error),), headers, error=error.reason)

    def not_found(self) -> Answer:
        """Return the answer where there is no such path."""
        return _NOT_FOUND

    def wrong_method(self, allowed: str) -> Answer:
        """Return the answer to another method than those `allowed`."""
        body = open_inference.encode_fault("Method Not Allowed")
        return Answer(HTTPStatus.METHOD_NOT_ALLOWED, (body,), (*JSON, (b"allow", allowed.encode())))


API: Final = OpenInferenceApi("rest")
GENERATE: Final = OpenInferenceApi("generate")
"""The generate extension of the protocol."""


def model_of(params: Params) -> tuple[str, str]:
    """Return the name and the version that a path has; an empty version leaves the choice to the server."""
    return params["model"], normal(params.get("version", ""))


def json_answer(body: bytes) -> Answer:
    """Return a body of JSON with status 200."""
    return Answer(_OK, (body,))


class RunHead(msgspec.Struct, frozen=True):
    """Head of a request.

    Attributes:
        name: of the model.
        version: empty for the server's choice.
        encoding: of the body, None if it is not encoded.
        accepted: the encoding that the client wants for the answer, None for none.
        json_size: the bytes of the JSON in front of the tensors, None if the body is nothing else.
    """

    name: str
    version: str
    encoding: Encoding | None
    accepted: Encoding | None
    json_size: int | None


def read_head(head: Head, params: Params) -> RunHead:
    """Read the head of a request; of a header that comes several times the last one counts.

    Every `Accept-Encoding` counts. Raises `UNSUPPORTED_MEDIA_TYPE`, and `INVALID_INPUT` for a length of the JSON that
    is not a number.
    """
    encoding = b""
    accepted: list[bytes] = []
    json_size: bytes | None = None
    for name, value in head.headers:
        if name == b"content-encoding":
            encoding = value
        elif name == b"accept-encoding":
            accepted.append(value)
        elif name == JSON_SIZE:
            json_size = value
    return RunHead(
        *model_of(params),
        compression.content_encoding(encoding),
        compression.accepted_encoding(b",".join(accepted)),
        None if json_size is None else _read_size(json_size),
    )


def _read_size(value: bytes) -> int:
    if not value.isdigit():
        text = clip(value.decode("latin-1"))
        msg = f"Inference-Header-Content-Length must be the number of bytes of the JSON header, got: '{text}'"
        raise GeartrainError(Code.INVALID_INPUT, msg)
    return int(value) if len(value) <= _LONGEST_SIZE else -1


class ArrayLoader:
    """Loads the package that large tensors are read and written with, when the first of them comes."""

    def __init__(self) -> None:
        self._loading: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Load it for later requests."""
        if self._loading is None:
            self._loading = asyncio.get_running_loop().run_in_executor(None, tensor_json.load_arrays)

    async def load(self) -> None:
        """Wait until it is there."""
        if tensor_json.arrays() is None:
            self.begin()
            if self._loading is not None:
                await asyncio.shield(self._loading)


class ServerContext(msgspec.Struct, frozen=True):
    """Shared context of all requests to one server."""

    catalogue: Catalogue
    regions: SharedRegions
    max_body_bytes: int
    arrays: ArrayLoader
    bodies: LargeBodies


class ModelExchange(RunExchange):
    """One request that runs a model."""

    __slots__ = ("_context", "_head")

    def __init__(self, context: ServerContext, head: RunHead, responder: Responder) -> None:
        super().__init__(responder)
        self._context = context
        self._head = head

    def refuse(self, error: GeartrainError) -> Answer:
        """Return the answer to a request that failed."""
        return API.refuse(error)

    def is_large(self, body: Body) -> bool:
        """True if a body is large, or may become so when it is decompressed."""
        return len(body) > DIRECT_LIMIT or self._head.encoding is not None

    def wait_limit(self, body: Any) -> float | None:
        """Return the `timeout` of a request; one that has been read aside has found its model."""
        return timeout_of(body, self._head.json_size) if isinstance(body, bytes | bytearray) else None

    async def prepare(self, body: Body) -> Any:
        """Decompress a body."""
        encoding = self._head.encoding
        return body if encoding is None else await compression.inflate(body, encoding, self._context.max_body_bytes)


def by_exchange(
    new_exchange: Callable[[RunHead, Responder], Exchange], max_body_bytes: int, *, takes_views: bool = False
) -> Begin:
    """Create the handler that passes requests to exchanges; their heads are read once for all that have the same.

    `takes_views`: a body with binary contents may come as a view, see `Accepted.contents_at`.
    """
    refuse_size = size_refusal(API)

    def begin(head: Head, params: Params) -> Accepted:
        read = read_head(head, params)
        has_contents = takes_views and read.encoding is None and read.json_size is not None and read.json_size >= 0
        contents_at = read.json_size if has_contents and read.json_size is not None else NOWHERE
        return Accepted(partial(new_exchange, read), max_body_bytes, refuse_size, contents_at=contents_at)

    return begin
