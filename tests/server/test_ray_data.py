"""Data sets on a real Ray with three nodes: `geartrain batch --ray` and `geartrain.ray.map_batches`."""

from __future__ import annotations

import json
import os
import pathlib
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
    assert set(rows[0]) == {"key", "output", "error"}
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
    assert (code, stderr.splitlines()[-1]) == (
        1,
        "error: a row has failed: ValueError: not this one (no row may fail; see --errors)",
    )
    code, stderr = batch(tmp_path, ray, "m", "in.parquet", "-o", "none")
    assert code == 1
    assert stderr.splitlines()[-1].endswith("Say which one it is: --map x=id")


@pytest.mark.parametrize("name", ["in.csv", "in.tsv", "in.jsonl", "folder"])
def test_what_ray_reads_and_writes(ray: RayNodes, tmp_path: pathlib.Path, name: str) -> None:
    write_model(tmp_path / "m", MODEL)
    place = tmp_path / name
    if name == "folder":
        place.mkdir()
        write_lines(place / "a.jsonl", [{"x": 1}, {"x": 2}])
        write_lines(place / "b.jsonl", [{"x": 3, "more": None}])
    elif name == "in.jsonl":
        write_lines(place, [{"x": 1}, {"x": 2}, {"x": 3}])
    else:
        place.write_text("x\tid\n1\ta\n2\tb\n3\tc\n".replace("\t", "\t" if name == "in.tsv" else ","))
    code, stderr = batch(tmp_path, ray, "m", name, "-o", "out.jsonl", "--keep", "x")
    assert code == 0, stderr
    rows = [json.loads(line) for path in (tmp_path / "out.jsonl").iterdir() for line in path.read_text().splitlines()]
    assert sorted((row["x"], row["output"][0]) for row in rows) == [(1, 0.5), (2, 1.0), (3, 1.5)]


def test_a_folder_of_files_is_a_row_each(ray: RayNodes, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", PICTURE)
    (tmp_path / "in").mkdir()
    for name in "ab":
        (tmp_path / "in" / f"{name}.bin").write_text(f"{name}1")
    code, stderr = batch(tmp_path, ray, "m", "in", "-o", "out", "--keep", "path")
    assert code == 0, stderr
    assert {(pathlib.Path(row["path"]).name, row["output"]) for row in written(tmp_path / "out")} == {
        ("a.bin", "1a"),
        ("b.bin", "1b"),
    }


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


REFUSED: Final = ("m", "in.jsonl", "-o", "out")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("m", "m", "in.jsonl", "-o", "out", "--compare"), "--compare runs on one machine"),
        ((*REFUSED, "--target", "http://127.0.0.1:1"), "processes without Ray share its rows by --part"),
        ((*REFUSED, "--part", "0/2"), "Ray, which spreads the rows itself"),
        ((*REFUSED, "--resume"), "use --overwrite"),
        ((*REFUSED, "--max-errors", "3"), "--errors fail"),
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
