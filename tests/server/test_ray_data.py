"""Data sets on a real Ray with three nodes: `geartrain batch --ray` and `geartrain.ray.map_batches`."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.ray_data import RayNodes, nodes
from tests.support.ray_serve import need_ray
from tests.support.servers import write_model

WAIT: Final = 150.0  # seconds that a run may take on a busy machine
MODEL: Final = """
    from geartrain import batched

    class Runner:
        @batched(max_size=16)
        def run(self, x: list[int]) -> list[list[float]]:
            if 13 in x:
                raise ValueError("not this one")
            return [[each / 2, float(len(x))] for each in x]
    """
GATED: Final = """
    import os, pathlib, time

    def run(n: int, folder: str) -> int:
        with open(f"{folder}/runs", "a") as runs:
            runs.write(f"{n} {os.environ['RAY_RAYLET_PID']}\\n")
        while n % 100 >= 50 and not pathlib.Path(folder, "go").exists():
            time.sleep(0.01)
        return n * n
    """
PICTURE: Final = """
    from geartrain import BaseRunner, Path

    class Runner(BaseRunner):
        def run(self, image: Path) -> str:
            return image.read_text()[::-1]
    """
pytestmark = pytest.mark.timeout(300)  # of which the first test needs most: it waits for the cluster


@pytest.fixture(scope="module")
def ray() -> Iterator[RayNodes]:
    need_ray()
    with nodes() as found:
        yield found


def start(folder: pathlib.Path, ray: RayNodes | None, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "geartrain", "batch", *arguments, "--ray"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=None if ray is None else ray.environ,
    )


def batch(folder: pathlib.Path, ray: RayNodes | None, *arguments: str) -> tuple[int, str]:
    process = start(folder, ray, *arguments)
    _, stderr = process.communicate(timeout=WAIT)
    return process.returncode, stderr


def write_lines(path: pathlib.Path, rows: Sequence[Any]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def written(folder: pathlib.Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder).to_pylist()
    return rows


def python(folder: pathlib.Path, ray: RayNodes, code: str) -> Any:
    """Run a program on the cluster; return the JSON on its last line."""
    head = "import json, ray, ray.data, geartrain.ray\nray.init(log_to_driver=False, logging_level='ERROR')\n"
    done = subprocess.run(
        [sys.executable, "-c", head + code],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        env=ray.environ,
        timeout=WAIT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_every_row_is_there_once_although_a_node_is_lost(
    ray: RayNodes, tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> None:
    """There are three actors. A node goes when two have run rows whose results are not written."""
    write_model(tmp_path / "m", GATED)
    (tmp_path / "in").mkdir()
    for part in range(12):
        numbers = range(100 * part, 100 * part + 100)
        write_lines(tmp_path / "in" / f"{part:02}.jsonl", [{"n": n, "folder": str(tmp_path)} for n in numbers])
    process = start(tmp_path, ray, "m", "in", "-o", "out", "--keep", "n", "--replicas", "3")
    request.addfinalizer(process.kill)
    runs, head = tmp_path / "runs", ray.raylets[0]
    until = time.monotonic() + WAIT
    while len(found := at_gate(runs)) < 2:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until, found
        time.sleep(0.05)
    lost = next(each for each in found if each != head)
    before = runs.read_text().splitlines()
    workers = [
        each for each in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(each.info["cmdline"] or ())
    ]
    ray.remove(lost)
    (tmp_path / "go").touch()
    _, stderr = process.communicate(timeout=WAIT)
    assert process.returncode == 0, stderr[-3000:]
    rows = written(tmp_path / "out")
    assert sorted(row["n"] for row in rows) == list(range(1200))
    assert all(row["output"] == row["n"] ** 2 and row["error"] is None for row in rows)
    begun = [int(line.split()[0]) for line in before if line.endswith(f" {lost}")]
    times = Counter(int(line.split()[0]) for line in runs.read_text().splitlines())
    assert begun
    assert all(times[n] > 1 for n in begun), "what the lost node has run was run again"
    _, alive = psutil.wait_procs(workers, WAIT)
    assert not alive, "workers end with their actors"


def at_gate(runs: pathlib.Path) -> set[int]:
    """The nodes whose worker waits in a row."""
    lines = runs.read_text().splitlines() if runs.exists() else []
    return {int(raylet) for number, raylet in map(str.split, lines) if int(number) % 100 >= 50}


def test_the_command_has_the_options_of_one_machine(ray: RayNodes, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", MODEL)
    pq.write_table(pa.table({"id": [f"i{n}" for n in range(40)], "value": list(range(40))}), tmp_path / "in.parquet")
    arguments = ("m", "in.parquet", "-o", "out", "--map", "x=value", "--keep", "key=id")
    code, stderr = batch(tmp_path, ray, *arguments)
    assert code == 0, stderr
    rows = written(tmp_path / "out")
    assert {row["key"] for row in rows} == {f"i{n}" for n in range(40)}
    assert set(rows[0]) == {"row", "key", "output", "error"}
    assert [row["row"] for row in rows] == list(range(40)), "rows have numbers, and their order"
    good = [row for row in rows if row["error"] is None]
    assert all(row["output"][0] == int(row["key"][1:]) / 2 for row in good)
    assert max(row["output"][1] for row in good) > 1, "rows run in batches"
    assert {row["error"] for row in rows} == {None, "ValueError: not this one"}
    assert "write it anew with --overwrite" in batch(tmp_path, ray, *arguments)[1]
    code, stderr = batch(tmp_path, ray, *arguments, "--overwrite", "--errors", "skip")
    assert code == 0, stderr
    rows = written(tmp_path / "out")
    assert rows
    assert all(row["error"] is None and row["key"] != "i13" for row in rows)
    code, stderr = batch(tmp_path, ray, "m", "in.parquet", "-o", "failed", "--map", "x=value", "--errors", "fail")
    assert code == 1
    said = r"error: row \d+ has failed: ValueError: not this one \(no row may fail; see --errors\)"
    assert re.fullmatch(said, stderr.splitlines()[-1]), stderr
    code, stderr = batch(tmp_path, ray, "m", "in.parquet", "-o", "none")
    assert code == 1
    assert stderr.splitlines()[-1].endswith("Say which one it is: --map x=id")


@pytest.mark.parametrize("name", ["in.csv", "in.tsv", "in.jsonl", "folder", "elsewhere"])
def test_what_is_read_and_written(ray: RayNodes, tmp_path: pathlib.Path, name: str) -> None:
    write_model(tmp_path / "m", MODEL)
    place = tmp_path / name
    if name in {"folder", "elsewhere"}:
        place.mkdir()
        write_lines(place / "a.jsonl", [{"x": 1}, {"x": 2}])
        write_lines(place / "b.jsonl", [{"x": 3, "more": None}])
    elif name == "in.jsonl":
        write_lines(place, [{"x": 1}, {"x": 2}, {"x": 3}])
    else:
        place.write_text("x\tid\n1\ta\n2\tb\n3\tc\n".replace("\t", "\t" if name == "in.tsv" else ","))
    head = tmp_path.as_uri() + "/" if name == "elsewhere" else ""  # as s3:// is, by a file system of pyarrow
    code, stderr = batch(tmp_path, ray, "m", head + name, "-o", f"{head}out.jsonl", "--keep", "x")
    assert code == 0, stderr
    rows = [
        json.loads(line)
        for path in sorted((tmp_path / "out.jsonl").iterdir())
        for line in path.read_text().splitlines()
    ]
    assert [(row["row"], int(row["x"]), row["output"][0]) for row in rows] == [(0, 1, 0.5), (1, 2, 1.0), (2, 3, 1.5)]


def test_a_folder_of_files_is_a_row_each(ray: RayNodes, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", PICTURE)
    (tmp_path / "in").mkdir()
    for name in "ab":
        (tmp_path / "in" / f"{name}.bin").write_text(f"{name}1")
    for place in ("in", f"{tmp_path.as_uri()}/in"):
        code, stderr = batch(tmp_path, ray, "m", place, "-o", "out", "--keep", "name", "--overwrite")
        assert code == 0, stderr
        found = [(row["name"], row["output"]) for row in written(tmp_path / "out")]
        assert found == [("a.bin", "1a"), ("b.bin", "1b")]


def test_from_python(ray: RayNodes, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", MODEL)
    code = """
