"""`POST v2/models/{name}[/versions/{version}]/generate` and `/generate_stream`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from geartrain.apis import generate, open_inference
from geartrain.apis.generate import GenerateView
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.events import Completed, Event, Output
from geartrain.domain.predictions.prediction import Prediction
from geartrain.service.models import inference
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment
from geartrain.service.readers import EventReader, LaggedError, completion
from geartrain.transport.http import compression
from geartrain.transport.http.disconnect import DisconnectWatch
from geartrain.transport.http.handlers import Answer
from geartrain.transport.http.infer import refuse
from geartrain.transport.http.wire import ClientGoneError, read_body, send_answer

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

_EVENT_STREAM: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
)
_PIECE: Final = 65_536  # bytes: more than that a connection does not take at once
_BUG: Final = GeartrainError(Code.INTERNAL, "Internal server error")


class GenerateEndpoint:
    """Runs models for clients that want text, whole or as it comes."""

    def __init__(self, catalogue: Catalogue, *, max_body_bytes: int) -> None:
        self._catalogue = catalogue
        self._max_body_bytes = max_body_bytes
        self._disconnects = DisconnectWatch()

    async def generate(self, scope: Scope, receive: Receive, send: Send, *, name: str, version: str) -> None:
        """Answer with exactly one response, whatever the model gives."""
        try:
            generation = await self._begin(scope, receive, name, version=version)
            await self._wait(generation, receive)
            answer = generation.answer()
        except GeartrainError as error:
            answer = refuse(error)
        except ClientGoneError:
            return
        except Exception:
            logger.exception("the generate endpoint failed")
            answer = refuse(_BUG)
        with contextlib.suppress(RuntimeError):  # raised when the client has gone meanwhile
            await send_answer(send, answer)

    async def stream(self, scope: Scope, receive: Receive, send: Send, *, name: str, version: str) -> None:
        """Answer with one event for each output, as it comes.

        The status is that of the first response (the document of the extension), so the head waits for it.
        """
        stream = None
        try:
            generation = await self._begin(scope, receive, name, version=version)
            stream = _Stream(generation, send)
            wait = self._disconnects.begin(receive, stream.leave)
            try:
                await stream.write()
            finally:
                stream.close()
                self._disconnects.end(wait)
                generation.abandon()  # the prediction may still run, and has no reader
        except GeartrainError as error:
            await _end(stream, send, error)
        except ClientGoneError:
            return
        except Exception:
            logger.exception("the generate endpoint failed")
            await _end(stream, send, _BUG)

    async def _begin(self, scope: Scope, receive: Receive, name: str, *, version: str) -> _Generation:
        headers = dict(scope["headers"])
        encoding = compression.content_encoding(headers.get(b"content-encoding", b""))
        body: bytes | bytearray = await read_body(
            receive, int(headers.get(b"content-length", b"0")), self._max_body_bytes
        )
        if encoding is not None:
            body = await compression.inflate(body, encoding, self._max_body_bytes)
        return _Generation(self._catalogue.find(name, version), body)

    async def _wait(self, generation: _Generation, receive: Receive) -> None:
        if generation.prediction.is_terminal:
            return
        completed = completion(generation.prediction)
        wait = self._disconnects.begin(receive, generation.abandon)
        try:
            await completed
        except asyncio.CancelledError:
            generation.abandon()
            raise
        finally:
            self._disconnects.end(wait)


class _Generation:
    """One request and its prediction."""

    def __init__(self, deployment: Deployment, body: bytes | bytearray) -> None:
        deployment.workers.check_ready()
        signature, view = deployment.interface.signature, deployment.interface.view
        asked = generate.read_request(body, signature, view)
        self._deployment = deployment
        self._view = GenerateView(signature, view)
        self._model = (deployment.name, deployment.version)
        self._id = asked.request.id
        self.prediction: Prediction = inference.create_from_json(
            deployment, asked.values, asked.request, tensors=asked.tensors
        )

    def answer(self) -> Answer:
        """The one response of a run that is over; raises `GeartrainError` if it failed."""
        inference.check_success(self._deployment, self.prediction)
        outputs = self._view.whole(self.prediction)
        return Answer(HTTPStatus.OK, (generate.encode_response(self._model, self._id, outputs),))

    def events(self, events: list[Event]) -> Iterator[bytes]:
        """The responses that these events of the run are; raises `GeartrainError` at the one that says it failed."""
        for event in events:
            if type(event) is Output:
                response = generate.encode_response(self._model, self._id, self._view.one(event.chunk))
                yield generate.encode_event(response)
            elif type(event) is Completed:
                inference.check_success(self._deployment, self.prediction)

    def abandon(self) -> None:
        """Note that no client waits any more."""
        self._deployment.predictions.abandon(self.prediction)


class _Stream:
    """The answer to one reader."""

    def __init__(self, generation: _Generation, send: Send) -> None:
        self._generation = generation
        self._send = send
        self._reader = EventReader(generation.prediction)
        self._gone = False
        self.has_begun = False

    async def write(self) -> None:
        """Write responses as they come, until the last one or until the client has gone; raises `GeartrainError`."""
        over = False
        while not over:
            try:
                events = await self._reader.batch()
            except LaggedError:
                if self._gone:  # which is why it did not read
                    return
                msg = "The client reads too slowly; responses were dropped."
                raise GeartrainError(Code.TOO_MANY_READERS, msg) from None
            if self._gone:
                return
            over = bool(events) and type(events[-1]) is Completed
            await self._write_pieces(self._generation.events(events))
        await self.send(b"", more=False)

    async def _write_pieces(self, texts: Iterator[bytes]) -> None:
        """Write texts together, as many as a connection takes at once; what comes before a fault is written too."""
        piece = bytearray()
        try:
            for text in texts:
                piece += text
                if len(piece) > _PIECE:
                    full, piece = bytes(piece), bytearray()
                    await self.send(full, more=True)
        finally:
            if piece:
                await self.send(bytes(piece), more=True)

    async def send(self, data: bytes, *, more: bool) -> None:
        """Send a piece of the stream, with the head if it is the first."""
        if not self.has_begun:
            self.has_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _EVENT_STREAM})
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    def leave(self) -> None:
        """Note that the client has disconnected."""
        self._gone = True
        self._reader.wake()

    def close(self) -> None:
        """Stop reading the prediction."""
        self._reader.close()


async def _end(stream: _Stream | None, send: Send, error: GeartrainError) -> None:
    """Tell of an error: as an answer of its own, or as the last event once there has been one."""
    with contextlib.suppress(RuntimeError):  # raised when the client has gone meanwhile
        if stream is None or not stream.has_begun:
            await send_answer(send, refuse(error))
        else:
            await stream.send(generate.encode_event(open_inference.encode_error(error)), more=False)
