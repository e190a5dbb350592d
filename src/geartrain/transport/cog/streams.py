"""A prediction as a stream of server-sent events."""

from __future__ import annotations

import asyncio
from collections import Counter
from http import HTTPStatus
from itertools import chain
from typing import TYPE_CHECKING, Final

from geartrain.apis import sse
from geartrain.apis.cog import takes_long
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.events import LAST, Completed, EventsDroppedError
from geartrain.service.models.predictions import Holder
from geartrain.service.readers import EventReader, LaggedError, replay_start
from geartrain.transport.large_bodies import read_aside
from geartrain.transport.wire.exchange import ClientGoneError

if TYPE_CHECKING:
    from geartrain.domain.predictions.prediction import Prediction
    from geartrain.domain.tensors.tensor import Buffer
    from geartrain.service.models.predictions import Holders
    from geartrain.transport.wire.exchange import AnswerStream, Responder

MAX_READERS: Final = 1024  # of one prediction
_HEADERS: Final = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"))


class EventStreams:
    """The streams of one endpoint, and the number of readers of each prediction."""

    def __init__(self, *, quiet: float, grace: float) -> None:
        """`quiet`: the seconds without an event until a comment keeps the connection alive.

        `grace`: see `CogOptions.stream_grace`.
        """
        self.quiet = quiet
        self.grace = grace
        self._readers: Counter[Prediction] = Counter()

    def open(
        self, prediction: Prediction, responder: Responder, *, holders: Holders, holder: Holder, created: bool
    ) -> EventStream:
        """Return a stream of all events of a prediction; its `run` writes them.

        `holder`: the part of this client in it. `created`: the prediction was made for this stream. Raises
        `TOO_MANY_READERS`.
        """
        if self._readers[prediction] >= MAX_READERS:
            raise GeartrainError(Code.TOO_MANY_READERS, "Too many stream subscribers")
        skipped = 0
        try:
            reader = EventReader(prediction, None if created else replay_start(prediction))  # before it can change
        except EventsDroppedError as error:
            skipped = error.skipped
            reader = EventReader(prediction, prediction.log.next_index)
        self._readers[prediction] += 1
        if not created:
            holders.join(prediction)
        return EventStream(
            self, prediction, reader, responder=responder, skipped=skipped, holders=holders, holder=holder
        )

    def leave(self, prediction: Prediction) -> None:
        """Remove a reader."""
        self._readers[prediction] -= 1
        if not self._readers[prediction]:
            del self._readers[prediction]


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
        holders: Holders,
        holder: Holder,
    ) -> None:
        """`skipped`: how many events are lost to it already. `holder`: its client among the `holders`."""
        self._streams = streams
        self._prediction = prediction
        self._reader = reader
        self._responder = responder
        self._skipped = skipped
        self._loop = asyncio.get_running_loop()
        self._written_at = self._loop.time()
        self._timer = self._loop.call_later(streams.quiet, self._tick)  # one for many events, however fast they come
        self._gone = False
        self._holders = holders
        self._holder = holder

    async def run(self, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        """Write events as they come, until the last one or until the client has gone.

        `headers` are sent beside those of every stream.
        """
        stream = self._responder.open_stream(HTTPStatus.OK, (*_HEADERS, *headers))
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
            self._holders.leave(self._prediction, self._holder, self._streams.grace)

    async def _write(self, stream: AnswerStream) -> None:
        over = False
        while not over:
            try:
                events = await self._reader.batch()
            except LaggedError as error:
                if not self._gone:  # which would be why it did not read
                    await stream.write(sse.encode_error(sse.LAGGED, error.skipped))
                    self._holder = Holder.TOLD  # it was sent away, and may join again with a PUT
                return
            if self._gone:
                return
            self._written_at = self._loop.time()
            if not events:
                await stream.write(sse.KEEP_ALIVE)
                continue
            over = type(events[-1]) in LAST
            parts: tuple[Buffer, ...] = ()
            if type(events[-1]) is Completed and takes_long(self._prediction):
                del events[-1]
                parts = await read_aside(sse.encode_completed, self._prediction)
            for piece in chain(sse.encode_events(self._prediction, events), map(bytes, parts)):
                await stream.write(piece)  # waits while the client does not read

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
