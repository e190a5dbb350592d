"""The parent's side of what a slot shares with its worker: packed inputs down, packed outputs up."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from geartrain.bridge.arena import LARGEST, WORTHWHILE, Arena
from geartrain.bridge.framing import INLINE_LIMIT, FrameError
from geartrain.bridge.messages import BatchItem, Predict, PredictBatch, SlotMemory
from geartrain.domain.tensors import Buffer, pack, stack
from geartrain.domain.work import BatchJob, Job

logger = logging.getLogger(__name__)


class Parcels:
    """The memory of one slot, made for the first job with tensors, and held as long as the slot."""

    def __init__(self) -> None:
        self._down: Arena | None = None
        self._up: Arena | None = None
        self._empty: SlotMemory | None = None  # what tells of the memory when it holds no input
        self.is_possible = False  # whether the worker can open what is made here

    def put(self, parts: Sequence[Buffer]) -> SlotMemory | None:
        """Leave an input for the worker if it is large; return what tells it of the slot's memory, None without any.

        To be called while no job is on the slot: the one before has read its input, or never will.
        """
        if not self._make() or self._down is None or self._empty is None:
            return None
        if not WORTHWHILE < sum(map(len, parts)) <= LARGEST:
            return self._empty
        try:
            size = self._down.write(parts)
        except OSError as error:
            logger.warning("an input finds no shared memory: %s", error)
            return self._empty
        return SlotMemory(self._empty.input, self._empty.output, size)

    def take(self, size: int) -> bytes:
        """Return an output that the worker has left, as a copy; raise `FrameError` if there is none of that size."""
        try:
            if self._up is not None:
                return self._up.take(size)
        except OSError as error:
            raise FrameError(str(error)) from error
        msg = "the worker speaks of shared memory, and there is none"
        raise FrameError(msg)

    def close(self) -> None:
        """Give the memory back, and make none any more."""
        self.is_possible = False
        for arena in (self._down, self._up):
            if arena is not None:
                arena.close()
        self._down = self._up = self._empty = None

    def _make(self) -> bool:
        if self._down is None and self.is_possible:
            try:
                self._down = Arena.create()
                self._up = Arena.create()
                self._empty = SlotMemory(self._down.path, self._up.path, 0)
            except OSError as error:
                logger.info("tensors travel without shared memory: %s", error)
                self.close()
        return self._down is not None


def new_probe() -> Arena | None:
    """Memory by which a worker can tell whether it can open ours; None where there is no such memory."""
    try:
        return Arena.create()
    except OSError as error:
        logger.info("tensors travel without shared memory: %s", error)
        return None


def parts_of(job: Job | BatchJob) -> list[Buffer]:
    """The input of a job as it travels."""
    if isinstance(job, BatchJob):
        json = b"[" + b",".join([each.input for each in job.jobs]) + b"]"
        return stack(json, [each.tensors for each in job.jobs if each.tensors is not None])
    return [job.input] if job.tensors is None else pack(job.input, job.tensors)


def message_of(job: Job | BatchJob, serial: int, parcels: Parcels, *, outputs: str) -> Predict | PredictBatch | None:
    """The message that starts a job, its input within or in the slot's memory; None if it has to go into a file."""
    if isinstance(job, BatchJob):
        return predict_batch_of(job, serial, parcels, outputs=outputs)
    return predict_of(job, serial, parcels, outputs=outputs)


def spilled_message_of(
    job: Job | BatchJob, serial: int, parcels: Parcels, *, outputs: str, path: str
) -> Predict | PredictBatch:
    """As `message_of`, of a job whose input is in a file."""
    if isinstance(job, BatchJob):
        memory = parcels.put(()) if _has_tensors(job) else None
        return PredictBatch(job.id, serial, _items(job), None, path, outputs, memory)
    return spilled_predict_of(job, serial, parcels, outputs=outputs, path=path)


def predict_of(job: Job, serial: int, parcels: Parcels, *, outputs: str) -> Predict | None:
    """See `message_of`."""
    if job.tensors is None:
        if len(job.input) > INLINE_LIMIT:
            return None
        return Predict(job.id, serial, job.input, None, outputs, job.context, job.parameters)
    parts = parts_of(job)
    memory = parcels.put(parts)
    there = memory is not None and memory.input_size > 0
    if not there and sum(map(len, parts)) > INLINE_LIMIT:
        return None
    packed = None if there else b"".join(parts)
    return Predict(job.id, serial, packed, None, outputs, job.context, job.parameters, packed=True, memory=memory)


def predict_batch_of(batch: BatchJob, serial: int, parcels: Parcels, *, outputs: str) -> PredictBatch | None:
    """See `message_of`."""
    parts = parts_of(batch)
    # What comes ahead stays out of the memory: the batch that runs has its input there.
    memory = parcels.put(() if batch.ahead else parts) if _has_tensors(batch) else None
    there = memory is not None and memory.input_size > 0
    if not there and sum(map(len, parts)) > INLINE_LIMIT:
        return None
    packed = None if there else b"".join(parts)
    return PredictBatch(batch.id, serial, _items(batch), packed, None, outputs, memory)


def _items(batch: BatchJob) -> tuple[BatchItem, ...]:
    return tuple(
        [
            BatchItem(job.id, size, job.tensors is not None, job.context, job.parameters)
            for job, size in zip(batch.jobs, batch.sizes, strict=True)
        ]
    )


def _has_tensors(batch: BatchJob) -> bool:
    return any(job.tensors is not None for job in batch.jobs)


def spilled_predict_of(job: Job, serial: int, parcels: Parcels, *, outputs: str, path: str) -> Predict:
    """See `spilled_message_of`."""
    packed = job.tensors is not None
    memory = parcels.put(()) if packed else None
    return Predict(job.id, serial, None, path, outputs, job.context, job.parameters, packed=packed, memory=memory)
