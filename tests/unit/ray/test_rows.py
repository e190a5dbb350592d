"""The actor of Ray Data without Ray: a real worker, fed by tables of Arrow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from geartrain.dataset.errors import DatasetError
from geartrain.project.errors import ProjectError
from geartrain.ray.rows import RowOptions, RowWorker
from tests.support.servers import write_model

DOUBLE = """
    import os
    from geartrain import batched

    class Runner:
        @batched(max_size=8)
        def run(self, x: list[int], times: list[int] = 2) -> list[int]:
            if 13 in x:
                os._exit(3)
            return [a * b for a, b in zip(x, times)]
    """

Make = Callable[..., RowWorker]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make workers, and end them."""
    made: list[RowWorker] = []

    def start(code: str = DOUBLE, **options: Any) -> RowWorker:
        made.append(RowWorker(RowOptions(model=str(write_model(tmp_path / "m", code)), **options)))
        return made[-1]

    yield start
    for each in made:
        each.close()


def run(worker: RowWorker, *batches: pa.Table) -> list[pa.Table]:
    async def all_at_once() -> list[pa.Table]:
        return await asyncio.gather(*map(worker, batches))

    return asyncio.run(all_at_once())


def test_rows_of_several_batches_at_once_keep_their_order(make: Make) -> None:
    worker = make(kept={"name": "id"})
    batches = [pa.table({"x": range(first, first + 500), "id": [f"i{n}" for n in range(500)]}) for first in (100, 1000)]
    for batch, found in zip(batches, run(worker, *batches), strict=True):
        assert found.column_names == ["name", "output", "error"]
        assert found.schema.field("output").type == pa.int64()
        assert found.column("output").to_pylist() == [2 * x for x in batch.column("x").to_pylist()]
        assert found.column("name").to_pylist() == batch.column("id").to_pylist()
        assert found.column("error").null_count == 500


def test_a_row_that_kills_the_worker_or_does_not_fit_is_an_error_of_its_own(make: Make) -> None:
    worker = make(mapped={"x": "value"})
    [found] = run(worker, pa.table({"value": pa.array([1, 13, None, 4, 5]), "times": pa.array([1, 1, 1, None, -1])}))
    assert found.column("output").to_pylist() == [1, None, None, 8, -5]
    errors = found.column("error").to_pylist()
    assert errors[1].startswith("Worker crashed")
    assert errors[2] == 'missing required input "x"'


@pytest.mark.parametrize("errors", ["skip", "fail"])
def test_errors_are_left_out_or_end_the_run(make: Make, errors: str) -> None:
    worker = make(errors=errors, kept={"x": "x", "gone": "gone"})
    batch = pa.table({"x": [1, 1, 1, None, 2]})
    if errors == "fail":
        with pytest.raises(DatasetError, match='missing required input "x"'):
            run(worker, batch)
        assert run(worker, batch.slice(0, 3))[0].column("output").to_pylist() == [2, 2, 2], "it goes on"
    else:
        [found] = run(worker, batch)
        assert found.column("output").to_pylist() == [2, 2, 2, 4]
        assert found.column("x").to_pylist() == [1, 1, 1, 2]
        assert found.column("gone").to_pylist() == [None] * 4


def test_files_are_bytes(make: Make) -> None:
    worker = make(
        "from geartrain import Path\ndef run(image: Path) -> str:\n    return image.read_text()[::-1]\n", is_files=True
    )
    [found] = run(worker, pa.table({"file": [b"abc", b"xyz"], "path": ["a", "b"]}))
    assert found.column("output").to_pylist() == ["cba", "zyx"]


def test_no_rows_are_no_rows(make: Make) -> None:
    [found] = run(make(kept={"x": "x"}), pa.table({"x": pa.array([], pa.int64())}))
    assert (found.num_rows, found.column_names) == (0, ["x", "output", "error"])


def test_what_cannot_be_is_said(tmp_path: Path, make: Make) -> None:
    with pytest.raises(ProjectError, match="no such"):
        RowWorker(RowOptions(model=str(tmp_path / "nowhere")))
    with pytest.raises(DatasetError, match="the model could not be set up"):
        make("class Runner:\n    def setup(self):\n        1 / 0\n    def run(self) -> int:\n        return 1\n")
    with pytest.raises(DatasetError, match="--keep other=id"):
        run(make(kept={"output": "id"}), pa.table({"x": [1], "id": [1]}))
    with pytest.raises(DatasetError, match="--map x=value"):
        run(make(columns=("value",)), pa.table({"value": [1]}))


def test_nothing_is_left_of_a_worker_that_has_ended(make: Make) -> None:
    before = {each.pid for each in psutil.Process().children(recursive=True)}
    with closing(make()) as worker:
        children = [each for each in psutil.Process().children(recursive=True) if each.pid not in before]
        assert children
        run(worker, pa.table({"x": [1]}))
    _, alive = psutil.wait_procs(children, 10)
    assert not alive
    worker.close()
