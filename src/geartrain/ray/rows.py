"""The actors of Ray Data that run rows: one worker of a model, fed by tables of Arrow or by parts of a data set.

Nothing of ray is imported here.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from geartrain.dataset.arrow_types import nesting_of, output_columns
from geartrain.dataset.columns import Columns, Row
from geartrain.dataset.compare import Agreement, PairRuns, find_metric
from geartrain.dataset.errors import DatasetError
from geartrain.dataset.job import ModelOptions, found, kept_types, running
from geartrain.dataset.records import Record
from geartrain.dataset.results import Result, Tally
from geartrain.dataset.runs import LocalRuns, OnResults, Runs
from geartrain.dataset.sinks import Errors, Tables, lines_of
from geartrain.dataset.sources import Objects, Source
from geartrain.domain.errors import GeartrainError
from geartrain.project.setting_values import Devices
from geartrain.ray.parts import Folder, Part, PartEnd, table_of, values_of

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_SOME: Final = 256  # rows that are made at a time, in a thread
_FEW: Final = 8  # of those that are files
FILE: Final = "file"
"""The column with the bytes of a file, where each row is one."""


class RowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the runs of rows. Times in seconds; None for no limit.

    `mapped` has the columns of inputs, `kept` those that pass through, by new names; `columns` are those of the data
    set, where they are known before. `is_files`: each row is a file. `other`: a model to compare with, by `metric`,
    which may be in a module in `folder`.
    """

    model: str
    other: str | None = None
    metric: str = "exact"
    tolerance: float = 1e-6
    folder: str = ""
    mapped: Mapping[str, str] = {}
    kept: Mapping[str, str] = {}
    columns: tuple[str, ...] | None = None
    is_files: bool = False
    errors: Errors = "column"
    devices: Devices | None = None
    gpus: float = 0.0
    run_timeout: float | None = None
    setup_timeout: float | None = None
    no_pickle: bool = False


class RowWorker:
    """A model with one worker, which runs the rows of batches; or two models, each with one.

    Several batches may be called for at once; their rows share the batches of the model.
    """

    def __init__(self, options: RowOptions) -> None:
        """Set the model up; blocks. Raises `DatasetError` and `ProjectError`."""
        self._options = options
        self._stack = contextlib.ExitStack()
        names = [each for each in (options.model, options.other) if each is not None]
        self._models = [self._found(each) for each in names]
        self._running = contextlib.AsyncExitStack()
        self._loop = asyncio.new_event_loop()  # Ray blocks its own one while results wait
        self._thread = threading.Thread(target=self._loop.run_forever, name="geartrain-rows", daemon=True)
        self._thread.start()
        try:
            self._runs = self._wait(self._start())
        except BaseException:
            self.close()
            raise
        on_fault = weakref.WeakMethod(self._on_fault)  # else `__del__` would wait for a search for cycles
        self._runs.on_fault = lambda fault: (found := on_fault()) and found(fault)
        self._fault: Exception | None = None
        self._room = asyncio.Semaphore(self._runs.window)
        self._waiting: set[asyncio.Future[None]] = set()
        self._ahead = _FEW if options.is_files else _SOME

    async def __call__(self, batch: pa.Table) -> pa.Table:
        """Run the rows of a batch; return the kept columns, `output` and `error`.

        Raises `DatasetError` for columns that do not fit the model, and with the errors `fail` for a row that fails;
        `GeartrainError` where no worker comes back.
        """
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._run(batch), self._loop))

    def close(self) -> None:
        """End the worker. Repeating it is harmless."""
        if self._thread.is_alive():
            self._wait(self._running.aclose())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        self._stack.close()

    def __del__(self) -> None:
        """End the worker when Ray lets go of it, before its processes are killed."""
        if hasattr(self, "_thread"):
            self.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _found(self, model: str) -> ModelOptions:
        options = self._options
        source = self._stack.enter_context(found(model, no_pickle=options.no_pickle))
        if options.gpus >= 2:  # noqa: PLR2004 - one is what a worker has anyway
            source = msgspec.structs.replace(source, gpus_per_replica=int(options.gpus))
        return ModelOptions(
            source=source,
            replicas=1,
            devices=options.devices,
            run_timeout=options.run_timeout,
            setup_timeout=options.setup_timeout,
        )

    async def _start(self) -> Runs:
        options = self._options
        first, *others = [LocalRuns(await self._running.enter_async_context(running(each))) for each in self._models]
        if not others:
            return first
        return PairRuns(first, others[0], find_metric(options.metric, options.tolerance, folder=options.folder))

    async def _run(self, batch: pa.Table) -> pa.Table:
        return self._table(batch, await self._results(self._rows(batch), batch.num_rows))

    async def _results(self, rows: Iterable[Row], count: int, *, first: int = 0) -> list[Result]:
        """Run so many rows, with numbers from `first` on; return their results in order."""
        results: list[Result | None] = [None] * count
        left = count
        done = asyncio.get_running_loop().create_future()
        self._waiting.add(done)

        def on_results(ended: list[Result]) -> None:
            nonlocal left
            for result in ended:
                self._room.release()
                results[result.number - first] = result
            left -= len(ended)
            if not left and not done.done():
                done.set_result(None)

        try:
            made = iter(rows)
            while some := await asyncio.to_thread(list, islice(made, self._ahead)):
                await self._begin(some, on_results)
            if left:
                await done
        finally:
            self._waiting.discard(done)
        return [each for each in results if each is not None]

    async def _begin(self, rows: Sequence[Row], on_results: OnResults) -> None:
        """Begin rows, as many at a time as there is room for."""
        good: list[Row] = []  # that have a place, and have not begun
        for row in rows:
            if self._room.locked() and good:
                await self._runs.begin(good, on_results)
                good = []
            await self._room.acquire()
            if self._fault is not None:
                raise self._fault
            if row.fault:
                on_results([Result(row.number, row.kept, error=row.fault)])
            else:
                good.append(row)
        if good:
            await self._runs.begin(good, on_results)

    def _rows(self, batch: pa.Table) -> Iterable[Row]:
        options = self._options
        source = Objects(())
        source.columns, source.is_files = options.columns, options.is_files
        columns = Columns(self._runs.signature, source, mapped=options.mapped, kept=options.kept)
        names = batch.column_names
        values = [_values(column) for column in batch.columns]
        for number, row in enumerate(zip(*values, strict=True)):
            yield columns.row(number, Record(dict(zip(names, row, strict=True))))

    def _table(self, batch: pa.Table, results: Sequence[Result]) -> pa.Table:
        import pyarrow as pa

        options = self._options
        failed = next((each for each in results if each.error), None)
        if failed is not None and options.errors == "fail":
            raise _has_failed("a row", failed)
        if failed is not None and options.errors == "skip":
            results = [each for each in results if not each.error]
            batch = batch.take(pa.array([each.number for each in results], pa.int64()))
        there = set(batch.column_names)
        kept = {
            name: batch.column(column) if column in there else pa.nulls(batch.num_rows)
            for name, column in options.kept.items()
        }
        output, error = output_columns(results, self._runs.signature.output, lambda result: result.output)
        return pa.table({**kept, "output": output, "error": error})

    def _on_fault(self, fault: Exception) -> None:
        """Fail all batches that wait, and those to come: no row can be run any more."""
        self._fault = fault if isinstance(fault, GeartrainError) else DatasetError(str(fault))
        for done in self._waiting:
            if not done.done():
                done.set_exception(self._fault)


class PartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The data set and the output of a run by parts.

    `source` tells of the columns; its rows are not read. `types`: those of kept columns that the data set does not
    tell, see `first_types`.
    """

    source: Source
    output: str
    is_lines: bool
    types: Mapping[str, str] = {}


class PartWorker(RowWorker):
    """Models that run parts of a data set, and write the results of each as a file."""

    def __init__(self, options: RowOptions, parts: PartOptions) -> None:
        """Set the models up; blocks. Raises `DatasetError` and `ProjectError`."""
        super().__init__(options)
        self._parts = parts
        signature = self._runs.signature
        kept = dict(options.kept)
        self._columns = Columns(signature, parts.source, mapped=options.mapped, kept=kept)
        self._folder = Folder(parts.output)
        self._tables = Tables(
            signature.output, kept=kept_types(parts.source, kept), types=dict(parts.types), errors=options.errors
        )

    async def __call__(self, batch: pa.Table) -> pa.Table:
        """Run and write the part in a table of one row; return its account in another one. See `RowWorker`."""
        [part] = values_of(batch)
        return table_of(await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._run_part(part), self._loop)))

    async def _run_part(self, part: Part) -> PartEnd:
        make, first = self._columns.row, part.first
        rows = (make(number, record) for number, record in enumerate(part.records(), first))
        results = await self._results(rows, len(part.rows), first=first)
        failed = next((each for each in results if each.error), None)
        if failed is not None and self._options.errors == "fail":
            raise _has_failed(f"row {failed.number}", failed)
        tally = Tally(total=None)
        tally.add(results)
        await asyncio.to_thread(self._write, part, results)
        return PartEnd(tally, Agreement.of(results) if self._options.other is not None else None)

    def _write(self, part: Part, results: Sequence[Result]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            if self._parts.is_lines:
                self._folder.write(f"{part.name}.jsonl", lines_of(results, self._options.errors))
                return
            buffer = pa.BufferOutputStream()
            pq.write_table(self._tables.table(results), buffer)
            self._folder.write(f"{part.name}.parquet", buffer.getvalue())
        except OSError as error:
            reason = error.strerror or error
            raise DatasetError(
                f"the output cannot be written: {reason}. What is there is whole; see --resume"
            ) from error


def _has_failed(row: str, result: Result) -> DatasetError:
    return DatasetError(f"{row} has failed: {result.error} (no row may fail; see --errors)")


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column as JSON has them: arrays as lists."""
    values: list[Any] = column.to_pylist()
    if hasattr(next((value for value in values if value is not None), None), "tolist"):
        return [None if value is None else value.tolist() for value in values]
    nested = nesting_of(column.type)
    return values if nested is None else [None if value is None else nested(value) for value in values]
