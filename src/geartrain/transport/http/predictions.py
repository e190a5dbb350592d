"""Cog's prediction endpoints, straight on ASGI: they are the hot path."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from geartrain.apis import cog
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.webhook import Webhook
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.entry import ModelRef
from geartrain.service.models.predictions import Predictions
from geartrain.service.readers import completion
from geartrain.transport.errors import HTTP_STATUS, retry_headers
from geartrain.transport.http.disconnect import DisconnectWatch
from geartrain.transport.http.handlers import DIRECT_LIMIT, JSON, Answer, Headers, NewExchange
from geartrain.transport.http.streams import QUIET, EventStreams
from geartrain.transport.http.wire import INTERNAL_ERROR, ClientGoneError, read_body, send_json, send_parts, too_large

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

_TRACE: Final = (b"traceparent", b"tracestate")
_OK: Final = HTTPStatus.OK  # to read it from its class takes several times as long
_LONGEST_TRACE: Final = 4096  # bytes of a header; W3C asks for 512

_NO_STREAMS: Final = (
    "This model does not support streaming responses. Add @streaming to run() to enable SSE, "
    "or leave text/event-stream out of the Accept header."
)
_UNKNOWN_ID: Final = b'{"error":"No such %b: it never was, or it has been over for longer than --keep."}'


class _Head:
    """What the headers of a request say and ask for. Observed Cog, sections 6, 11, 14."""

    __slots__ = ("event_stream", "has_json", "length", "media_type", "respond_async")

    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        self.respond_async = False
        self.event_stream = False
        self.has_json = False
        self.media_type = b""
        self.length = 0  # bytes announced
        for name, value in headers:
            if name == b"content-type":
                self.media_type = value
                self.has_json = value == b"application/json" or _is_json(value)
            elif name == b"content-length":
                self.length = int(value)
            elif name == b"prefer":
                self.respond_async = value == b"respond-async"
            elif name == b"accept" and value != b"*/*":
                self.event_stream = any(
                    part.partition(b";")[0].strip() == b"text/event-stream" for part in value.split(b",")
                )


def accepts_event_stream(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether a request asks for server-sent events."""
    return _Head(headers).event_stream


def _is_json(content_type: bytes) -> bool:
    media_type = content_type.partition(b";")[0].strip().lower()
    if media_type == b"application/json":
        return True
    return media_type.startswith(b"application/") and media_type.endswith(b"+json")