rows = ray.data.range(100, override_num_blocks=4)
made = geartrain.ray.map_batches(rows, "m", columns={"x": "id"}, keep=["id"], replicas="1:2", batch_size=10)
print(json.dumps(made.take_all()))
"""
    found = python(tmp_path, ray, code)
    assert sorted(row["id"] for row in found) == list(range(100))
    assert all(row["output"][0] == row["id"] / 2 for row in found if row["error"] is None)
    assert any(row["error"] for row in found)
    code = """
import numpy as np
rows = ray.data.from_numpy(np.arange(12, dtype=np.float32).reshape(4, 3))
made = geartrain.ray.map_batches(rows, "sums", columns={"x": "data"})
print(json.dumps(sorted(row["output"] for row in made.take_all())))
"""
    write_model(tmp_path / "sums", "def run(x: list[float]) -> float:\n    return sum(x)\n")
    assert python(tmp_path, ray, code) == [3.0, 12.0, 21.0, 30.0]


def test_a_model_that_cannot_be_set_up_says_why(ray: RayNodes, tmp_path: pathlib.Path) -> None:
    write_model(
        tmp_path / "m",
        """
        class Runner:
            def setup(self) -> None:
                raise RuntimeError("no weights")

            def run(self, x: int) -> int:
                return x
        """,
    )
    write_lines(tmp_path / "in.jsonl", [{"x": 1}])
    code, stderr = batch(tmp_path, ray, "m", "in.jsonl", "-o", "out")
    assert code == 1
    assert "the model could not be set up" in stderr.splitlines()[-1]
    assert "no weights" in stderr


def test_a_killed_run_goes_on(ray: RayNodes, tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> None:
    """The process is killed when some parts are written, and others are running."""
    model = write_model(tmp_path / "m", GATED)
    (tmp_path / "in").mkdir()
    for part in range(3):
        rows = [{"n": n, "folder": str(tmp_path)} for n in range(100 * part, 100 * part + 100)]
        write_lines(tmp_path / "in" / f"{part}.jsonl", [*rows[:3], ["no object"], *rows[3:]])
    out = tmp_path / "out"
    arguments = ("m", "in", "-o", "out", "--keep", "n", "--part-rows", "20", "--replicas", "2")
    process = start(tmp_path, ray, *arguments)
    request.addfinalizer(process.kill)
    until = time.monotonic() + WAIT
    while len([*out.glob("part-*")]) < 2:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert "go on with --resume" in batch(tmp_path, ray, *arguments)[1]
    times = (model / "run.py").stat()
    (model / "run.py").touch()
    assert "the model has changed since out was begun" in batch(tmp_path, ray, *arguments, "--resume")[1]
    os.utime(model / "run.py", ns=(times.st_atime_ns, times.st_mtime_ns))
    before = {path: path.stat().st_mtime_ns for path in out.glob("part-*")}
    ran = (tmp_path / "runs").read_text().splitlines()
    (tmp_path / "go").touch()
    done, stderr = batch(tmp_path, ray, *arguments, "--resume")
    assert done == 0, stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
    rows = written(out)
    assert [row["row"] for row in rows] == list(range(303))
    assert [row["n"] for row in rows if row["error"] is None] == list(range(300))
    assert [row["row"] for row in rows if row["error"]] == [3, 104, 205]
    kept = {row["n"] for path in before for row in pq.read_table(path).to_pylist() if row["error"] is None}
    again = [int(line.split()[0]) for line in (tmp_path / "runs").read_text().splitlines()[len(ran) :]]
    assert sorted(again) == sorted(set(range(300)) - kept), "rows of written parts are not run again"
    assert not [path for path in out.iterdir() if path.name.startswith("_")], "nothing is left beside the parts"
    assert "nothing to go on with" in batch(tmp_path, ray, *arguments, "--resume")[1]


def test_two_models_are_compared_with_the_report_of_one_machine(ray: RayNodes, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "a", "def run(x: int) -> int:\n    return x\n")
    write_model(tmp_path / "b", "def run(x: int) -> int:\n    assert x != 3\n    return max(x, 2)\n")
    write_lines(tmp_path / "in.jsonl", [{"x": x} for x in range(10)])
    arguments = ("a", "b", "in.jsonl", "--compare", "-o", "out", "--part-rows", "4")
    (tmp_path / "scores.py").write_text("def near(a, b):\n    return 1 / (1 + abs(a - b))\n")
    code, stderr = batch(tmp_path, ray, *arguments, "--metric", "scores:near", "--report", "report.html")
    assert code == 0, stderr
    told = json.loads(stderr.splitlines()[-1])
    assert (told["event"], told["rows"], told["errors"]) == ("done", 10, 1)
    assert told["notes"][0] == "7 of 9 rows are the same; mean score 0.8704"
    assert "7 of 9 rows are the same" in (tmp_path / "report.html").read_text()
    rows = written(tmp_path / "out")
    assert [(row["output"] or {}).get("score") for row in rows[:4]] == [1 / 3, 1 / 2, 1.0, None]
    assert rows[3]["error"].startswith("b: AssertionError")
    code, stderr = batch(tmp_path, ray, *arguments, "--overwrite", "--max-errors", "0")
    assert (code, "more than 0 rows have failed: b: AssertionError" in stderr) == (1, True), stderr


def test_shares_are_runs_of_their_own(ray: RayNodes, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", "def run(x: int) -> int:\n    return x * x\n")
    write_lines(tmp_path / "in.jsonl", [{"x": x} for x in range(50)])
    arguments = ("m", "in.jsonl", "-o", "out", "--part-rows", "10")
    for share in ("1/2", "0/2"):
        code, stderr = batch(tmp_path, ray, *arguments, "--part", share)
        assert code == 0, stderr
        assert len(written(tmp_path / "out")) == {"1/2": 20, "0/2": 50}[share]
    assert [(row["row"], row["output"]) for row in written(tmp_path / "out")] == [(x, x * x) for x in range(50)]
    assert "is there already" in batch(tmp_path, ray, *arguments, "--part", "1/2")[1]
    code, stderr = batch(tmp_path, ray, *arguments, "--part", "1/2", "--resume")
    assert (code, json.loads(stderr.splitlines()[-1])["rows"]) == (0, 0), stderr


REFUSED: Final = ("m", "in.jsonl", "-o", "out")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*REFUSED, "--target", "http://127.0.0.1:1"), "processes without Ray share its rows by --part"),
        ((*REFUSED, "--window", "9"), "--window is of one process"),
        (("m", "in.jsonl", "-o", "out.csv"), ".csv is not written"),
        ((*REFUSED, "--devices", "cuda:1"), "say how many with --gpus"),
        ((*REFUSED, "--devices", "cpu", "--gpus", "1"), "leave --gpus out"),
        (("m", "-", "-o", "out"), "name IN and -o OUT"),
        (("m", "in.jsonl"), "name IN and -o OUT"),
    ],
)
def test_what_ray_does_not_do_is_said(tmp_path: pathlib.Path, arguments: tuple[str, ...], message: str) -> None:
    write_model(tmp_path / "m", MODEL)
    write_lines(tmp_path / "in.jsonl", [{"x": 1}])
    code, stderr = batch(tmp_path, None, *arguments)
    assert (code, len(stderr.splitlines())) == (1, 1), stderr
    assert message in stderr


def without_ray(folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command where Ray cannot be imported."""
    words = ["geartrain", "batch", "m", "in.jsonl", *arguments, "--ray"]
    code = f"import sys\nsys.modules['ray'] = None\nsys.argv = {words}\nfrom geartrain.cli.main import main\nmain()"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, check=False, capture_output=True, text=True, env=dict(os.environ)
    )


def test_without_ray_the_command_names_what_to_install(tmp_path: pathlib.Path) -> None:
    write_lines(tmp_path / "in.jsonl", [{"x": 1}])
    done = without_ray(tmp_path, "-o", "out")
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install 'geartrain[ray]'" in done.stderr


def test_ten_rows_are_tried_here_before_anything_starts_on_the_cluster(tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", "def run(x: int) -> int:\n    return x * x\n")
    write_lines(tmp_path / "in.jsonl", [{"x": x} for x in range(12)])
    done = without_ray(tmp_path, "-o", "out", "--replicas", "64", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [word for x in range(10) for word in (str(x), str(x * x))]
    assert not (tmp_path / "out").exists()
