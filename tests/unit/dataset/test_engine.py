"""Bounds of the flow of rows: by number, by bytes of inputs, by bytes of outputs that wait for a row before them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from geartrain.dataset.columns import Columns, Row
from geartrain.dataset.engine import Engine, RowSource
from geartrain.dataset.records import Record, unreadable
from geartrain.dataset.results import Result, Tally
from geartrain.dataset.runs import OnResults
from geartrain.dataset.sinks import Held
from geartrain.dataset.sources import Source
from geartrain.domain.signature.types import OutputSpec, Signature, TypeSpec

WINDOW = 10
NOTHING = Signature((), OutputSpec(TypeSpec("string"), "value"))


class Heavy(bytes):
    """Passes for 100 MiB: two of them may be on their way, and a third one that takes them beyond 256 MiB."""

    def __len__(self) -> int:
        return 100 * 1024**2


class Numbers(Source):
    """So many rows, of which every seventh cannot be read."""

    base = Path()

    def __init__(self, count: int) -> None:
        self.total = count

    def rows(self, skip: int = 0) -> Iterator[Record]:
        for number in range(skip, self.total):
            yield unreadable("seven") if number % 7 == 6 else Record({})

    def fingerprint(self) -> str:
        return ""


class Inputs(Columns):
    """Gives each row the same input."""

    def __init__(self, source: Source, content: bytes) -> None:
        super().__init__(NOTHING, source, mapped={}, kept={})
        self.content = content

    def row(self, number: int, record: Record) -> Row:
        return Row(number, b"", record.fault) if record.fault else Row(number, self.content)


class Ends:
    """Runs rows, and ends those that are on their way, the latest first, at the next turn of the loop."""

    window = WINDOW
    signature = NOTHING
    on_fault: Callable[[Exception], None]

    def __init__(self, output: bytes, *, is_held: Callable[[int], bool] = lambda _: False) -> None:
        """`is_held`: rows that end when no other is on its way."""
        self.output = output
        self.is_held = is_held
        self.most = 0  # that were on their way at once
        self.held_after: list[int] = []  # rows that had begun when one was let go
        self.begun = 0
        self.running: list[Row] = []
        self.ending: asyncio.Task[None] | None = None

    async def begin(self, rows: Sequence[Row], on_results: OnResults) -> None:
        self.begun += len(rows)
        self.running += rows
        self.most = max(self.most, len(self.running))
        if self.ending is None or self.ending.done():
            self.ending = asyncio.ensure_future(self.end(on_results))

    async def end(self, on_results: OnResults) -> None:
        while self.running:
            await asyncio.sleep(0)  # all that there is room for begins
            rows = [row for row in self.running if not self.is_held(row.number)]
            if not rows:
                self.held_after.append(self.begun)
                rows = list(self.running)
            self.running = [row for row in self.running if row not in rows]
            on_results([Result(row.number, {}, self.output) for row in reversed(rows)])

    async def wait_all(self) -> None:
        if self.ending is not None:
            await self.ending

    def cancel_waiting(self) -> None: ...

    def batch_sizes(self) -> dict[int, int]:
        return {}

    def busy(self, run_time: float, seconds: float) -> float | None:
        return None


async def flow(runs: Ends, content: bytes, count: int) -> list[Result]:
    source, sink, tally = Numbers(count), Held(), Tally(total=count)
    assert await Engine(RowSource(source, Inputs(source, content)), cast("Any", runs), sink, tally=tally).run()
    assert (tally.rows, tally.errors) == (count, count // 7)
    return sink.results


@pytest.mark.parametrize(("content", "most"), [(b"{}", WINDOW), (Heavy(b"{}"), 3)])
async def test_rows_on_their_way_are_bounded(content: bytes, most: int) -> None:
    runs = Ends(b"1")
    results = await flow(runs, content, 1000)
    assert runs.most == most
    assert [result.number for result in results] == list(range(1000))
    assert [result.number for result in results if result.error] == list(range(6, 1000, 7))


async def test_outputs_that_wait_for_a_row_before_them_are_bounded() -> None:
    runs = Ends(Heavy(b"1"), is_held=lambda number: number == 0)
    await flow(runs, b"{}", 100)
    assert runs.held_after[0] <= WINDOW, "no further row begins"
    light = Ends(b"1", is_held=lambda number: number == 0)
    await flow(light, b"{}", 5000)
    assert WINDOW < light.held_after[0] < 5000, "they are bounded by number as well"
