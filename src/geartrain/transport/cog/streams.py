"""A prediction as a stream of server-sent events."""

from __future__ import annotations

import asyncio
from collections import Counter
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from geartrain.apis import sse
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.events import LAST, EventsDroppedError
from geartrain.service.readers import EventReader, LaggedError, replay_start
from geartrain.transport.wire.exchange import ClientGoneError

if TYPE_CHECKING:
    from geartrain.domain.predictions.prediction import Prediction
    from geartrain.service.models.predictions import Predictions
    from geartrain.transport.wire.exchange import AnswerStream, Responder

MAX_READERS: Final = 1024  # of one prediction
_HEADERS: Final = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"))


class EventStreams:
    """The streams of one endpoint, and who still reads which prediction."""

    def __init__(self, *, quiet: float) -> None:
        """`quiet`: the seconds without an event until a comment keeps the connection alive."""
        self._quiet = quiet
        self._readers: Counter[Prediction] = Counter()
        self._dependent: dict[Prediction, Predictions] = {}  # on having a reader

    def open(
        self, prediction: Prediction, responder: Responder, *, predictions: Predictions, created: bool
    ) -> EventStream:
        """Return a stream of all events of a prediction; its `run` writes them.

        A prediction that was `created` for a stream is canceled when its last reader has gone; `predictions` is the
        table that it is in. Raises `TOO_MANY_READERS`.
        """
        if self._readers[prediction] >= MAX_READERS:
            raise GeartrainError(Code.TOO_MANY_READERS, "Too many stream subscribers")
        skipped = 0
        try:
            start = 0 if created else replay_start(prediction)
            reader = EventReader(prediction, start)  # before the prediction can change
        except EventsDroppedError as error:
            skipped = error.skipped
            reader = EventReader(prediction, prediction.log.next_index)
        self._readers[prediction] += 1
        if created:
            self._dependent[prediction] = predictions
        return EventStream(self, prediction, reader, responder=responder, skipped=skipped)

    @property
    def quiet(self) -> float:
        """The seconds without an event until a comment keeps the connection alive."""
        return self._quiet

    def release(self, prediction: Prediction) -> None:
        """Let a prediction go on without a reader: it was refused, and may join again with a PUT."""
        self._dependent.pop(prediction, None)

    def leave(self, prediction: Prediction) -> None:
        """Note that a reader has ended."""
        self._readers[prediction] -= 1
        if not self._readers[prediction]:
            del self._readers[prediction]
            if prediction in self._dependent:
                self._dependent.pop(prediction).abandon(prediction)


class EventStream:
    """One reader's answer."""

    def __init__(
        self,
        streams: EventStreams,
        prediction: Prediction,
        reader: EventReader,
        *,
        responder: Responder,
        skipped: int,
    ) -> None:
        """`skipped`: how many events are lost to it already."""
        self._streams = streams
        self._prediction = prediction
        self._reader = reader
        self._responder = responder
        self._skipped = skipped
        self._loop = asyncio.get_running_loop()
        self._written_at = self._loop.time()
        self._timer = self._loop.call_later(streams.quiet, self._tick)  # one for many events, however fast they come
        self._gone = False

    async def run(self) -> None:
        """Write events as they come, until the last one or until the client has gone."""
        stream = self._responder.open_stream(HTTPStatus.OK, _HEADERS)
        try:
            if self._skipped:
                await stream.write(sse.encode_error(sse.TRUNCATED, self._skipped))
            else:
                await self._write(stream)
            stream.end()
        except ClientGoneError:
            pass
        finally:
            self._timer.cancel()
            self._reader.close()
            self._streams.leave(self._prediction)

    async def _write(self, stream: AnswerStream) -> None:
        over = False
        while not over:
            try:
                events = await self._reader.batch()
            except LaggedError as error:
                if not self._gone:  # which would be why it did not read
                    await stream.write(sse.encode_error(sse.LAGGED, error.skipped))
                    self._streams.release(self._prediction)
                return
            if self._gone:
                return
            self._written_at = self._loop.time()
            if events:
                over = type(events[-1]) in LAST
                for piece in sse.encode_events(self._prediction, events):
                    await stream.write(piece)  # waits while the client does not read
            else:
                await stream.write(sse.KEEP_ALIVE)

    def leave(self) -> None:
        """Note that the client has disconnected."""
        self._gone = True
        self._reader.wake()

    def _tick(self) -> None:
        quiet = self._streams.quiet
        left = self._written_at + quiet - self._loop.time()
        if left <= 0:
            self._reader.wake()
            left = quiet
        self._timer = self._loop.call_later(left, self._tick)
