"""The parent's end of a slot: one Unix socket that carries one prediction at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import msgspec

from geartrain.bridge.folder import WorkerFolder
from geartrain.bridge.framing import FrameError, FrameReader, frame
from geartrain.bridge.messages import (
    ALL,
    PROTOCOL_VERSION,
    Attach,
    Cancelled,
    Done,
    Ended,
    Failed,
    FileOutput,
    ItemEnd,
    Log,
    Metric,
    Output,
    Predict,
    PredictBatch,
    SlotToParent,
    decode_slot_to_parent,
    encode,
)
from geartrain.bridge.parcels import Parcels
from geartrain.bridge.vigil import Vigil
from geartrain.domain import work

logger = logging.getLogger(__name__)

_CHUNK = 65_536  # bytes
_SWIFT = 350e-6  # seconds; after a run as short as that the next one is awaited on the spot
_BRIEFLY = 500e-6  # seconds; for so long
may_spin = len(os.sched_getaffinity(0)) > 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) > 1


class _Kept(NamedTuple):
    """A job that the slot is kept for: its number among the slot's jobs, its id, and who hears of it."""

    serial: int
    job_id: str
    listener: work.JobListener


class SlotChannel(asyncio.Protocol):
    """Translates the messages of one slot into calls of the listener whose job runs on it."""

    receiving = 0  # how many channels are telling their listeners something: at most one inside another

    def __init__(
        self,
        folder: WorkerFolder,
        *,
        on_attach: Callable[[int, SlotChannel], bool],
        before_end: Callable[[], None],
    ) -> None:
        """Make the protocol of one connection.

        `on_attach(slot, channel)` admits it; `before_end()` is called just before a job ends, so that whatever the
        job wrote to the descriptors comes first.
        """
        self._folder = folder
        self._on_attach = on_attach
        self._before_end = before_end
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._attached = False
        self._is_closed = False
        self._fd = -1
        self._sent_at = 0.0  # on the performance counter, as seconds
        self._is_swift = False
        self._files: list[work.FileRef] = []  # of the output that comes next
        self._originals: list[str] = []  # the job's own temporary files, as `FileOutput` has them
        self.parcels = Parcels()
        self.vigil: Vigil | None = None  # where runs come one at a time
        self.serial = 0  # of the job that runs
        self._last_serial = 0
        self._ahead: _Kept | None = None  # what runs next
        self.is_last = False  # the worker is to end after this job
        self.job_id: str | None = None
        self.listener: work.JobListener | None = None
        self.lost = asyncio.get_running_loop().create_future()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        if self._is_closed:
            transport.close()
            return
        self._transport = cast("asyncio.Transport", transport)
        self._fd = self._transport.get_extra_info("socket").fileno()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        SlotChannel.receiving += 1
        try:
            for payload in self._reader.feed(data):
                message = decode_slot_to_parent(payload)
                listener = self.listener
                if isinstance(message, (Output, Done)) and message.shared:
                    output = self.parcels.take(message.shared)
                    message = msgspec.structs.replace(message, output=output, shared=0)
                if type(message) is Output and message.item == ALL and listener is not None and not self._files:
                    # nearly all of a stream
                    listener.on_output(message.output, ())
                else:
                    self._receive(message)
        except (FrameError, ValueError):  # msgspec's errors are ValueErrors
            logger.exception("a slot's channel carried nonsense; closing it")
            self.close()
        finally:
            SlotChannel.receiving -= 1

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """See `asyncio.BaseProtocol`."""
        self._forget()
        if not self.lost.done():
            self.lost.set_result(None)

    # towards the worker

    def occupy(self, job_id: str, listener: work.JobListener) -> int:
        """Keep the slot for a job; `listener` hears of it until its end. Return the job's serial number.

        While another one runs there, the job is the next, and its listener a `BatchListener`.
        """
        self._last_serial += 1
        kept = _Kept(self._last_serial, job_id, listener)
        if self.listener is None:
            self.serial, self.job_id, self.listener = kept
        else:
            self._ahead = kept
        return kept.serial

    def send(self, message: Predict | PredictBatch, *, alone: bool = False) -> None:
        """Start the job that the slot is kept for.

        `alone`: no other job runs. If the last one on this slot was over in a moment, this one is awaited on the spot
        for as long: being put to sleep and woken again would cost more than such a job does.
        """
        if self._transport is None:
            return
        self._sent_at = time.perf_counter()
        self._write(self._transport, frame(encode(message)))
        if message.id == self.job_id:
            if self.vigil is not None:
                self.vigil.begin()
            if type(message) is PredictBatch:
                cast("work.BatchListener", self.listener).on_begin()
        # Not for one that begins where another ends, or a queue of them would end one inside the other.
        if alone and self._is_swift and not SlotChannel.receiving:
            self._await_briefly()

    def take_listener(self) -> work.JobListener | None:
        """End the job from outside: return its listener, which will hear nothing more from this channel."""
        listener, self.listener = self.listener, None
        self.job_id = None
        self._folder.discard(self._take_files())
        return listener

    def take_originals(self) -> list[str]:
        """What a worker that has died can no longer delete."""
        originals, self._originals = self._originals, []
        return originals

    def close(self) -> None:
        """Drop the connection, also one that is still to be made."""
        self._is_closed = True
        self.parcels.close()
        if self.vigil is not None:
            self.vigil.close()
        if self._transport is not None:
            self._transport.close()
            self._forget()

    def _forget(self) -> None:
        """Never touch the descriptor again: its number is free to become another connection's, such as a client's."""
        self._transport = None
        self._fd = -1

    def _write(self, transport: asyncio.Transport, data: bytes) -> None:
        """Write straight to the socket: usually it takes all, and no buffer or callback is needed."""
        if not transport.get_write_buffer_size():
            with contextlib.suppress(OSError):  # full, or broken: the transport will deal with it
                data = data[os.write(self._fd, data) :]
        if data:
            transport.write(data)

    def _await_briefly(self) -> None:
        until = self._sent_at + _BRIEFLY
        while self.listener is not None and time.perf_counter() < until:
            try:
                data = os.read(self._fd, _CHUNK)
            except OSError:
                os.sched_yield()  # whoever else has something to do on this core goes first
                continue
            if not data:  # the end: the transport will see it too
                return
            self.data_received(data)

    # from the worker

    def _receive(self, message: SlotToParent) -> None:
        listener = self.listener
        kind = type(message)
        if kind is Done:
            done = cast("Done", message)
            self._end(done.id, work.Succeeded(None if done.is_stream else done.output, done.predict_time))
        elif kind is Ended:
            self._end_items(cast("Ended", message))
        elif listener is None or not self._attached:
            self._receive_idle(message)
        else:
            _HANDLERS[kind](self, listener, message)

    def _receive_idle(self, message: SlotToParent) -> None:
        if isinstance(message, Attach) and not self._attached and message.protocol == PROTOCOL_VERSION:
            self._attached = self._on_attach(message.slot, self)
            if self._attached:
                self.parcels.is_possible = message.shares_memory and not self._is_closed
                return
        # A late word about a job that has been ended from outside is no fault; count on nothing else.
        if isinstance(message, FileOutput):
            self._folder.discard((_reference(message),))
        logger.debug("a slot spoke of no running job", extra={"worker_message": type(message).__name__})

    def _end(self, job_id: str, outcome: work.Outcome) -> None:
        if self.listener is None or job_id != self.job_id:
            return
        self._stop_clock(outcome.predict_time if isinstance(outcome, work.Succeeded) else None)
        self._before_end()
        files = self._take_files()
        self._originals.clear()
        listener = self.take_listener()
        if listener is not None:
            listener.on_end(outcome, files, idle=True)
        if self.is_last and self.is_free():
            self.close()

    def _stop_clock(self, predict_time: float | None) -> None:
        took = time.perf_counter() - self._sent_at if predict_time is None else predict_time
        self._is_swift = may_spin and took < _SWIFT
        if self.vigil is not None:
            self.vigil.end()

    def _end_items(self, message: Ended) -> None:
        outcomes = self._outcomes(message)  # also of a batch that nobody waits for: what it left has to go
        listener = self.listener
        if listener is None or message.id != self.job_id:
            for outcome in outcomes:
                self._folder.discard(outcome.files)
            return
        self._before_end()
        if message.last:
            self._stop_clock(message.predict_time)
            self._originals.clear()
            self.take_listener()
            self.begin_next()
        cast("work.BatchListener", listener).on_item_ends(outcomes, idle=message.last)
        if self.is_last and self.is_free():
            self.close()

    def begin_next(self) -> None:
        """What lay ready is what the worker runs now."""
        kept, self._ahead = self._ahead, None
        if kept is not None:
            self.serial, self.job_id, self.listener = kept
            if self.vigil is not None:
                self.vigil.begin()
            cast("work.BatchListener", kept.listener).on_begin()

    def holds(self, listener: work.JobListener) -> bool:
        """Whether a job is on the slot, or lies ready for it."""
        return self.listener is listener or (self._ahead is not None and self._ahead.listener is listener)

    def take_ahead(self) -> work.BatchListener | None:
        """Return the listener of a batch that lies ready, which will hear nothing more from this channel."""
        kept, self._ahead = self._ahead, None
        return None if kept is None else cast("work.BatchListener", kept.listener)

    def _outcomes(self, message: Ended) -> list[work.ItemOutcome]:
        size = sum([end.shared for end in message.ends])
        shared = memoryview(self.parcels.take(size)) if size else memoryview(b"")
        files = self._take_files()
        outcomes = []
        position = 0
        for end in message.ends:
            output = end.output
            if end.shared:
                output = bytes(shared[position : position + end.shared])
                position += end.shared
            outcomes.append(work.ItemOutcome(end.item, _outcome(end, output, message), files))
        return outcomes

    def is_free(self) -> bool:
        """Whether no job is on the slot."""
        return self.listener is None

    def _on_log(self, listener: work.JobListener, message: Log) -> None:
        _addressee(listener, message.item).on_log(message.source, message.data)

    def _on_output(self, listener: work.JobListener, message: Output) -> None:
        _addressee(listener, message.item).on_output(message.output, self._take_files() if self._files else ())

    def _take_files(self) -> tuple[work.FileRef, ...]:
        files, self._files = tuple(self._files), []
        return files

    def _on_file(self, _listener: work.JobListener, message: FileOutput) -> None:
        file = _reference(message)
        self._folder.lend(file)
        self._files.append(file)
        self._originals += message.originals

    def _on_metric(self, listener: work.JobListener, message: Metric) -> None:
        _addressee(listener, message.item).on_metric(message.name, message.value, message.mode)

    def _on_failed(self, _listener: work.JobListener, message: Failed) -> None:
        self._end(message.id, work.Failed(message.error))

    def _on_cancelled(self, _listener: work.JobListener, message: Cancelled) -> None:
        self._end(message.id, work.Canceled())


