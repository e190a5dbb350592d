"""A prediction as a stream of server-sent events."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from geartrain.apis import sse
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.events import Completed, EventsDroppedError
from geartrain.service.readers import EventReader, LaggedError, replay_start
from geartrain.transport.http.disconnect import DisconnectWatch

if TYPE_CHECKING:
    from starlette.types import Receive, Send

    from geartrain.domain.predictions.prediction import Prediction
    from geartrain.service.models.predictions import Predictions

QUIET: Final = 15.0  # seconds without an event until a comment keeps the connection alive
MAX_READERS: Final = 1024  # of one prediction
_HEADERS: Final = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"))


class EventStreams:
    """The streams of one server, and who still reads which prediction."""

    def __init__(self, disconnects: DisconnectWatch, *, quiet: float) -> None:
        self._disconnects = disconnects
        self._quiet = quiet
        self._readers: Counter[Prediction] = Counter()
        self._dependent: dict[Prediction, Predictions] = {}  # on having a reader

    async def follow(
        self, prediction: Prediction, receive: Receive, send: Send, *, predictions: Predictions, created: bool
    ) -> None:
        """Answer with the events of a prediction from its first on, then live, until it is over.

        A prediction that was `created` for a stream is canceled when its last reader has gone; `predictions` is the
        table that it is in. Raises `TOO_MANY_READERS`.
        """
        if self._readers[prediction] >= MAX_READERS:
            raise GeartrainError(Code.TOO_MANY_READERS, "Too many stream subscribers")
        try:
            start = 0 if created else replay_start(prediction)
            reader = EventReader(prediction, start)  # before the prediction can change
        except EventsDroppedError as error:
            await _start(send)
            await _send(send, sse.encode_error(sse.TRUNCATED, error.skipped), more=False)
            return
        self._readers[prediction] += 1
        if created:
            self._dependent[prediction] = predictions
        stream = _Stream(prediction, reader, send, quiet=self._quiet)
        wait = self._disconnects.begin(receive, stream.leave)
        try:
            await stream.write()
        except LaggedError as error:
            if not await self._disconnects.has_left(wait):  # which would be why it did not read
                self._dependent.pop(prediction, None)  # the reader is refused, and may join again with a PUT
                await _send(send, sse.encode_error(sse.LAGGED, error.skipped), more=False)
        finally:
            stream.close()
            self._disconnects.end(wait)
            self._leave(prediction)

    def _leave(self, prediction: Prediction) -> None:
        self._readers[prediction] -= 1
        if not self._readers[prediction]:
            del self._readers[prediction]
            if prediction in self._dependent:
                self._dependent.pop(prediction).abandon(prediction)


class _Stream:
    """One reader's answer."""

    def __init__(self, prediction: Prediction, reader: EventReader, send: Send, *, quiet: float) -> None:
        self._prediction = prediction
        self._reader = reader
        self._send = send
        self._quiet = quiet
        self._loop = asyncio.get_running_loop()
        self._written_at = self._loop.time()
        self._timer = self._loop.call_later(quiet, self._tick)  # one for many events, however fast they come
        self._gone = False

    async def write(self) -> None:
        """Write events as they come, until the last one or until the client has gone; raises `LaggedError`."""
        await _start(self._send)
        over = False
        while not over:
            events = await self._reader.batch()
            if self._gone:
                return
            self._written_at = self._loop.time()
            if events:
                over = type(events[-1]) is Completed
                for piece in sse.encode_events(self._prediction, events):
                    await _send(self._send, piece, more=True)  # waits while the client does not read
            else:
                await _send(self._send, sse.KEEP_ALIVE, more=True)
        await _send(self._send, b"", more=False)

    def leave(self) -> None:
        """Note that the client has disconnected."""
        self._gone = True
        self._reader.wake()

    def close(self) -> None:
        """Stop reading the prediction: nothing more will be written."""
        self._timer.cancel()
        self._reader.close()

    def _tick(self) -> None:
        left = self._written_at + self._quiet - self._loop.time()
        if left <= 0:
            self._reader.wake()
            left = self._quiet
        self._timer = self._loop.call_later(left, self._tick)


async def _start(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})


async def _send(send: Send, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
