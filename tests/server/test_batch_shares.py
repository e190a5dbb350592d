"""`geartrain batch --part`: several processes, each with a share of the rows, and one output."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from geartrain.dataset.errors import DatasetError
from geartrain.dataset.shares import Share, Shared
from geartrain.dataset.sources import open_source
from tests.support.forked import run_forked, start_forked
from tests.support.servers import PATIENCE, write_model

SHARES = 3
ROWS = 11
MODEL = """
    def run(text: str, times: int = 1) -> str:
        if text == "t3":
            raise ValueError("not this one")
        return text * times
    """
GATED = """
    import pathlib, time

    def run(n: int, gate: str = "") -> int:
        while gate and not pathlib.Path(gate).exists():
            time.sleep(0.01)
        return n * n
    """
PICTURE = """
    import tempfile

    from geartrain import BaseRunner, Path

    class Runner(BaseRunner):
        def run(self, image: Path) -> Path:
            out = Path(tempfile.mkdtemp()) / "made.txt"
            out.write_bytes(image.read_bytes()[::-1])
            return out
    """


def start(folder: pathlib.Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    return start_forked(
        ["batch", *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, stderr = process.communicate(timeout=PATIENCE)
    return process.returncode, stdout, stderr


def batch(folder: pathlib.Path, *arguments: str, **variables: str) -> tuple[int, str, str]:
    return end(start(folder, *arguments, **variables))


def all_shares(folder: pathlib.Path, *arguments: str, of: int = SHARES) -> None:
    """Run all shares at once; each has to succeed."""
    processes = [start(folder, *arguments, "--part", f"{index}/{of}") for index in range(of)]
    for process in processes:
        code, _, stderr = end(process)
        assert code == 0, stderr


def rows(count: int = ROWS) -> list[dict[str, object]]:
    return [{"text": f"t{n}", "times": n % 3 + 1, "id": n} for n in range(count)]


def write_lines(path: pathlib.Path, found: Sequence[object]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n\n" for row in found))


def write_table(path: pathlib.Path, found: Sequence[dict[str, object]]) -> None:
    path.write_text("text,times,id\n" + "".join(f'"{row["text"]}",{row["times"]},{row["id"]}\n' for row in found))


def lines(folder: pathlib.Path) -> str:
    write_lines(folder / "in.jsonl", [*rows(), "no object"])
    return "in.jsonl"


def table(folder: pathlib.Path) -> str:
    write_table(folder / "in.csv", rows())
    return "in.csv"


def parquet(folder: pathlib.Path) -> str:
    pq.write_table(pa.Table.from_pylist(rows()), folder / "in.parquet", row_group_size=2)
    return "in.parquet"


def arrow(folder: pathlib.Path) -> str:
    found = pa.Table.from_pylist(rows())
    with pa.OSFile(str(folder / "in.arrow"), "wb") as file, pa.ipc.new_file(file, found.schema) as writer:
        writer.write_table(found, max_chunksize=2)
    return "in.arrow"


def stream(folder: pathlib.Path) -> str:
    found = pa.Table.from_pylist(rows())
    with pa.OSFile(str(folder / "in.arrow"), "wb") as file, pa.ipc.new_stream(file, found.schema) as writer:
        writer.write_table(found, max_chunksize=2)
    return "in.arrow"


def folder_of_tables(folder: pathlib.Path) -> str:
    (folder / "in").mkdir()
    for name, first, last in (("a", 0, 2), ("b", 2, 2), ("c", 2, 9), ("d", 9, ROWS)):
        write_table(folder / "in" / f"{name}.csv", rows()[first:last])
    return "in"


def folder_of_lines(folder: pathlib.Path) -> str:
    (folder / "in").mkdir()
    for name, first, last in (("a", 0, 5), ("b", 5, ROWS)):
        write_lines(folder / "in" / f"{name}.jsonl", rows()[first:last])
    return "in"


@pytest.mark.parametrize("write", [lines, table, parquet, arrow, stream, folder_of_tables, folder_of_lines])
def test_the_outputs_of_all_shares_are_that_of_one_run(
    tmp_path: pathlib.Path, write: Callable[[pathlib.Path], str]
) -> None:
    write_model(tmp_path / "m", MODEL)
    source = write(tmp_path)
    code, _, stderr = batch(tmp_path, "m", source, "-o", "whole.jsonl", "--keep", "id")
    assert code == 0, stderr
    all_shares(tmp_path, "m", source, "-o", "out.jsonl", "--keep", "id")
    parts = sorted(tmp_path.glob("out-*.jsonl"))
    assert [path.name for path in parts] == [f"out-0000{index}-of-00003.jsonl" for index in range(SHARES)]
    whole = (tmp_path / "whole.jsonl").read_bytes()
    assert b"".join(path.read_bytes() for path in parts) == whole
    found = [json.loads(line) for line in whole.splitlines()]
    assert [row["row"] for row in found] == list(range(len(found)))
    assert [row.get("output") for row in found[:5]] == ["t0", "t1t1", "t2t2t2", None, "t4t4"]
    assert all(path.read_bytes() for path in parts), "each has some rows"


def test_processes_that_write_parquet_into_one_folder_agree_on_its_types(tmp_path: pathlib.Path) -> None:
    """Of the last rows alone `score` would be a whole number, and of an empty share a text."""
    write_model(tmp_path / "m", MODEL)
    found = [{**row, "score": 0.5 if row["id"] == 0 else 2} for row in rows(4)]
    write_lines(tmp_path / "in.jsonl", found)
    all_shares(tmp_path, "m", "in.jsonl", "-o", "out", "--keep", "id,score", "--part-rows", "1", of=5)
    names = sorted(path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith("_"))
    assert names == [f"part-0000{index}-of-00005-00000.parquet" for index in range(5)]
    read = pq.read_table(tmp_path / "out")
    assert read.schema.field("score").type == pa.float64()
    assert read.column("id").to_pylist() == [0, 1, 2, 3]
    assert read.column("row").to_pylist() == [0, 1, 2, 3]
    assert read.column("output").to_pylist() == ["t0", "t1t1", "t2t2t2", None]
    manifests = [json.loads(path.read_bytes()) for path in sorted((tmp_path / "out").glob("_progress-*.json"))]
    assert [each["is_whole"] for each in manifests] == [True] * 5


def test_files_of_outputs_have_names_of_their_own(tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", PICTURE)
    (tmp_path / "in").mkdir()
    for name in "abcd":
        (tmp_path / "in" / f"{name}.bin").write_bytes(f"{name}1".encode())
    all_shares(tmp_path, "m", "in", "-o", "out.jsonl", "--keep", "name", of=2)
    found = [
        json.loads(line) for path in sorted(tmp_path.glob("out-*.jsonl")) for line in path.read_text().splitlines()
    ]
    assert [row["name"] for row in found] == [f"{name}.bin" for name in "abcd"]
    assert [(tmp_path / row["output"]).read_text() for row in found] == [f"1{name}" for name in "abcd"]


@pytest.mark.parametrize("output", ["out.jsonl", "out"])
def test_a_share_that_was_killed_goes_on_beside_others(tmp_path: pathlib.Path, output: str) -> None:
    write_model(tmp_path / "m", GATED)
    gate = tmp_path / "gate"
    write_lines(tmp_path / "in.jsonl", [{"n": n, "gate": str(gate) if n == 35 else ""} for n in range(40)])
    arguments = ("m", "in.jsonl", "-o", output, "--keep", "n", "--part-rows", "5", "--window", "1")
    other = (*arguments, "--part", "0/2", "--resume")
    killed = (*arguments, "--part", "1/2", "--resume")
    assert batch(tmp_path, *other)[0] == 0
    process = start(tmp_path, *killed)
    progress = tmp_path / (
        "out-00001-of-00002.jsonl.progress" if output == "out.jsonl" else "out/_progress-00001-of-00002.json"
    )
    until = time.monotonic() + PATIENCE
    while not progress.exists() or (output == "out" and json.loads(progress.read_bytes())["rows"] < 35):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    process.kill()
    end(process)
    code, _, stderr = batch(tmp_path, *arguments, "--part", "1/2")
    assert (code, "--resume" in stderr) == (1, True)
    gate.touch()
    code, _, stderr = batch(tmp_path, *killed)
    assert code == 0, stderr
    if output == "out.jsonl":
        found = [
            json.loads(line) for path in sorted(tmp_path.glob("out-*.jsonl")) for line in path.read_text().splitlines()
        ]
        assert [row["output"] for row in found] == [n * n for n in range(40)]
    else:
        assert pq.read_table(tmp_path / "out").column("output").to_pylist() == [n * n for n in range(40)]
        assert len(list((tmp_path / "out").glob("part-*"))) == 8
    before = written(tmp_path)
    code, _, stderr = batch(tmp_path, *other)
    assert (code, json.loads(stderr.splitlines()[-1])["rows"]) == (0, 20), "a share that is whole stays so"
    assert written(tmp_path) == before
    assert "is there already" in batch(tmp_path, *arguments, "--part", "1/2")[2]
    assert batch(tmp_path, *arguments, "--part", "1/2", "--overwrite")[0] == 0
    assert written(tmp_path) == before, "the other share is as it was"


def written(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*-of-*") if path.suffix in {".jsonl", ".parquet"}}


def test_the_index_of_a_job_of_kubernetes(tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", MODEL)
    write_lines(tmp_path / "in.jsonl", rows(4))
    code, stdout, _ = batch(tmp_path, "m", "in.jsonl", "--part", "auto/2", JOB_COMPLETION_INDEX="1")
    assert (code, [json.loads(line)["row"] for line in stdout.splitlines()]) == (0, [2, 3])
    code, stdout, _ = batch(tmp_path, "m", "in.jsonl", "--part", "1/2", "--dry-run")
    assert (code, [line.split()[:2] for line in stdout.splitlines()]) == (
        0,
        [["2", '"t2t2t2"'], ["3", "error:"]],
    )


def test_the_pods_of_a_job_run_all_shares(tmp_path: pathlib.Path) -> None:
    """The words are those of the Job; its folders are here."""
    write_model(tmp_path / "m", MODEL)
    write_lines(tmp_path / "in.jsonl", rows())
    words = ("--image", "m:1", "--batch", "/data/in.jsonl", "-o", "/data/out", "--data", "pvc://data", "--parts", "3")
    made = run_forked("deploy", "kubernetes", "m", *words, "--option", "keep=id", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    spec = yaml.safe_load(made.stdout)["spec"]
    [container] = spec["template"]["spec"]["containers"]
    processes = []
    for index in range(spec["completions"]):
        found = [*container["command"][2:], *container["args"]]
        found = [word.replace("/data", str(tmp_path)).replace("/models", "m") for word in found]
        found = [word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in found]
        processes.append(start(tmp_path, *found))
    for process in processes:
        assert end(process)[0] == 0
    assert pq.read_table(tmp_path / "out").column("id").to_pylist() == list(range(ROWS))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--part", "2"], "write I/N, such as 0/8"),
        (["--part", "0/0"], "write I/N, such as 0/8"),
        (["--part", "2/2"], "numbered from 0 to 1"),
        (["--part", "auto/2"], "JOB_COMPLETION_INDEX is not set"),
        (["--part", "0/3", "-o", "out.jsonl"], "out-00000-of-00002.jsonl is not one of 3 shares"),
        (["--part", "0/3", "-o", "out"], "part-00000-of-00002-00000.parquet is not one of 3 shares"),
        (["--part", "0/3", "-o", "whole"], "part-00000.parquet is not one of 3 shares"),
        (["-o", "out"], "out is there already"),
    ],
)
def test_what_cannot_be_is_said_with_the_way_out(tmp_path: pathlib.Path, arguments: list[str], message: str) -> None:
    write_model(tmp_path / "m", MODEL)
    write_lines(tmp_path / "in.jsonl", rows(4))
    with ExitStack() as stack:
        for name in ("out-00000-of-00002.jsonl", "out/part-00000-of-00002-00000.parquet", "whole/part-00000.parquet"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            stack.enter_context((tmp_path / name).open("wb"))
    code, stdout, stderr = batch(tmp_path, "m", "in.jsonl", *arguments)
    assert (code, stdout) == (1, "")
    assert message in stderr


def test_stdin_has_no_shares(tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", MODEL)
    for form in ("jsonl", "csv", "arrow"):
        code, _, stderr = batch(tmp_path, "m", "-", "--part", "0/2", "--format", form)
        assert (code, "name a file that all shares can read" in stderr) == (1, True), stderr


def test_row_groups_before_a_share_are_not_read(tmp_path: pathlib.Path) -> None:
    """The first half of the file is damaged, so reading it would fail."""
    path = tmp_path / "in.parquet"
    found = pa.table({"x": pa.array(range(40_000), pa.int64())})
    pq.write_table(found, path, row_group_size=10_000, compression="none", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[4:1_000] = bytes(996)  # the head of the first page
    path.write_bytes(content)
    numbers = [record.columns["x"] for record in Shared(open_source(str(path)), Share(1, 2)).rows()]
    assert numbers == list(range(20_000, 40_000))
    with pytest.raises(DatasetError, match=re.escape("cannot read")):
        list(Shared(open_source(str(path)), Share(0, 2)).rows())


@pytest.mark.parametrize(("count", "of"), [(0, 3), (2, 5), (10, 3), (10, 1), (7, 7)])
def test_every_row_is_in_one_share(tmp_path: pathlib.Path, count: int, of: int) -> None:
    write_lines(tmp_path / "in.jsonl", rows(count))
    found: list[object] = []
    for index in range(of):
        share = Shared(open_source(str(tmp_path / "in.jsonl")), Share(index, of))
        numbers = [json.loads(bytes(record.columns["id"])) for record in share.rows()]
        assert share.count == len(numbers)
        assert not numbers or share.first == numbers[0]
        assert [json.loads(bytes(each.columns["id"])) for each in share.rows(skip=3)] == [n for n in numbers if n >= 3]
        found += numbers
    assert found == list(range(count))
