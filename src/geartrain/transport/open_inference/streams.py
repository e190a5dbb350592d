"""`POST v2/models/{name}[/versions/{version}]/generate_stream`: the outputs of a run as they come."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from geartrain.apis import generate, open_inference
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.events import Completed, Event
from geartrain.domain.predictions.prediction import Prediction
from geartrain.service.readers import EventReader, LaggedError
from geartrain.transport.errors import BUG
from geartrain.transport.open_inference.exchanges import RunHead, ServerContext
from geartrain.transport.open_inference.generate import GenerateExchange
from geartrain.transport.tasks import start
from geartrain.transport.wire.exchange import AnswerStream, ClientGoneError, Responder

logger = logging.getLogger(__name__)

_EVENT_STREAM: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
)
_PIECE: Final = 65_536  # bytes: more than that a connection does not take at once


class GenerateStreamExchange(GenerateExchange):
    """One request that is answered with one event for each output, as it comes.

    The status is that of the first response (the document of the extension), so the head waits for it.
    """

    __slots__ = ("_reader", "_stream")

    def __init__(self, context: ServerContext, head: RunHead, responder: Responder) -> None:
        super().__init__(context, head, responder)
        self._reader: EventReader | None = None  # before the prediction has been admitted
        self._stream: AnswerStream | None = None

    def follow(self, prediction: Prediction) -> None:
        """Write what the prediction gives from now on."""
        self._reader = reader = EventReader(prediction)  # before the prediction can change
        start(self._follow(reader))

    def abandon(self) -> None:
        """Cancel the prediction and stop writing: the client has disconnected."""
        super().abandon()
        if self._reader is not None:
            self._generation.abandon()
            self._reader.wake()

    async def _follow(self, reader: EventReader) -> None:
        try:
            with contextlib.suppress(ClientGoneError):
                await self._write_all(reader)
        finally:
            reader.close()
            self._generation.abandon()  # the prediction may still run, and has no reader

    async def _write_all(self, reader: EventReader) -> None:
        try:
            await self._write_responses(reader)
        except ClientGoneError:
            raise
        except GeartrainError as error:
            await self._tell(error)
        except Exception:
            logger.exception("an endpoint failed")
            await self._tell(BUG)

    async def _write_responses(self, reader: EventReader) -> None:
        """Write responses as they come, until the last one or until the client has gone; raises `GeartrainError`."""
        over = False
        while not over:
            try:
                events = await reader.batch()
            except LaggedError:
                if self._has_left:  # which is why it did not read
                    return
                msg = "The client reads too slowly; responses were dropped."
                raise GeartrainError(Code.TOO_MANY_READERS, msg) from None
            if self._has_left:
                return
            over = bool(events) and type(events[-1]) is Completed
            await self._write_pieces(events)
        self._open().end()

    async def _write_pieces(self, events: Iterable[Event]) -> None:
        """Write responses together, as many as a connection takes at once; those before a fault are written too."""
        piece = bytearray()
        try:
            for event in events:
                for part in await self._generation.event(event, self._context.bodies):
                    view = memoryview(part)
                    for at in range(0, len(view), _PIECE):  # large data is not copied as a whole
                        piece += view[at : at + _PIECE]
                        if len(piece) > _PIECE:
                            full, piece = bytes(piece), bytearray()
                            await self._open().write(full)
        finally:
            if piece:
                await self._open().write(bytes(piece))

    async def _tell(self, error: GeartrainError) -> None:
        """Tell of an error: as an answer of its own, or as the last event once there has been one."""
        if self._stream is None:
            self._responder.respond(self.refuse(error))
        else:
            await self._stream.write(generate.encode_event(open_inference.encode_error(error)))
            self._stream.end()

    def _open(self) -> AnswerStream:
        """Return the stream, whose head is sent with the first piece."""
        if self._stream is None:
            self._stream = self._responder.open_stream(HTTPStatus.OK, _EVENT_STREAM)
        return self._stream
