"""`geartrain.map` and `map_async`: rows of a program through real workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from PIL import Image

import geartrain
from tests.support.servers import write_model

ROWS = [{"body": "a", "n": 1, "v": [1.0]}, {"body": "b", "n": 2, "v": [2.0, 3.0]}, {"body": "c", "n": 3, "v": []}]
MODEL = 'def run(text: str, n: int = 0, v: list[float] = []) -> str:\n    return f"{text}{n}{v}"\n'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m", MODEL)


def of_arrow() -> Any:
    return pa.Table.from_pylist(ROWS)


def of_pandas() -> Any:
    return pytest.importorskip("pandas").DataFrame(ROWS)


def of_polars() -> Any:
    return pytest.importorskip("polars").DataFrame(ROWS)


def of_datasets() -> Any:
    return pytest.importorskip("datasets").Dataset.from_list(ROWS)


def of_datasets_with_arrays() -> Any:
    return of_datasets().with_format("numpy")


@pytest.mark.parametrize("make", [list, of_arrow, of_pandas, of_polars, of_datasets, of_datasets_with_arrays])
def test_tables_of_all_kinds_have_rows(model: Path, make: Callable[..., Any]) -> None:
    rows = make(ROWS) if make is list else make()
    found = [(each.row, each.output) for each in geartrain.map(model, rows, columns={"text": "body"})]
    assert found == [(0, "a1[1.0]"), (1, "b2[2.0, 3.0]"), (2, "c3[]")]


def test_maps_and_tensors_of_a_table_are_nested(tmp_path: Path) -> None:
    write_model(
        tmp_path / "nested",
        "def run(x: list[list[float]], named: dict[str, int] = {}) -> str:\n    return f'{x} {named}'\n",
    )
    kind = pa.fixed_shape_tensor(pa.float64(), (2, 1))
    x = pa.ExtensionArray.from_storage(kind, pa.array([[1.0, 2.0], [3.0, 4.0]], kind.storage_type))
    table = pa.table({"x": x, "named": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64()))})
    found = [each.output or each.error for each in geartrain.map(tmp_path / "nested", table)]
    assert found == ["[[1.0], [2.0]] {'a': 1}", "[[3.0], [4.0]] {}"]


@pytest.mark.parametrize("mode", ["RGB", "CMYK", "F"])
def test_images_of_pillow_are_files_with_the_same_pixels(tmp_path: Path, mode: str) -> None:
    write_model(
        tmp_path / "mode",
        """
        from PIL import Image
        from geartrain import Path
        def run(image: Path) -> str:
            with Image.open(image) as found:
                return f"{found.mode} {found.tobytes().hex()}"
        """,
    )
    image = Image.linear_gradient("L").resize((3, 2)).convert(mode)
    found = [each.output or each.error for each in geartrain.map(tmp_path / "mode", [{"image": image}, image])]
    assert found == [f"{mode} {image.tobytes().hex()}"] * 2


async def test_results_of_values_come_for_async_for(model: Path) -> None:
    results = [each async for each in geartrain.map_async(model, ["a", 1, "c"])]
    assert [each.output for each in results] == ["a0[]", None, "c0[]"]
    assert "text" in (results[1].error or "")


def test_rows_are_taken_as_they_are_needed_and_an_end_before_the_last_one_ends_the_worker(model: Path) -> None:
    taken = 0

    def rows() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield str(taken)

    before = set(psutil.Process().children(recursive=True))
    results = geartrain.map(model, rows())
    assert next(results).output == "10[]"
    results.close()  # type: ignore[attr-defined]  # it is a generator
    assert taken < 100_000
    assert set(psutil.Process().children(recursive=True)) <= before
