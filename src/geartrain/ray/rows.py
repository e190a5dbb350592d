"""The actor of Ray Data that runs rows: one worker of a model, fed by tables of Arrow.

Nothing of ray is imported here.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from geartrain.dataset.arrow_types import nesting_of, output_columns
from geartrain.dataset.columns import Columns, Row
from geartrain.dataset.errors import DatasetError
from geartrain.dataset.job import ModelOptions, found, running
from geartrain.dataset.records import Record
from geartrain.dataset.results import Result
from geartrain.dataset.runs import LocalRuns
from geartrain.dataset.sinks import Errors
from geartrain.dataset.sources import Objects
from geartrain.domain.errors import GeartrainError
from geartrain.project.setting_values import Devices

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

FILE: Final = "file"
"""The column with the bytes of a file, where each row is one."""


class RowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the runs of rows. Times in seconds; None for no limit.

    `mapped` has the columns of inputs, `kept` those that pass through, by new names; `columns` are those of the data
    set, where they are known before. `is_files`: each row is a file.
    """

    model: str
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
    """A model with one worker, which runs the rows of batches.

    Several batches may be called for at once; their rows share the batches of the model.
    """

    def __init__(self, options: RowOptions) -> None:
        """Set the model up; blocks. Raises `DatasetError` and `ProjectError`."""
        self._options = options
        self._stack = contextlib.ExitStack()
        source = self._stack.enter_context(found(options.model, no_pickle=options.no_pickle))
        if options.gpus >= 2:  # noqa: PLR2004 - one is what a worker has anyway
            source = msgspec.structs.replace(source, gpus_per_replica=int(options.gpus))
        self._model = ModelOptions(
            source=source,
            replicas=1,
            devices=options.devices,
            run_timeout=options.run_timeout,
            setup_timeout=options.setup_timeout,
        )
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

    async def _start(self) -> LocalRuns:
        return LocalRuns(await self._running.enter_async_context(running(self._model)))

    async def _run(self, batch: pa.Table) -> pa.Table:
        results: list[Result | None] = [None] * batch.num_rows
        left = batch.num_rows
        done = asyncio.get_running_loop().create_future()
        self._waiting.add(done)

        def on_results(ended: list[Result]) -> None:
            nonlocal left
            for result in ended:
                self._room.release()
                results[result.number] = result
            left -= len(ended)
            if not left and not done.done():
                done.set_result(None)

        try:
            good: list[Row] = []  # that have a place, and have not begun
            for row in self._rows(batch):
                if self._room.locked() and good:
                    await self._runs.begin(good, on_results)
                    good = []
                await self._room.acquire()
                if self._fault is not None:
                    raise self._fault
                if row.fault:
                    on_results([Result(row.number, {}, error=row.fault)])
                else:
                    good.append(row)
            if good:
                await self._runs.begin(good, on_results)
            if left:
                await done
        finally:
            self._waiting.discard(done)
        return self._table(batch, [each for each in results if each is not None])

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
            raise DatasetError(f"a row has failed: {failed.error} (no row may fail; see --errors)")
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


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column as JSON has them: arrays as lists."""
    values: list[Any] = column.to_pylist()
    if hasattr(next((value for value in values if value is not None), None), "tolist"):
        return [None if value is None else value.tolist() for value in values]
    nested = nesting_of(column.type)
    return values if nested is None else [None if value is None else nested(value) for value in values]
