"""`geartrain.map`: a model over the rows of a program."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import queue
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from geartrain.dataset.arrow_types import nesting_of
from geartrain.dataset.columns import Columns
from geartrain.dataset.engine import Engine, RowSource
from geartrain.dataset.errors import DatasetError
from geartrain.dataset.job import ModelOptions, found, running
from geartrain.dataset.records import Record
from geartrain.dataset.results import Result, Tally
from geartrain.dataset.runs import LocalRuns
from geartrain.dataset.sinks import Sink
from geartrain.dataset.sources import Objects
from geartrain.domain.signature.types import Signature
from geartrain.project.source import ModelSource

_MOST_HELD: Final = 64  # lists of results that wait for the program
_ROWS: Final = 256  # of a batch of Arrow
_PLAIN: Final = frozenset({str, int, float, bool, bytes, list, type(None)})  # values that are what they are
_PNG_MODES: Final = frozenset({"1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA"})  # Pillow's; TIFF has the others


class RowResult(msgspec.Struct, frozen=True):
    """Result of a row: its number, and its output or its error.

    `output` is JSON as Python has it; None for a row with an `error`.
    """

    row: int
    output: Any = None
    error: str | None = None


class _Handed(Sink):
    """Results that are handed to the program. Writing waits until it has taken those before."""

    def __init__(self) -> None:
        self.queue: queue.Queue[list[Result] | None] = queue.Queue(_MOST_HELD)
        self.is_closed = threading.Event()

    def write(self, results: Sequence[Result]) -> None:
        """Hand over results."""
        if not self.is_closed.is_set():
            self.queue.put([*results])

    def close(self, *, is_whole: bool) -> None:
        """Keep what was handed over."""


def map(  # noqa: A001 - as the builtin function, over a model
    model: str | os.PathLike[str],
    rows: Iterable[Any],
    *,
    columns: Mapping[str, str] | None = None,
    replicas: int | None = None,
    window: int = 0,
) -> Iterator[RowResult]:
    """Run a model over rows, and yield the result of each, in order.

    `model` is what `geartrain run` takes. `rows` are dicts of inputs, values for a model with one input, or a table of
    pandas, polars, Arrow or `datasets`. `columns` has the columns of inputs with another name. The model runs in
    workers of its own, with its batches; rows are taken as they are needed. An error of a row is in its result.

    Raises `DatasetError` where the model cannot be set up, and whatever `rows` raise.
    """
    handed = _Handed()
    fault: list[BaseException] = []
    loop = asyncio.new_event_loop()
    engines: list[Engine] = []

    def work() -> None:
        asyncio.set_event_loop(loop)
        try:
            with found(model) as source:
                loop.run_until_complete(
                    _run(source, rows, handed, engines=engines, mapped=columns or {}, replicas=replicas, window=window)
                )
        except BaseException as error:  # noqa: BLE001 - the program gets it
            fault.append(error)
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
            handed.queue.put(None)

    thread = threading.Thread(target=work, name="geartrain-map", daemon=True)
    thread.start()
    try:
        while (results := handed.queue.get()) is not None:
            for result in results:
                yield _result_of(result)
    finally:
        handed.is_closed.set()
        for engine in engines:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(engine.stop)
        while thread.is_alive():
            with contextlib.suppress(queue.Empty):
                handed.queue.get(timeout=0.1)
        thread.join()
    if fault:
        raise fault[0]


async def map_async(
    model: str | os.PathLike[str],
    rows: Iterable[Any],
    *,
    columns: Mapping[str, str] | None = None,
    replicas: int | None = None,
    window: int = 0,
) -> AsyncIterator[RowResult]:
    """Run a model over rows as `map` does, for `async for`."""
    results = map(model, rows, columns=columns, replicas=replicas, window=window)
    try:
        while (result := await asyncio.to_thread(next, results, None)) is not None:
            yield result
    finally:
        await asyncio.to_thread(results.close)  # type: ignore[attr-defined]  # it is a generator


def _result_of(result: Result) -> RowResult:
    if result.error:
        return RowResult(result.number, error=result.error)
    return RowResult(result.number, msgspec.json.decode(result.output or b"null"))


async def _run(
    model: ModelSource,
    rows: Iterable[Any],
    sink: Sink,
    *,
    engines: list[Engine],
    mapped: Mapping[str, str],
    replicas: int | None,
    window: int,
) -> None:
    options = ModelOptions(source=model, replicas=replicas)
    async with running(options) as deployment:
        runs = LocalRuns(deployment, window=window)
        source = Objects(_records(rows, runs.signature, mapped))
        engine = Engine(
            RowSource(source, Columns(runs.signature, source, mapped=mapped, kept={})),
            runs,
            sink,
            tally=Tally(total=None),
        )
        engines.append(engine)
        await engine.run()


def _records(rows: Iterable[Any], signature: Signature, mapped: Mapping[str, str]) -> Iterator[Record]:
    """Give the rows as records: those of a table, dicts, or values for the only input."""
    if hasattr(rows, "__arrow_c_stream__"):
        rows = _rows_of_table(rows)
    names = [mapped.get(field.name, field.name) for field in signature.inputs if field.required]
    names = names or [mapped.get(field.name, field.name) for field in signature.inputs]
    only = names[0] if len(names) == 1 else None
    for row in rows:
        if only is not None and type(row) in _PLAIN:
            yield Record({only: row})
        elif type(row) is dict or isinstance(row, Mapping):  # the second takes 0.5 µs
            yield Record({name: value if type(value) in _PLAIN else _json(value) for name, value in row.items()})
        elif only is not None:
            yield Record({only: _json(row)})
        else:
            raise DatasetError(f"a row is {type(row).__name__}, and the model takes {', '.join(names)}: give dicts")


def _rows_of_table(table: Any) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow as pa
    except ImportError:
        raise DatasetError("tables need pyarrow: pip install 'geartrain[data]'") from None
    reader = pa.RecordBatchReader.from_stream(table)
    nestings = {field.name: nested for field in reader.schema if (nested := nesting_of(field.type)) is not None}
    for batch in reader:
        for start in range(0, batch.num_rows, _ROWS):
            for row in batch.slice(start, _ROWS).to_pylist():
                yield row | {name: nested(row[name]) for name, nested in nestings.items() if row[name] is not None}


def _json(value: Any) -> Any:
    """Return a value for a column: arrays as lists, files by their paths, images of Pillow as the bytes of a file."""
    if isinstance(value, Path):
        return str(value.absolute())
    if hasattr(value, "mode") and hasattr(value, "save"):
        file = io.BytesIO()
        value.save(file, "PNG" if value.mode in _PNG_MODES else "TIFF")
        return file.getvalue()
    return value.tolist() if hasattr(value, "tolist") else value
