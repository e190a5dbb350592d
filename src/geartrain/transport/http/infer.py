"""`POST v2/models/{name}[/versions/{version}]/infer`: tensors in, tensors out, as JSON or as bytes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from geartrain.apis import open_inference, tensor_json
from geartrain.apis.open_inference import Reply
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.inference import InferRequest, InferResponse
from geartrain.domain.predictions.prediction import Prediction
from geartrain.service.models import inference
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment
from geartrain.service.readers import completion
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.errors import OPEN_INFERENCE_HTTP_STATUS, retry_headers
from geartrain.transport.http import compression
from geartrain.transport.http.disconnect import DisconnectWatch
from geartrain.transport.http.handlers import DIRECT_LIMIT, JSON, Answer, Headers, NewExchange
from geartrain.transport.http.wire import ClientGoneError, read_body, send_answer, too_large

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

_MODELS: Final = b"/v2/models/"
_INFER: Final = b"/infer"
_LONGEST_SIZE: Final = 18  # digits
_OK: Final = HTTPStatus.OK  # to read it from its class takes several times as long
_BINARY: Final = (b"content-type", b"application/octet-stream")
_JSON_SIZE: Final = b"inference-header-content-length"


def read_version(text: str) -> str | None:
    """Return a version as it is written in a path, without leading zeros; None if it is not one."""
    if not text.isascii() or not text.isdigit():
        return None
    return text.lstrip("0") or "0"


class _Head:
    """What the headers of a request say."""

    __slots__ = ("accept", "encoding", "json_size", "length")

    def __init__(self, headers: Headers) -> None:
        self.length = 0  # bytes announced
        self.json_size: bytes | None = None
        self.encoding = b""
        self.accept = b""
        for name, value in headers:
            if name == b"content-length":
                self.length = int(value)
            elif name == b"content-encoding":
                self.encoding = value
            elif name == b"accept-encoding":
                self.accept = b"%b,%b" % (self.accept, value) if self.accept else value
            elif name == _JSON_SIZE:
                self.json_size = value

    def read_json_size(self) -> int | None:
        """Return the bytes of the JSON in front of the tensors, None without the header."""
        value = self.json_size
        if value is None:
            return None
        try:
            return int(value) if len(value) <= _LONGEST_SIZE else -1
        except ValueError:
            text = value.decode("latin-1")
            msg = f"Inference-Header-Content-Length must be the number of bytes of the JSON header, got: '{text}'"
            raise GeartrainError(Code.INVALID_INPUT, msg) from None


class InferEndpoint:
    """Admits infer requests, directly and through ASGI."""

    def __init__(self, catalogue: Catalogue, regions: SharedRegions, *, max_body_bytes: int) -> None:
        self.catalogue = catalogue
        self.regions = regions
        self.max_body_bytes = max_body_bytes
        self._disconnects = DisconnectWatch()
        self._loading: asyncio.Future[None] | None = None

    def enter(self, url: bytes, headers: Headers) -> NewExchange | None:
        """Take a body as it is, for a model whose name needs no decoding."""
        if not url.startswith(_MODELS) or not url.endswith(_INFER) or b"%" in url or not url.isascii():
            return None
        name, *rest = url[len(_MODELS) : -len(_INFER)].decode().split("/")
        version: str | None = ""
        if rest:
            version = read_version(rest[1]) if len(rest) == 2 and rest[0] == "versions" else None  # noqa: PLR2004
        head = _Head(headers)
        if not name or version is None or head.encoding or not 0 < head.length <= DIRECT_LIMIT or "?" in name:
            return None
        return partial(InferExchange, self, name, version, head=head)

    async def serve(self, scope: Scope, receive: Receive, send: Send, *, name: str, version: str) -> None:
        """Answer a request for this model."""
        exchange = InferExchange(self, name, version, head=_Head(scope["headers"]))
        try:
            answer = await self._run(exchange, receive)
        except GeartrainError as error:
            answer = exchange.refuse(error)
        except ClientGoneError:
            logger.debug("a client disconnected before its request was whole")
            return
        except Exception:
            logger.exception("the infer endpoint failed")
            answer = exchange.refuse(GeartrainError(Code.INTERNAL, "Internal server error"))
        with contextlib.suppress(RuntimeError):  # raised when the client has gone meanwhile
            await send_answer(send, answer)

    async def _run(self, exchange: InferExchange, receive: Receive) -> Answer:
        head = exchange.head
        encoding = compression.content_encoding(head.encoding)
        body: bytes | bytearray = await read_body(receive, head.length, self.max_body_bytes)
        if encoding is not None:
            body = await compression.inflate(body, encoding, self.max_body_bytes)
        if len(body) >= tensor_json.LARGE:
            await self.load_arrays()
        prediction = exchange.admit(body)
        del body
        if not prediction.is_terminal:
            await self._wait(exchange, prediction, receive)
        response = exchange.response()
        if any(len(tensor.data) >= tensor_json.LARGE for tensor in response.outputs):
            await self.load_arrays()
        answer = exchange.encode(response)
        accepted = compression.accepted_encoding(head.accept)
        if accepted is None:
            return answer
        return _encoded(answer, await compression.deflate_aside(answer.parts, accepted), accepted)

    async def _wait(self, exchange: InferExchange, prediction: Prediction, receive: Receive) -> None:
        completed = completion(prediction)
        wait = self._disconnects.begin(receive, exchange.abandon)
        try:
            await completed
        except asyncio.CancelledError:
            exchange.abandon()
            raise
        finally:
            self._disconnects.end(wait)

    def begin_loading(self) -> None:
        """Load the readers of large tensors, for later requests."""
        if self._loading is None:
            loop = asyncio.get_running_loop()
            self._loading = loop.run_in_executor(None, tensor_json.load_arrays)

    async def load_arrays(self) -> None:
        """Wait until large tensors can be read and written quickly."""
        if tensor_json.arrays() is None:
            self.begin_loading()
            if self._loading is not None:
                await asyncio.shield(self._loading)


class InferExchange:
    """One request; see `Exchange`."""

    __slots__ = ("_deployment", "_endpoint", "_name", "_prediction", "_reply", "_request", "_version", "head")

    def __init__(self, endpoint: InferEndpoint, name: str, version: str, *, head: _Head) -> None:
        self._endpoint = endpoint
        self._name = name
        self._version = version
        self.head = head
        self._deployment: Deployment
        self._request: InferRequest
        self._reply: Reply
        self._prediction: Prediction

    def admit(self, body: bytes | bytearray) -> Prediction:
        """Start the prediction; raises `GeartrainError`."""
        endpoint = self._endpoint
        if len(body) > endpoint.max_body_bytes:
            raise too_large(endpoint.max_body_bytes)
        self._deployment = deployment = endpoint.catalogue.find(self._name, self._version)
        if len(body) >= tensor_json.LARGE and tensor_json.arrays() is None:
            endpoint.begin_loading()
        deployment.workers.check_ready()
        self._request, self._reply = open_inference.read_request(
            body, self.head.read_json_size(), deployment.interface.view, fetch=endpoint.regions.read
        )
        self._prediction = inference.create(deployment, self._request)
        return self._prediction

    def answer(self) -> Answer:
        try:
            answer = self.encode(self.response())
        except GeartrainError as error:
            return self.refuse(error)
        if self.head.accept:
            accepted = compression.accepted_encoding(self.head.accept)
            if accepted is not None:
                return _encoded(answer, compression.deflate(answer.parts, accepted), accepted)
        return answer

    def response(self) -> InferResponse:
        """Return what the run gave; raises `GeartrainError` if it failed."""
        return inference.response(self._deployment, self._prediction, self._request)

    def encode(self, response: InferResponse) -> Answer:
        """Return it in the form that was asked for; raises `GeartrainError` if there is none."""
        body = open_inference.encode_response(response, self._reply, store=self._endpoint.regions.write)
        if body.json_size is None:
            return Answer(_OK, body.parts)
        return Answer(_OK, body.parts, (_BINARY, (_JSON_SIZE, b"%d" % body.json_size)))

    @staticmethod
    def refuse(error: GeartrainError) -> Answer:
        return refuse(error)

    def abandon(self) -> None:
        self._deployment.predictions.abandon(self._prediction)


def refuse(error: GeartrainError) -> Answer:
    """Return the answer to a request of this protocol that failed."""
    headers: tuple[tuple[bytes, bytes], ...] = JSON
    if error.code is Code.UNSUPPORTED_MEDIA_TYPE:
        headers = (*JSON, (b"accept-encoding", compression.ACCEPTED))
    status = OPEN_INFERENCE_HTTP_STATUS[error.code]
    return Answer(status, (open_inference.encode_error(error),), (*headers, *retry_headers(status, error)))


def _encoded(answer: Answer, body: bytes, encoding: compression.Encoding) -> Answer:
    headers = (*answer.headers, (b"content-encoding", encoding.encode()), (b"vary", b"accept-encoding"))
    return Answer(answer.status, (body,), headers)
