"""Runs batches: takes them from the store, answers their lines, and ends them.

A batch has one owner at a time. The store refuses what an earlier owner writes, so each line has one answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator
from typing import Final

from msgspec.structs import replace

from geartrain.apis.anthropic import batches as message_batches
from geartrain.apis.openai import batches as line_batches
from geartrain.apis.openai.batches import (
    MAX_LINES,
    MOST_FAULTS,
    Ids,
    Line,
    LineCutter,
    LineError,
    expired,
    read_line,
)
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.batch_jobs import (
    Batch,
    BatchEnd,
    BatchFault,
    BatchOwnership,
    BatchProgress,
    BatchStatus,
    LineAnswer,
)
from geartrain.domain.predictions.ledger import Hold
from geartrain.service.durable.durability import Durability
from geartrain.transport.openai.batch_lines import Lines, Reply
from geartrain.transport.openai.stored_files import content_of

logger = logging.getLogger(__name__)

MAX_RUNNING: Final = 4
"""Batches that a server runs at once; others wait in the store."""

KEPT: Final = 2_592_000.0
"""Seconds that a batch is kept after its end, and after its files."""

WRITTEN_AT_ONCE: Final = 64
"""Answers that are written at once, and that wait for it at most beside those of running lines."""

_LOOK: Final = 0.5  # seconds between two looks at the wishes of clients and other servers
_PAUSE: Final = 0.02  # seconds between two looks for room in front of a model
_FIRST_RETRY: Final = 1.0  # seconds
_LAST_RETRY: Final = 30.0
_AGAIN: Final = frozenset({429, 503})  # statuses of a model that may answer later
_LAST_WRITES: Final = 5.0  # seconds that answers have to be written when the server stops
_TIDY: Final = 60.0  # seconds


class _FencedError(Exception):
    """Another server has the batch, or it has ended."""


def _cut_all(cutter: LineCutter, piece: bytes) -> list[tuple[int, bytes]]:
    return list(cutter.cut(piece))


class BatchRunner:
    """The batches that this server runs."""

    def __init__(self, durability: Durability, lines: Lines) -> None:
        self._durability = durability
        self._lines = lines
        self._wake = asyncio.Event()
        self._jobs: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._tidy_at = 0.0
        durability.on_batch = self._wake.set

    def start(self) -> None:
        """Take batches from now on."""
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """Break off what runs, and leave it to the next server. Repeating it is harmless."""
        tasks = [each for each in (self._task, *self._jobs) if each is not None and not each.done()]
        for each in tasks:
            each.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._take()
                await self._tidy()
            except GeartrainError as error:
                logger.warning("the store of batches gave no answer", extra={"reason": error.message})
            except Exception:
                logger.exception("the store of batches could not be asked")
            with contextlib.suppress(TimeoutError):
                # Leases end, and other servers add batches, without a word.
                async with asyncio.timeout(self._durability.settings.lease / 3):
                    await self._wake.wait()

    async def _take(self) -> None:
        durability, room = self._durability, MAX_RUNNING - len(self._jobs)
        if room <= 0:
            return
        for batch in await durability.ask(durability.store.batches.take_batches(durability.owner, limit=room)):
            job = asyncio.ensure_future(_Job(durability, self._lines, batch).run())
            self._jobs.add(job)
            job.add_done_callback(self._on_over)

    def _on_over(self, job: asyncio.Task[None]) -> None:
        self._jobs.discard(job)
        self._wake.set()

    async def _tidy(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._tidy_at:
            self._tidy_at = now + _TIDY
            while await self._durability.ask(self._durability.store.batches.remove_old(KEPT)):
                pass


class _Job:
    """One batch that this server runs."""

    def __init__(self, durability: Durability, lines: Lines, batch: Batch) -> None:
        self._durability = durability
        self._batches = durability.store.batches
        self._lines = lines
        self._batch = batch
        self._form = message_batches if batch.new.is_of_messages else line_batches
        self._mine = BatchOwnership(batch.new.id, batch.owner, batch.epoch)
        self._done: list[LineAnswer] = []
        self._has_done = asyncio.Event()

    async def run(self) -> None:
        """Bring the batch to its end. If that is cancelled, the batch is left to any server."""
        try:
            await self._insist()
        except _FencedError:
            return
        except asyncio.CancelledError:
            with contextlib.suppress(GeartrainError, _FencedError, TimeoutError):
                async with asyncio.timeout(_LAST_WRITES):
                    await self._write()
                    await self._batches.give_back(self._mine)
            raise

    async def _insist(self) -> None:
        """Run until the end is written. A store that is away is asked again."""
        while True:
            try:
                await self._work()
            except GeartrainError as error:
                logger.warning("a batch waits for the store", extra={"batch": self._mine.id, "reason": error.message})
                await asyncio.sleep(self._durability.settings.lease / 3)
            except _FencedError:
                raise
            except LineError as error:
                await self._end(BatchStatus.FAILED, (error.fault,))
                return
            except Exception:
                logger.exception("a batch failed", extra={"batch": self._mine.id})
                await self._end(BatchStatus.FAILED, (BatchFault("internal", "Internal server error"),))
                return
            else:
                return

    async def _work(self) -> None:
        if self._batch.status is BatchStatus.CANCELLING:
            await self._end(BatchStatus.CANCELLED)
            return
        working = asyncio.ensure_future(self._validate_and_answer())
        watching = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (working, watching):
                each.cancel()
            await asyncio.wait((working, watching))
        found = working if not working.cancelled() else watching
        status, faults = found.result()
        await self._write()
        if status is BatchStatus.EXPIRED and not self._batch.new.is_of_messages:  # theirs are in no file
            await self._expire()
        await self._end(status, faults)

    async def _watch(self) -> tuple[BatchStatus, tuple[BatchFault, ...]]:
        """Wait until the batch has to end before each line has an answer."""
        while True:
            if time.time() >= self._batch.new.expires_at:
                return BatchStatus.EXPIRED, ()
            with contextlib.suppress(GeartrainError):  # lines are answered while the store is away
                hold = await self._durability.ask(self._batches.hold_batch(self._mine))
                if hold is Hold.CANCELING:
                    return BatchStatus.CANCELLED, ()
                self._check(hold)
            await asyncio.sleep(min(_LOOK, max(0.0, self._batch.new.expires_at - time.time())))

    async def _validate_and_answer(self) -> tuple[BatchStatus, tuple[BatchFault, ...]]:
        if self._batch.status is BatchStatus.VALIDATING:
            progress, faults = await self._validate()
            if faults:
                return BatchStatus.FAILED, faults
            self._check(await self._durability.ask(self._batches.note_progress(self._mine, progress)))
            self._batch = replace(self._batch, status=BatchStatus.IN_PROGRESS, progress=progress)
        await self._answer_all()
        return BatchStatus.COMPLETED, ()

    async def _end(self, status: BatchStatus, faults: tuple[BatchFault, ...] = ()) -> None:
        output_file, error_file = f"file-{secrets.token_hex(12)}", f"file-{secrets.token_hex(12)}"
        end = BatchEnd(status, time.time(), output_file, error_file, faults)
        ended = await self._durability.ask(self._batches.end_batch(self._mine, end))
        if ended is not None:
            logger.info("a batch has ended", extra={"batch": self._mine.id, "status": ended.status.value})

    @staticmethod
    def _check(hold: Hold) -> None:
        if hold is Hold.FENCED:
            raise _FencedError

    # the file

    async def _cut(self) -> AsyncIterator[list[tuple[int, bytes]]]:
        """Yield the lines of the file, some at once. Raises `LineError`."""
        file = await self._durability.ask(self._batches.find_file(self._batch.new.input_file, is_used=True))
        if file is None:
            raise LineError("file_not_found", "The file of the batch is gone.", param="input_file_id", line=0)
        cutter = LineCutter()
        async for piece in content_of(self._durability, file):
            yield await asyncio.to_thread(_cut_all, cutter, piece)
        yield list(cutter.cut(b"", is_last=True))

    async def _validate(self) -> tuple[BatchProgress, tuple[BatchFault, ...]]:
        """Read each line; return the progress of a batch that can run, or the faults of one that cannot."""
        if self._batch.new.total:
            return BatchProgress(self._batch.new.total, in_progress_at=time.time()), ()
        ids, models = Ids(), set[str]()
        faults: list[BatchFault] = []
        total, first = 0, ""
        try:
            async for lines in self._cut():
                read = await asyncio.to_thread(self._read_all, lines, ids, faults)
                total += len(lines)
                first = first or next((line.model for line in read), "")
                for line in read:
                    if line.model not in models:
                        self._check_model(line, faults)
                        models.add(line.model)
                if total > MAX_LINES:
                    msg = f"The file has more than {MAX_LINES:,} requests: make several batches of it."
                    raise LineError("too_many_requests", msg, line=0)
                if len(faults) >= MOST_FAULTS:
                    break
        except LineError as error:
            faults.append(error.fault)
        if not total and not faults:
            faults.append(BatchFault("empty_file", "The file has no requests."))
        return BatchProgress(total, first, in_progress_at=time.time()), tuple(faults[:MOST_FAULTS])

    def _read_all(self, lines: list[tuple[int, bytes]], ids: Ids, faults: list[BatchFault]) -> list[Line]:
        found = []
        for number, text in lines:
            try:
                line = read_line(number, text, self._batch.new.endpoint)
                ids.add(line)
                found.append(replace(line, body=b""))
            except LineError as error:
                faults.append(error.fault)
                if len(faults) >= MOST_FAULTS:
                    break
        return found

    def _check_model(self, line: Line, faults: list[BatchFault]) -> None:
        try:
            self._lines.check_model(self._batch.new, line.model)
        except GeartrainError as error:
            if error.code in {Code.NOT_FOUND, Code.FORBIDDEN}:
                faults.append(BatchFault("model_not_found", error.message, "body.model", line.number))

    # the answers

    async def _answer_all(self) -> None:
        """Ask each line that has no answer. Raises `_FencedError`, and `GeartrainError` if the store is away."""
        answered = await self._durability.ask(self._batches.answered(self._mine.id))
        asking: set[asyncio.Task[None]] = set()
        writing = asyncio.ensure_future(self._keep_writing())
        try:
            async for lines in self._cut():
                for number, text in lines:
                    if number in answered:
                        continue
                    line = read_line(number, text, self._batch.new.endpoint)
                    await self._wait_for_room(line, writing)
                    task = asyncio.ensure_future(self._answer(line))
                    asking.add(task)
                    task.add_done_callback(asking.discard)
                    await asyncio.sleep(0)  # it takes its place before the next one looks for room
            while asking and not writing.done():
                await asyncio.wait((writing, *asking), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writing, *asking):
                task.cancel()
            await asyncio.wait((writing, *asking))
        if not writing.cancelled():
            writing.result()  # it raises

    async def _wait_for_room(self, line: Line, writing: asyncio.Future[None]) -> None:
        while not self._may_start(line) or len(self._done) >= WRITTEN_AT_ONCE:
            if writing.done():
                writing.result()
            await asyncio.sleep(_PAUSE)

    def _may_start(self, line: Line) -> bool:
        try:
            return self._lines.has_room(self._batch.new, line.model)
        except GeartrainError as error:
            return error.code in {Code.NOT_FOUND, Code.FORBIDDEN}  # it is told by the answer

    async def _answer(self, line: Line) -> None:
        if line.is_stream:
            answer = self._form.unanswered(line, "unsupported_parameter", "'stream' is not supported in a batch.")
        else:
            try:
                reply = await self._ask(line)
                answer = self._form.answer_of(line, reply.status, reply.body, request_id=reply.request_id)
            except Exception:
                logger.exception("a line of a batch failed", extra={"batch": self._mine.id, "line": line.number})
                answer = self._form.unanswered(line, "internal", "Internal server error")
        if self._durability.is_leaving:
            return  # its run was ended by the end of this server
        self._done.append(answer)
        self._has_done.set()

    async def _ask(self, line: Line) -> Reply:
        """Ask a line, again and again while its model cannot answer now."""
        pause = _FIRST_RETRY
        while True:
            reply = await self._lines.ask(self._batch.new, line.model, line.body)
            if reply.status not in _AGAIN:
                return reply
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_RETRY)
            await self._wait_until_free(line)

    async def _wait_until_free(self, line: Line) -> None:
        while not self._may_start(line):  # noqa: ASYNC110 - a scheduler tells nobody that its queue is empty
            await asyncio.sleep(_PAUSE)

    async def _keep_writing(self) -> None:
        while True:
            await self._has_done.wait()
            self._has_done.clear()
            await self._write()

    async def _write(self) -> None:
        """Write the answers that wait. Raises `_FencedError`; a store that is away is asked again."""
        while self._done:
            answers = self._done[:WRITTEN_AT_ONCE]
            try:
                self._check(await self._durability.ask(self._batches.add_lines(self._mine, answers)))
            except GeartrainError as error:
                logger.warning("answers of a batch wait for the store", extra={"reason": error.message})
                await asyncio.sleep(_FIRST_RETRY)
                continue
            del self._done[: len(answers)]

    async def _expire(self) -> None:
        """Answer each line that has none."""
        answered = await self._durability.ask(self._batches.answered(self._mine.id))
        with contextlib.suppress(LineError):
            async for lines in self._cut():
                for number, text in lines:
                    if number not in answered:
                        with contextlib.suppress(LineError):
                            self._done.append(expired(read_line(number, text, self._batch.new.endpoint)))
                await self._write()