class PredictionEndpoints:
    """`POST /predictions`, `PUT /predictions/{id}`, `POST /predictions/{id}/cancel`."""

    noun = "prediction"

    def __init__(self, model: ModelRef, *, max_body_bytes: int, quiet: float = QUIET) -> None:
        """`quiet`: the seconds without an event after which a stream is kept alive."""
        self._model = model
        self._max_body_bytes = max_body_bytes
        self._disconnects = DisconnectWatch()
        self._streams = EventStreams(self._disconnects, quiet=quiet)

    async def create(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Make a prediction; not idempotent."""
        await self._answer(scope, receive, send, url_id=None)

    async def create_or_join(self, scope: Scope, receive: Receive, send: Send, *, prediction_id: str) -> None:
        """Make a prediction, or tell how the live one of that id stands."""
        await self._answer(scope, receive, send, url_id=prediction_id)

    async def cancel(self, send: Send, prediction_id: str) -> None:
        """Ask for the end of a live prediction: 200 at once, 404 if there is none."""
        found = any(predictions.cancel(prediction_id) for predictions in self._tables())
        await send_json(send, HTTPStatus.OK if found else HTTPStatus.NOT_FOUND, b"{}")

    async def show(self, send: Send, prediction_id: str) -> None:
        """Tell how a prediction stands, live or recently over; 404 if there is none."""
        for predictions in self._tables():
            prediction = predictions.look_up(prediction_id)
            if prediction is not None:
                await send_parts(send, HTTPStatus.OK, cog.encode_in_parts(prediction))
                return
        await send_json(send, HTTPStatus.NOT_FOUND, _UNKNOWN_ID % self.noun.encode())

    def _tables(self) -> tuple[Predictions, ...]:
        """Return the predictions of the model; none where there is no such model any more."""
        try:
            return (self._model.predictions,)
        except GeartrainError:
            return ()

    # the same without ASGI

    def enter(self, url: bytes, headers: Headers) -> NewExchange | None:
        """Take a POST of a JSON body that asks for nothing but a JSON answer."""
        if url != b"/predictions":
            return None
        head = _Head(headers)
        is_plain = head.has_json and not head.respond_async and not head.event_stream
        if is_plain and 0 < head.length <= DIRECT_LIMIT:
            return lambda: _PlainExchange(self._model, headers, self._max_body_bytes)
        return None

    # through ASGI

    async def _answer(self, scope: Scope, receive: Receive, send: Send, *, url_id: str | None) -> None:
        try:
            await self._respond(scope, receive, send, url_id=url_id)
        except GeartrainError as error:
            await send_error(send, error)
        except ClientGoneError:
            logger.debug("a client disconnected before its request was whole")
        except Exception:
            logger.exception("a prediction endpoint failed")
            with contextlib.suppress(RuntimeError):  # raised when an answer has begun
                await send_json(send, HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL_ERROR)

    async def _respond(self, scope: Scope, receive: Receive, send: Send, *, url_id: str | None) -> None:
        head = _Head(scope["headers"])
        request = await self._read(receive, head)
        if url_id is not None and request.id is not None and request.id != url_id:
            raise cog.id_mismatch(self.noun)
        if head.event_stream and not self._model.deployment.interface.signature.streaming:
            self._model.deployment.workers.check_ready()
            raise GeartrainError(Code.NOT_ACCEPTABLE, _NO_STREAMS)
        predictions = self._model.predictions
        live = None if url_id is None else predictions.find(url_id)
        prediction = live
        if prediction is None:
            new = _new(request, url_id, scope["headers"], head=head)
            del request  # and with it the body, which may be large
            prediction = self._model.deployment.create(new)
        if head.event_stream:
            await self._streams.follow(prediction, receive, send, predictions=predictions, created=live is None)
        elif live is not None:
            await send_parts(send, HTTPStatus.ACCEPTED, cog.encode_in_parts(live))
        elif head.respond_async:
            await send_json(send, HTTPStatus.ACCEPTED, cog.encode_accepted(prediction))
        else:
            if not prediction.is_terminal:
                await self._wait(prediction, receive, predictions)
            await send_parts(send, HTTPStatus.OK, cog.encode_in_parts(prediction))

    async def _read(self, receive: Receive, head: _Head) -> cog.PredictionRequest:
        body = await read_body(receive, head.length, self._max_body_bytes)
        if head.has_json:
            return cog.read_request(body)
        if not body and not head.media_type:
            return cog.NO_REQUEST
        raise GeartrainError(Code.UNSUPPORTED_MEDIA_TYPE, "Expected request with `Content-Type: application/json`")

    async def _wait(self, prediction: Prediction, receive: Receive, predictions: Predictions) -> None:
        completed = completion(prediction)
        wait = self._disconnects.begin(receive, lambda: predictions.abandon(prediction))
        try:
            await completed
        except asyncio.CancelledError:
            predictions.abandon(prediction)
            raise
        finally:
            self._disconnects.end(wait)


class _PlainExchange:
    __slots__ = ("_headers", "_max_body_bytes", "_model", "_prediction", "_predictions")

    def __init__(self, model: ModelRef, headers: Headers, max_body_bytes: int) -> None:
        self._model = model
        self._headers = headers
        self._max_body_bytes = max_body_bytes
        self._prediction: Prediction
        self._predictions: Predictions

    def admit(self, body: bytes) -> Prediction:
        if len(body) > self._max_body_bytes:
            raise too_large(self._max_body_bytes)
        deployment = self._model.deployment
        self._predictions = deployment.predictions
        self._prediction = prediction = deployment.create(_new(cog.read_request(body), None, self._headers))
        return prediction

    def answer(self) -> Answer:
        return Answer(_OK, cog.encode_in_parts(self._prediction))

    @staticmethod
    def refuse(error: GeartrainError) -> Answer:
        status = HTTP_STATUS[error.code]
        return Answer(status, (cog.encode_error(error),), (*JSON, *retry_headers(status, error)))

    def abandon(self) -> None:
        self._predictions.abandon(self._prediction)


async def send_error(send: Send, error: GeartrainError) -> None:
    """Answer a request of Cog's API that is refused."""
    status = HTTP_STATUS[error.code]
    await send_json(send, status, cog.encode_error(error), headers=retry_headers(status, error))


def _new(
    request: cog.PredictionRequest, url_id: str | None, headers: Headers, *, head: _Head | None = None
) -> NewPrediction:
    """What a request asks for; `head` is left out for a plain one."""
    prediction_id = request.id if url_id is None else url_id
    created_at: Any = request.created_at
    return NewPrediction(
        input=cog.input_of(request),
        id=prediction_id,
        keep=prediction_id is not None
        or (head is not None and head.respond_async),  # a client that knows the id may ask for it
        context=request.context or None,
        created_at=None if created_at is None else created_at.timestamp(),
        webhook=None if request.webhook is None else _webhook(request.webhook, request, headers),
        output_prefix=request.output_file_prefix,
        background=head is not None and (head.respond_async or head.event_stream),
    )


def _webhook(url: str, request: cog.PredictionRequest, headers: Headers) -> Webhook:
    """The receiver that a request names; what it is told belongs to the request's trace (W3C Trace Context)."""
    trace: dict[str, str] = {}
    for name, value in headers:
        if name in _TRACE and len(value) <= _LONGEST_TRACE and value.isascii():
            key, text = name.decode(), value.decode().strip()
            if text and text.isprintable():
                trace[key] = f"{trace[key]},{text}" if key in trace else text  # a list may come in several headers
    return Webhook(url, frozenset(request.webhook_events_filter), tuple(trace.items()))
