"""The flow of rows: read and checked in one thread, run by the model, written in their order in another thread.

Nothing grows with the data set: a few chunks are read ahead, a window of rows is on its way, and rows that wait for a
slower one before them are bounded by number and by bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Final, NamedTuple

from geartrain.dataset.columns import Columns, Row
from geartrain.dataset.errors import DatasetError
from geartrain.dataset.results import Result, Tally
from geartrain.dataset.runs import Runs
from geartrain.dataset.sinks import Sink
from geartrain.dataset.sources import Source

_AHEAD: Final = 4  # chunks that are read ahead
_MOST_BYTES: Final = 256 * 1024**2  # of inputs on their way, and of outputs that wait for a row before them
_WINDOWS: Final = 8  # so many windows of rows may wait for one before them
_WRITE: Final = 256  # results that are written at a time, if there are so many
_PAUSE: Final = 0.05  # seconds that fewer may wait


class TooManyErrorsError(DatasetError):
    """More rows have failed than the caller allows."""


class RowSource(NamedTuple):
    """A data set, and the inputs that its columns are."""

    source: Source
    columns: Columns


class _OnTheirWay:
    """Rows that are being run: their number, and the bytes of their inputs."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, rows: list[Row]) -> None:
        """Count rows that begin."""
        sizes = {row.number: len(row.input) for row in rows}
        self._sizes.update(sizes)
        self.bytes += sum(sizes.values())

    def remove(self, results: list[Result]) -> None:
        """Count rows that have their results; those that never began are ignored."""
        pop = self._sizes.pop
        self.bytes -= sum([pop(result.number, 0) for result in results])


class _InOrder:
    """Results in the order of their rows: one that comes early waits for those before it."""

    def __init__(self, following: int) -> None:
        """`following`: the number of the first row."""
        self._early: dict[int, Result] = {}
        self._following = following
        self.ready: list[Result] = []
        self.bytes = 0  # of all outputs

    def add(self, results: list[Result]) -> bool:
        """Take results; return True if there are more that are ready."""
        early, ready, following = self._early, self.ready, self._following
        before = len(ready)
        for result in results:
            self.bytes += len(result.output or b"")
            if result.number != following:
                early[result.number] = result
                continue
            ready.append(result)
            following += 1
            while early and (found := early.pop(following, None)) is not None:
                ready.append(found)
                following += 1
        self._following = following
        return len(ready) > before

    def take(self) -> list[Result]:
        """Return the results that are ready, which `written` has to follow."""
        ready, self.ready = self.ready, []
        return ready

    def written(self, results: list[Result]) -> None:
        """Let go of results."""
        self.bytes -= sum(len(result.output or b"") for result in results)