async def stop_accepting(server: asyncio.Server | None, listener: socket.socket) -> None:
    """Close a listener, and the server that listens there; who has been accepted by then gets its channel."""
    if server is not None and server.is_serving():
        loop = server.get_loop()
        # asyncio makes the transport of a connection in a task of its own. If the server were closed in between, the
        # task would fail and leave the connection open: so first nobody comes any more, then that task has its turn.
        loop.remove_reader(listener)
        await asyncio.sleep(0)
        server.close()  # and the socket with it: closed by itself, its number would stay with the loop
    listener.close()


def _addressee(listener: work.JobListener, item: int) -> work.JobListener:
    """Who a message is for: the job, the batch, or one of its items."""
    return listener if item == ALL else cast("work.BatchListener", listener).item(item)


def _outcome(end: ItemEnd, output: bytes | None, message: Ended) -> work.Outcome:
    if end.error is not None:
        return work.Failed(end.error)
    if end.canceled:
        return work.Canceled()
    return work.Succeeded(None if message.is_stream else output, message.predict_time)


def _reference(message: FileOutput) -> work.FileRef:
    is_output = message.kind == "oversized"
    return work.FileRef(message.token, message.filename, message.mime_type, is_output=is_output)


_HANDLERS: dict[type, Callable[[SlotChannel, work.JobListener, Any], None]] = {
    Log: SlotChannel._on_log,  # noqa: SLF001 - the class's own table
    Output: SlotChannel._on_output,  # noqa: SLF001 - the class's own table
    FileOutput: SlotChannel._on_file,  # noqa: SLF001 - the class's own table
    Metric: SlotChannel._on_metric,  # noqa: SLF001 - the class's own table
    Failed: SlotChannel._on_failed,  # noqa: SLF001 - the class's own table
    Cancelled: SlotChannel._on_cancelled,  # noqa: SLF001 - the class's own table
}
