"""Parts of a data set on Ray, without Ray: how they are cut, where they lie, and the actor that runs them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from geartrain.dataset.errors import DatasetError
from geartrain.dataset.shares import Share
from geartrain.ray.parts import Folder, Part, PartEnd, Shelf, open_files, parts_among, read_parts, table_of, values_of
from geartrain.ray.rows import PartOptions, PartWorker, RowOptions
from tests.support.servers import write_model

TIMES = """
    def run(x: int, times: int = 2) -> int:
        return x * times
    """


def write_rows(path: Path, count: int) -> Path:
    path.write_text("".join(f'{{"x":{x}}}\n' for x in range(count)))
    return path


def parts_of(path: Path, **options: Any) -> list[Part]:
    """Read the parts of a file in a task, as Ray has it: by tables."""
    _, [source] = open_files(str(path), None)
    shelf = Shelf(source, file=2, first=100, part_rows=10, **options)
    return [part for table in read_parts(table_of(shelf)) for part in values_of(table)]


def test_a_file_is_cut_by_rows_and_by_bytes(tmp_path: Path) -> None:
    parts = parts_of(write_rows(tmp_path / "in.jsonl", 25))
    assert [part.name for part in parts] == ["part-00002-00000", "part-00002-00001", "part-00002-00002"]
    assert [(part.first, len(part.rows)) for part in parts] == [(100, 10), (110, 10), (120, 5)]
    large = "a" * 30 * 1024**2
    (tmp_path / "large.jsonl").write_text("".join(json.dumps({"x": large}) + "\n" for _ in range(4)))
    assert [(part.first, len(part.rows)) for part in parts_of(tmp_path / "large.jsonl")] == [(100, 3), (103, 1)]


def test_parts_that_are_done_or_of_another_share_are_left_out(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.jsonl", 45)
    assert [part.first for part in parts_of(path, done={0, 3})] == [110, 120, 140]
    shares = [[part.first for part in parts_of(path, share=Share(index, 2))] for index in range(2)]
    assert shares == [[100, 120, 140], [110, 130]]
    assert [part.first for part in parts_of(path, share=Share(0, 2), done={2})] == [100, 140]


def test_a_line_that_cannot_be_read_has_its_place(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"x":1}\n{oops\n{"x":3}\n')
    [part] = parts_of(tmp_path / "in.jsonl")
    assert [bool(record.fault) for record in part.records()] == [False, True, False]


def test_only_names_of_parts_are_parts() -> None:
    names = ["part-00001-00023.parquet", "part-123456-00000.jsonl", "part-00001.parquet", "_part-00001-00001.parquet"]
    assert parts_among(names) == {names[0]: (1, 23), names[1]: (123456, 0)}


@pytest.mark.parametrize("is_uri", [False, True])
def test_a_file_of_the_output_is_there_as_a_whole_or_not_at_all(tmp_path: Path, *, is_uri: bool) -> None:
    place = tmp_path / "deep" / "out"
    folder = Folder(place.as_uri() if is_uri else str(place))
    assert (folder.names(), folder.read("a")) == ([], None)
    folder.write("a", b"first")
    folder.write("a", b"second")
    assert (folder.names(), folder.read("a")) == (["a"], b"second")
    folder.delete(["a", "none"])
    assert folder.names() == []
    (place / "a").mkdir()
    with pytest.raises(OSError, match="a"):
        folder.write("a", b"third")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DatasetError, match="is a file"):
        Folder(str(tmp_path / "file"))


def test_files_elsewhere_are_copied_as_long_as_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "in" / "a.parquet")
    pq.write_table(pa.table({"x": [3]}), tmp_path / "in" / "b.parquet")
    whole, files = open_files((tmp_path / "in").as_uri(), None)
    assert (whole.columns, whole.schema()) == (["x"], pa.schema({"x": pa.int64()}))
    assert [[record.columns["x"] for record in each.rows()] for each in files] == [[1, 2], [3]]
    assert [each.counted() for each in files] == [2, 1]
    before = whole.fingerprint()
    pq.write_table(pa.table({"x": [3] * 99}), tmp_path / "in" / "b.parquet")
    assert open_files((tmp_path / "in").as_uri(), None)[0].fingerprint() != before
    with pytest.raises(DatasetError, match="there is no"):
        open_files((tmp_path / "none").as_uri(), None)
    with pytest.raises(DatasetError, match="cannot read nowhere://"):
        open_files("nowhere://rows", None)


def test_places_that_pyarrow_does_not_know_are_those_of_fsspec() -> None:
    pytest.importorskip("fsspec")
    folder = Folder("memory://bucket/out")
    folder.write("a.jsonl", b'{"x":1}\n')
    folder.write("a.jsonl", b'{"x":2}\n')
    assert (folder.names(), folder.path) == (["a.jsonl"], None)
    _, [file] = open_files("memory://bucket/out", None)
    assert [bytes(record.columns["x"]) for record in file.rows()] == [b"2"]


def test_a_folder_of_files_elsewhere_gives_their_bytes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("b.txt", "a.bin", ".hidden"):
        (tmp_path / "in" / name).write_text(name)
    whole, files = open_files((tmp_path / "in").as_uri(), None)
    assert (whole.is_files, whole.count, len(files)) == (True, 2, 1)
    assert [dict(each.columns) for each in whole.rows()] == [
        {"file": name.encode(), "name": name} for name in ("a.bin", "b.txt")
    ]


@pytest.fixture
def worker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PartWorker]:
    """A worker that writes into `out`, or `out.jsonl`; with the options of the test."""
    options = dict(request.param)
    is_lines = options.pop("is_lines", False)
    whole, _ = open_files(str(write_rows(tmp_path / "in.jsonl", 0)), None)
    rows = RowOptions(model=str(write_model(tmp_path / "m", TIMES)), kept={"x": "x", "note": "note"}, **options)
    place = str(tmp_path / ("out.jsonl" if is_lines else "out"))
    types = {"x": "int64", "note": "string"}
    made = PartWorker(rows, PartOptions(source=whole, output=place, is_lines=is_lines, types=types))
    yield made
    made.close()


def run(worker: PartWorker, *parts: Part) -> list[PartEnd]:
    async def all_at_once() -> list[pa.Table]:
        return await asyncio.gather(*[worker(table_of(part)) for part in parts])

    return [end for table in asyncio.run(all_at_once()) for end in values_of(table)]


PARTS = [Part(0, number, 300 * number, [{"x": 300 * number + x} for x in range(300)]) for number in range(3)]
BAD = Part(1, 0, 900, [{"x": 900, "note": "kept"}, "no JSON", {"note": "none"}])


@pytest.mark.parametrize("worker", [{}, {"is_lines": True}, {"errors": "skip"}], indirect=True)
def test_parts_at_once_are_written_with_numbers_and_in_order(worker: PartWorker, tmp_path: Path) -> None:
    ends = run(worker, *PARTS, BAD)
    assert [(end.tally.rows, end.tally.errors) for end in ends] == [(300, 0)] * 3 + [(3, 2)]
    lines = tmp_path / "out.jsonl"
    if lines.exists():
        rows = [json.loads(line) for path in sorted(lines.iterdir()) for line in path.read_text().splitlines()]
        assert rows[902] == {"row": 902, "x": None, "note": "none", "error": 'missing required input "x"'}
    else:
        table = pq.read_table(tmp_path / "out")
        assert table.schema.types == [pa.int64(), pa.int64(), pa.string(), pa.int64(), pa.string()]
        rows = table.to_pylist()
    assert [(row["row"], row["output"]) for row in rows[:901]] == [(x, 2 * x) for x in range(901)]
    assert len(rows) in {901, 903}


@pytest.mark.parametrize("worker", [{"errors": "fail"}], indirect=True)
def test_a_part_with_a_row_that_fails_is_not_written(worker: PartWorker, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="row 901 has failed: no JSON"):
        run(worker, BAD)
    assert not (tmp_path / "out").exists()


def test_two_models_are_compared(tmp_path: Path) -> None:
    whole, _ = open_files(str(write_rows(tmp_path / "in.jsonl", 0)), None)
    other = write_model(tmp_path / "n", "def run(x: int) -> int:\n    return x + 2\n")
    rows = RowOptions(model=str(write_model(tmp_path / "m", TIMES)), other=str(other), metric="close")
    worker = PartWorker(rows, PartOptions(source=whole, output=str(tmp_path / "out"), is_lines=False))
    try:
        [end] = run(worker, Part(0, 0, 0, [{"x": x} for x in range(5)]))
    finally:
        worker.close()
    assert end.agreement is not None
    assert end.agreement.lines()[0] == "1 of 5 rows are the same; mean score 0.2"
    assert [row["output"]["b"] for row in pq.read_table(tmp_path / "out").to_pylist()] == [2, 3, 4, 5, 6]