class Engine:
    """One run of a data set."""

    def __init__(
        self,
        rows: RowSource,
        runs: Runs,
        sink: Sink,
        *,
        tally: Tally,
        max_errors: int | None = None,
        most_rows: int | None = None,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        """`max_errors`: rows that may fail, None for any number. `most_rows`: those that are run, None for all.

        `on_step` is called when rows have been written.
        """
        self._source, self._columns = rows
        self._runs = runs
        self._sink = sink
        self._tally = tally
        self._max_errors = max_errors
        self._most_rows = most_rows
        self._on_step = on_step
        self._is_stopping = False
        self._running = _OnTheirWay()
        self._first = max(rows.source.first, sink.done)  # the number of the first row to run
        self._results = _InOrder(self._first)
        self._unwritten = 0  # rows that have begun
        self._has_room: asyncio.Future[None] | None = None
        self._has_ready = asyncio.Event()
        self._is_due = False
        self._is_read = False
        self._faults: list[Exception] = []
        runs.on_fault = self._on_fault

    async def run(self) -> bool:
        """Run all rows; return False if `stop` has ended it before.

        Raises `DatasetError`, also where the output cannot be written, and whatever keeps rows from being run. What was
        written before is on the disk then.
        """
        with ThreadPoolExecutor(1, "geartrain-rows-read") as reading, ThreadPoolExecutor(1, "geartrain-write") as out:
            writer = asyncio.ensure_future(self._write_all(out))
            feeder = asyncio.ensure_future(self._feed(reading))
            try:
                await asyncio.wait((writer, feeder), return_when=asyncio.FIRST_EXCEPTION)
                for task in (writer, feeder):  # the writer first: it knows which row was the first to fail
                    if task.done():
                        task.result()
                await writer
                await feeder
            except BaseException:
                feeder.cancel()
                self._runs.cancel_waiting()
                await asyncio.gather(feeder, return_exceptions=True)
                self._is_read = True
                self._has_ready.set()
                await asyncio.gather(writer, return_exceptions=True)
                await self._close(out, is_whole=False)
                raise
            is_whole = not self._is_stopping
            await self._close(out, is_whole=is_whole)
            return is_whole

    def stop(self) -> None:
        """Begin no further rows; those that run end."""
        self._is_stopping = True
        self._runs.cancel_waiting()
        self._make_room()

    # in

    async def _feed(self, threads: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        chunks = self._chunks()
        ahead = [loop.run_in_executor(threads, next, chunks, None) for _ in range(_AHEAD)]
        try:
            while (rows := await self._read(ahead.pop(0))) is not None and not self._is_stopping:
                ahead.append(loop.run_in_executor(threads, next, chunks, None))
                await self._begin_all(rows)
            began = time.monotonic()
            await self._runs.wait_all()
            self._tally.waits.running += time.monotonic() - began
            self._check_faults()
        finally:
            await asyncio.gather(*ahead, return_exceptions=True)
            self._is_read = True
            self._has_ready.set()

    async def _read(self, chunk: asyncio.Future[list[Row] | None]) -> list[Row] | None:
        """Wait for rows that are being read."""
        began = time.monotonic()
        try:
            return await chunk
        finally:
            self._tally.waits.reading += time.monotonic() - began

    async def _begin_all(self, rows: list[Row]) -> None:
        """Begin rows, as many at a time as there is room for."""
        begun = 0
        while begun < len(rows):
            await self._wait_for_room()
            if self._is_stopping:
                return
            some = self._fitting(rows, begun)
            begun += len(some)
            self._unwritten += len(some)
            good = [row for row in some if not row.fault]
            self._running.add(good)
            if len(good) < len(some):
                self._on_results([Result(row.number, row.kept, error=row.fault) for row in some if row.fault])
            if good:
                began = time.monotonic()
                await self._runs.begin(good, self._on_results)
                self._tally.waits.running += time.monotonic() - began

    def _fitting(self, rows: list[Row], begun: int) -> list[Row]:
        """Return the rows from index `begun` on for which there is room, and one in any case."""
        if self._results.bytes > _MOST_BYTES:
            return rows[begun : begun + 1]
        room = min(self._runs.window - len(self._running), self._most_unwritten() - self._unwritten)
        some = rows[begun : begun + max(1, room)]
        sizes = accumulate([len(row.input) for row in some], initial=self._running.bytes)
        return [row for row, size in zip(some, sizes, strict=False) if size <= _MOST_BYTES] or some[:1]

    def _chunks(self) -> Iterator[list[Row]]:
        """Give rows in lists. Blocks."""
        number = self._first
        left = self._most_rows
        for records in self._source.chunks(number):
            if left is not None:
                records = records[:left]  # noqa: PLW2901 - the rest is not wanted
                left -= len(records)
            yield [self._columns.row(number + at, record) for at, record in enumerate(records)]
            number += len(records)
            if left == 0:
                return

    async def _wait_for_room(self) -> None:
        waits = self._tally.waits
        while not self._is_stopping and self._is_full():
            is_running, began = self._has_enough_running(), time.monotonic()
            self._has_room = asyncio.get_running_loop().create_future()
            await self._has_room
            seconds = time.monotonic() - began
            if is_running:
                waits.running += seconds
            else:
                waits.writing += seconds
            self._check_faults()

    def _is_full(self) -> bool:
        return (
            self._has_enough_running()
            or self._unwritten >= self._most_unwritten()
            or (len(self._running) > 0 and self._results.bytes > _MOST_BYTES)
        )

    def _most_unwritten(self) -> int:
        """Return the number of rows that may have begun and not be written."""
        return _WINDOWS * max(self._runs.window, _WRITE)

    def _has_enough_running(self) -> bool:
        running = self._running
        return len(running) >= self._runs.window or (len(running) > 0 and running.bytes > _MOST_BYTES)

    def _on_fault(self, fault: Exception) -> None:
        self._faults.append(fault)
        self._make_room()

    def _check_faults(self) -> None:
        for fault in self._faults:
            raise fault

    def _make_room(self) -> None:
        if self._has_room is not None and not self._has_room.done():
            self._has_room.set_result(None)

    # out

    def _on_results(self, results: list[Result]) -> None:
        self._running.remove(results)
        if self._results.add(results):
            if len(self._results.ready) >= _WRITE:
                self._has_ready.set()
            elif not self._is_due:
                self._is_due = True
                asyncio.get_running_loop().call_later(_PAUSE, self._has_ready.set)
        if len(self._running) <= self._runs.window * 3 // 4:  # to go on for each row would take longer than the rows
            self._make_room()

    async def _write_all(self, threads: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._has_ready.wait()
            self._has_ready.clear()
            self._is_due = False
            while results := self._results.take():
                count = self._allowed(results)
                await loop.run_in_executor(threads, self._write, results[:count])
                self._unwritten -= count
                self._results.written(results)
                self._tally.add(results[:count])
                self._make_room()
                self._on_step()
                if count < len(results):
                    raise self._too_many(results[count])
            if self._is_read:
                return

    def _write(self, results: list[Result]) -> None:
        try:
            self._sink.write(results)
        except OSError as error:
            reason = error.strerror or str(error)
            raise DatasetError(
                f"the output cannot be written: {reason}. What is there is whole; see --resume"
            ) from error

    def _allowed(self, results: list[Result]) -> int:
        """Return the number of results before the one that is an error too many."""
        if self._max_errors is not None:
            left = self._max_errors - self._tally.errors
            for at, result in enumerate(results):
                if result.error:
                    left -= 1
                    if left < 0:
                        return at
        return len(results)

    def _too_many(self, result: Result) -> TooManyErrorsError:
        allowed = f"more than {self._max_errors} rows have failed" if self._max_errors else "no row may fail"
        return TooManyErrorsError(f"row {result.number}: {result.error} ({allowed})")

    async def _close(self, threads: ThreadPoolExecutor, *, is_whole: bool) -> None:
        def close() -> None:
            try:
                self._sink.close(is_whole=is_whole)
            except OSError as error:
                raise DatasetError(f"the output cannot be written: {error.strerror or error}") from error

        await asyncio.get_running_loop().run_in_executor(threads, close)
