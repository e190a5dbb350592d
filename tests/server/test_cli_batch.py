"""`geartrain batch`: a real command, real workers, real files."""

from __future__ import annotations

import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, Any, ClassVar

import httpx
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from geartrain.dataset.records import MAX_ROW
from tests.support.cloud import running_cloud
from tests.support.disks import small_disk
from tests.support.forked import run_forked, start_forked
from tests.support.s3_server import running_s3
from tests.support.servers import PATIENCE, ServerProcess, write_model

SHOUT = """
    def run(text: str, times: int = 1) -> str:
        if text == "raise":
            raise ValueError("not this one")
        return text.upper() * times
    """
BATCHED = """
    from geartrain import batched

    class Runner:
        @batched(max_size=16)
        def run(self, x: list[float]) -> list[float]:
            return [2 * each for each in x]
    """
PADDED = """
    from geartrain import batched

    class Runner:
        @batched(max_size=4, cost="text", padded=True%s)
        def run(self, text: list[str]) -> list[list[int]]:
            return [[len(each) for each in text]] * len(text)
    """
VECTORS = """
    import os
    import pathlib
    from geartrain import batched

    def resident(pid: int) -> float:
        pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    class Runner:
        @batched(max_size=256, cost="text", max_cost=2500, padded=True, sort=True)
        def run(self, text: list[str]) -> list[list[float]]:
            memory = [resident(os.getpid()), resident(os.getppid())]
            return [memory + [len(each) / 7 + place / 3 for place in range(382)] for each in text]
    """
DEADLY = """
    import os
    from geartrain import batched

    class Runner:
        @batched(max_size=8)
        def run(self, x: list[int]) -> list[int]:
            if 13 in x:
                os._exit(3)
            return [each + 1 for each in x]
    """
MIXED = """
    from geartrain import batch_item, batched, current_scope

    class Runner:
        @batched(max_size=32)
        def run(self, x: list[int]) -> list[int]:
            for place, each in enumerate(x):
                with batch_item(place):
                    if each % 10 == 2:
                        print("a print")
                    if each % 10 == 3:
                        current_scope().record_metric("tokens.completion", 7)
            return [ValueError("an item") if each % 10 == 1 else each + 1 for each in x]
    """
STREAM = """
    from collections.abc import Iterator

    def run(n: int) -> Iterator[int]:
        yield from range(n)
    """
NESTED = """
    from typing import Any
    from geartrain import Path

    def run(x: list[list[float]], file: Path, named: dict[str, float] = {}) -> dict[str, Any]:
        return {"named": named, "x": x, "text": file.read_text()}
    """
PICTURE = """
    from geartrain import BaseRunner, Path

    class Runner(BaseRunner):
        def run(self, image: Path) -> Path:
            out = Path("made.txt")
            out.write_bytes(image.read_bytes()[::-1])
            return out
    """
SLOW = """
    import time

    def run(n: int) -> int:
        time.sleep(0.002)
        return n * n
    """

Batch = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def batch(tmp_path: pathlib.Path) -> Batch:
    """Run the command in the test's folder."""

    def run(*arguments: str | pathlib.Path, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, **variables}
        return run_forked("batch", *arguments, stdin=stdin, cwd=tmp_path, env=environ, timeout=3 * PATIENCE)

    return run


def write_lines(path: pathlib.Path, rows: Sequence[Any]) -> pathlib.Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def read_lines(text: str | pathlib.Path) -> list[dict[str, Any]]:
    if isinstance(text, pathlib.Path):
        text = text.read_text()
    return [json.loads(line) for line in text.splitlines()]


# rows in, rows out


def test_rows_by_name_in_their_order_with_errors_in_their_lines(batch: Batch, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", SHOUT)
    rows = [
        {"text": "a", "id": 7},
        {"text": "b", "times": 2, "id": None},
        "",
        {"word": "c"},
        "no json",
        "[1]",
        {"text": 5},
        {"text": "raise", "id": "x"},
        {"text": "ü", "times": None},
    ]
    done = batch("m", write_lines(tmp_path / "in.jsonl", rows), "--keep", "key=id")
    assert done.returncode == 0
    found = read_lines(done.stdout)
    assert [row["row"] for row in found] == list(range(8))  # the empty line is none
    assert [row.get("output") for row in found] == ["A", "BB", None, None, None, None, None, "Ü"]
    assert [row.get("key") for row in found] == [7, None, None, None, None, None, "x", None]
    errors = [row.get("error", "") for row in found]
    assert errors[2] == 'missing required input "text"'
    assert "no JSON" in errors[3]
    assert "object" in errors[4]
    assert errors[5] == 'text: 5 is not of type "string"'
    assert errors[6] == "ValueError: not this one"
    summary = json.loads(done.stderr.splitlines()[-1])
    assert (summary["event"], summary["rows"], summary["errors"]) == ("done", 8, 5)


def test_null_leaves_an_input_out_and_texts_stay_as_they_are(batch: Batch, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", "def run(x: str, n: int = 3) -> str:\n    return x * n")
    lines = [
        '{"n": null, "x": "é"}',
        '{"x": "null", "n":1}',
        '{"x": " ", "n" : 1 }',
        '{"x": null}',
        '{"x": "", "n": 0}',
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    done = batch("m", "in.jsonl")
    assert [row.get("output") for row in read_lines(done.stdout)] == ["ééé", "null", " ", None, ""], done.stderr
    assert "missing required input" in read_lines(done.stdout)[3]["error"]


def test_texts_of_a_table_become_the_types_of_the_inputs(batch: Batch, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", SHOUT)
    table = tmp_path / "in.csv"
    table.write_bytes(b'\xef\xbb\xbfbody,times,id\r\n"a ""b""\nc",2,1\r\nd,,2\r\ne,x,3\r\nf,1\r\n')
    done = batch("m", table, "--map", "text=body", "--keep", "id")
    assert read_lines(done.stdout) == [
        {"row": 0, "id": "1", "output": 'A "B"\nCA "B"\nC'},
        {"row": 1, "id": "2", "output": "D"},
        {"row": 2, "id": "3", "error": 'times: "x" is not of type "integer"'},
        {"row": 3, "error": "the line has 2 cells, and the head 3"},
    ]


def test_parquet_in_and_out_in_parts(batch: Batch, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", BATCHED)
    pq.write_table(pa.table({"x": [float(n) for n in range(25)], "id": list(range(100, 125))}), tmp_path / "in.parquet")
    done = batch("m", "in.parquet", "-o", "out", "--keep", "id", "--part-rows", "10")
    assert done.returncode == 0, done.stderr
    parts = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert parts == ["part-00000.parquet", "part-00001.parquet", "part-00002.parquet"]
    table = pq.read_table(tmp_path / "out")
    assert table.schema.field("output").type == pa.float64()
    assert table.schema.field("id").type == pa.int64()
    assert table.column("output").to_pylist() == [2.0 * n for n in range(25)]
    assert table.column("id").to_pylist() == list(range(100, 125))
    assert json.loads(done.stderr.splitlines()[-1])["batch_rows"] > 1


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_maps_tensors_and_files_of_a_table(batch: Batch, tmp_path: pathlib.Path, suffix: str) -> None:
    """Files as `datasets` has them: their bytes, or a path."""
    write_model(tmp_path / "m", NESTED)
    (tmp_path / "b.txt").write_text("beside")
    kept = pa.map_(pa.string(), pa.float64())
    table = pa.table(
        {
            "named": pa.array([[("a", 1.5), ("b", 2.0)], None], kept),
            "x": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12, dtype=np.float32).reshape(2, 2, 3)),
            "file": [{"bytes": b"within", "path": "a.txt"}, {"bytes": None, "path": "b.txt"}],
        }
    )
    name = f"in.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, tmp_path / name)
    else:
        with pa.ipc.new_file(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
    found = read_lines(batch("m", name).stdout)
    assert [line.get("output", line) for line in found] == [
        {"named": {"a": 1.5, "b": 2.0}, "x": [[0, 1, 2], [3, 4, 5]], "text": "within"},
        {"named": {}, "x": [[6, 7, 8], [9, 10, 11]], "text": "beside"},
    ]
    assert batch("m", name, "-o", "out", "--keep", "named,file").returncode == 0
    written = pq.read_table(tmp_path / "out")
    assert written.schema.field("named").type == kept
    assert written.column("named").to_pylist() == table.column("named").to_pylist()


def test_a_folder_of_files_is_a_row_each_and_output_files_lie_beside(batch: Batch, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", PICTURE)
    (tmp_path / "in").mkdir()
    for name in ("b.bin", "a.bin"):
        (tmp_path / "in" / name).write_bytes(name.encode())
    done = batch("m", "in", "-o", "out.jsonl", "--keep", "name")
    assert done.returncode == 0, done.stderr
    rows = read_lines(tmp_path / "out.jsonl")
    assert [row["name"] for row in rows] == ["a.bin", "b.bin"]
    assert [(tmp_path / row["output"]).read_bytes() for row in rows] == [b"nib.a", b"nib.b"]


def test_files_by_paths_that_are_relative_to_the_data_set(batch: Batch, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", PICTURE)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "x.bin").write_bytes(b"abc")
    rows = [{"image": "x.bin"}, {"image": "gone.bin"}, {"image": "data:,xyz"}]
    done = batch("m", write_lines(tmp_path / "set" / "in.jsonl", rows))
    found = read_lines(done.stdout)
    assert found[0]["output"].startswith("data:")
    assert found[1]["error"] == "image: cannot read gone.bin: No such file or directory"
    assert "output" in found[2]


def test_stdin_and_a_dry_run(batch: Batch, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", SHOUT)
    lines = "".join(json.dumps({"text": f"t{n}"}) + "\n" for n in range(30))
    assert len(read_lines(batch("m", "-", stdin=lines).stdout)) == 30
    done = batch("m", "-", "--dry-run", "-o", "out.jsonl", stdin=lines)
    assert [line.split()[1] for line in done.stdout.splitlines()] == [f'"T{n}"' for n in range(10)]
    assert not (tmp_path / "out.jsonl").exists()
    assert json.loads(done.stderr.splitlines()[-1])["total"] is None, "it is not known"


def test_a_server_runs_the_rows(
    batch: Batch, tmp_path: pathlib.Path, server_process: Callable[..., ServerProcess]
) -> None:
    process = server_process(str(write_model(tmp_path / "m", SHOUT)), "--queue", "4")
    url = process.wait_for("listening")["url"]
    process.wait_for("ready")
    rows = [{"text": f"t{n}"} for n in range(40)] + [{"text": 1}, {"text": "raise"}]
    done = batch(".", write_lines(tmp_path / "in.jsonl", rows), "--target", url, "--window", "16")
    found = read_lines(done.stdout)
    assert [row.get("output") for row in found] == [*(f"T{n}" for n in range(40)), None, None]
    assert "not of type" in found[40]["error"]
    assert found[41]["error"] == "ValueError: not this one"
    process.end()
    done = batch(".", tmp_path / "in.jsonl", "--target", url)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")


def test_rows_at_a_url_run_on_the_devices_that_are_named(batch: Batch, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    source = "import os\n\ndef run(x: str) -> str:\n    return x + os.environ['CUDA_VISIBLE_DEVICES']"
    write_model(tmp_path / "m", source)
    write_lines(tmp_path / "in.jsonl", [{"x": "a"}, {"x": "b"}])
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/in.jsonl"
        done = batch("m", url, "--devices", "cpu", "--cache-dir", tmp_path / "cache")
        server.shutdown()
    assert [row["output"] for row in read_lines(done.stdout)] == ["a-1", "b-1"], done.stderr


def test_rows_that_lie_in_a_bucket(batch: Batch, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    write_model(tmp_path / "m", SHOUT)
    with running_s3() as s3:
        s3.put(**{"rows/in.jsonl": b'{"text": "a"}\n{"text": "b"}\n'})
        done = batch("m", "s3://bucket/rows/in.jsonl", GEARTRAIN_CACHE=str(tmp_path / "cache"), **s3.environ())
    assert [row["output"] for row in read_lines(done.stdout)] == ["A", "B"], done.stderr


@pytest.mark.parametrize(
    "place",
    [
        "gs://bucket/rows",
        "az://bucket/rows/in.jsonl",
        "hf://org/cats@v1/rows/in.jsonl",
        "hf://datasets/org/cats@v1/rows",
        "hf://datasets/org/cats",
        "{url}/bucket/rows.tar.gz",
        "gs://bucket/none",
    ],
)
def test_rows_that_lie_elsewhere(batch: Batch, tmp_path: pathlib.Path, place: str) -> None:
    for module in ("obstore", "huggingface_hub"):
        pytest.importorskip(module, reason="the extra `remote` is not installed")
    write_model(tmp_path / "m", SHOUT)
    (tmp_path / "rows").mkdir()
    content = write_lines(tmp_path / "rows/in.jsonl", [{"text": "a"}, {"text": "b"}]).read_bytes()
    shutil.make_archive(str(tmp_path / "rows"), "gztar", tmp_path, "rows")
    with running_cloud() as cloud:
        for folder in ("bucket", "org/cats", "datasets/org/cats"):
            cloud.files[f"{folder}/rows/in.jsonl"] = content
        cloud.files["datasets/org/cats/README.md"] = b"no row"
        cloud.files["bucket/rows.tar.gz"] = (tmp_path / "rows.tar.gz").read_bytes()
        cloud.cuts = {path: [10] for path in cloud.files}
        done = batch("m", place.format(url=cloud.url), GEARTRAIN_CACHE=str(tmp_path / "cache"), **cloud.environ())
    if place == "gs://bucket/none":
        assert (done.returncode, done.stdout) == (1, "")
        assert "error: gs://bucket/none: there is no such object" in done.stderr
    else:
        assert [row["output"] for row in read_lines(done.stdout)] == ["A", "B"], done.stderr


def test_a_model_that_lies_in_a_bucket_from_python(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    code = "import geartrain\nprint([each.output for each in geartrain.map('s3://bucket/models/m', ['a', 'b'])])"
    with running_s3() as s3:
        s3.put(**{"models/m/run.py": b"def run(text: str) -> str:\n    return text.upper()\n"})
        environ = {**os.environ, **s3.environ(), "GEARTRAIN_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(
            [sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environ, timeout=PATIENCE
        )
    assert done.stdout.splitlines() == ["['A', 'B']"], done.stderr


class Unsteady(BaseHTTPRequestHandler):
    """Passes requests on to a bucket; the first ones fail in one way or the other."""

    url = ""  # of the bucket's server
    fails: ClassVar[list[str]] = []  # "503", or "cut": half of the body

    def do_GET(self) -> None:
        answer = httpx.get(f"{self.url}{self.path}", headers=dict(self.headers), trust_env=False)
        how = self.fails.pop(0) if self.fails and answer.content else ""
        content = b"" if how == "503" else answer.content
        self.send_response(503 if how == "503" else answer.status_code)
        for name, value in answer.headers.items():
            if name.lower() not in {"content-length", "connection", "date", "server"}:
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if how == "cut" else content)
        self.close_connection = True

    def do_HEAD(self) -> None:
        answer = httpx.head(f"{self.url}{self.path}", headers=dict(self.headers), trust_env=False)
        self.send_response(answer.status_code)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("fails", "is_read"), [(["503"], True), (["cut"], True), (["503", "cut"], True), (["503"] * 99, False)]
)
def test_a_bucket_that_fails_for_a_while_and_for_good(
    batch: Batch, tmp_path: pathlib.Path, fails: list[str], is_read: bool
) -> None:
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    write_model(tmp_path / "m", SHOUT)
    with running_s3() as s3:
        s3.put(**{"rows/in.jsonl": b'{"text": "a"}\n{"text": "b"}\n'})
        handler = type("Handler", (Unsteady,), {"url": s3.environ()["AWS_ENDPOINT_URL"], "fails": list(fails)})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            environ = {**s3.environ(), "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"}
            done = batch("m", "s3://bucket/rows/in.jsonl", GEARTRAIN_CACHE=str(tmp_path / "cache"), **environ)
        finally:
            server.shutdown()
            server.server_close()
    if is_read:
        assert [row["output"] for row in read_lines(done.stdout)] == ["A", "B"], done.stderr
    else:
        assert (done.returncode, done.stdout) == (1, "")
        assert "s3://bucket/rows/in.jsonl" in done.stderr


# errors, and what is there already


def test_the_first_error_ends_a_run_that_allows_none_and_it_goes_on_when_mended(
    batch: Batch, tmp_path: pathlib.Path
) -> None:
    write_model(tmp_path / "m", SHOUT)
    rows: list[Any] = [{"text": f"t{n}"} for n in range(50)]
    rows[20] = {"text": "raise"}
    write_lines(tmp_path / "in.jsonl", rows)
    done = batch("m", "in.jsonl", "-o", "out.jsonl", "--errors", "fail")
    assert (done.returncode, "row 20: ValueError: not this one" in done.stderr) == (1, True)
    assert len(read_lines(tmp_path / "out.jsonl")) == 20
    assert "--resume" in batch("m", "in.jsonl", "-o", "out.jsonl", "--errors", "fail").stderr
    refused = batch("m", "in.jsonl", "-o", "out.jsonl", "--errors", "skip", "--resume")
    assert "--errors was 'fail'" in refused.stderr
    rows[20] = {"text": "fine"}
    write_lines(tmp_path / "in.jsonl", rows)
    assert (
        "the data set has changed" in batch("m", "in.jsonl", "-o", "out.jsonl", "--errors", "fail", "--resume").stderr
    )
    done = batch("m", "in.jsonl", "-o", "out.jsonl", "--errors", "fail", "--resume-changed")
    assert done.returncode == 0
    assert [row["row"] for row in read_lines(tmp_path / "out.jsonl")] == list(range(50))
    assert "is complete" in batch("m", "in.jsonl", "-o", "out.jsonl", "--resume").stderr
    assert "--overwrite" in batch("m", "in.jsonl", "-o", "out.jsonl").stderr


def test_a_changed_model_is_noticed(batch: Batch, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", SHOUT)
    write_lines(tmp_path / "in.jsonl", [{"text": "a"}, {"text": "raise"}])
    assert batch("m", "in.jsonl", "-o", "out.jsonl", "--max-errors", "0").returncode == 1
    write_model(tmp_path / "m", SHOUT.replace('"raise"', '"other"'))
    assert "the model has changed" in batch("m", "in.jsonl", "-o", "out.jsonl", "--resume").stderr


def test_skipped_rows_have_no_line(batch: Batch, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", SHOUT)
    rows = [{"text": "a"}, {"text": "raise"}, {"text": "b"}]
    done = batch("m", write_lines(tmp_path / "in.jsonl", rows), "--errors", "skip")
    assert [row["row"] for row in read_lines(done.stdout)] == [0, 2]


def test_a_row_that_kills_its_worker_is_an_error_and_the_rest_goes_on(batch: Batch, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", DEADLY)
    done = batch("m", write_lines(tmp_path / "in.jsonl", [{"x": n} for n in range(60)]))
    found = read_lines(done.stdout)
    assert [row.get("output") for row in found] == [None if n == 13 else n + 1 for n in range(60)]
    assert found[13]["error"].startswith("Worker crashed")
    assert done.returncode == 0


def test_rows_of_a_call_that_fail_print_or_record_leave_the_others_as_they_are(
    batch: Batch, tmp_path: pathlib.Path
) -> None:
    write_model(tmp_path / "m", MIXED)
    done = batch("m", write_lines(tmp_path / "in.jsonl", [{"x": n} for n in range(200)]), "-o", "out.jsonl")
    summary = json.loads(done.stderr.splitlines()[-1])
    found = read_lines(tmp_path / "out.jsonl")
    assert [row["row"] for row in found] == [*range(200)]
    assert [row.get("output", row.get("error")) for row in found] == [
        "ValueError: an item" if n % 10 == 1 else n + 1 for n in range(200)
    ]
    assert summary["errors"] == 20
    assert summary["tokens"] == {"completion": 7 * 20}


def test_an_account_says_what_rows_have_waited_for(
    tmp_path: pathlib.Path, server_process: Callable[..., ServerProcess]
) -> None:
    """Shares of time depend on the machine; their reading is tested with the view."""
    write_model(tmp_path / "slow", SLOW)
    write_lines(tmp_path / "in.jsonl", [{"n": n} for n in range(50)])

    def account(*arguments: str) -> dict[str, Any]:
        words = [sys.executable, "-m", "geartrain", "batch", *arguments, "-o", "out.jsonl", "--overwrite"]
        done = subprocess.run(words, check=True, cwd=tmp_path, stderr=subprocess.PIPE, timeout=PATIENCE)
        found: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])
        return found

    found = account("slow", "in.jsonl", "--report", str(tmp_path / "report.html"))
    assert 50 * 0.002 / found["seconds"] * 0.5 < found["busy"] <= 1
    assert "; the workers were busy for" in (tmp_path / "report.html").read_text()
    assert account("slow", "slow", "in.jsonl", "--compare")["busy"] > 0
    process = server_process(str(tmp_path / "slow"), "--queue", "100")
    url = process.wait_for("listening")["url"]
    process.wait_for("ready")
    assert account(".", "in.jsonl", "--target", url)["busy"] is None


@pytest.mark.parametrize("sort", [", max_cost=80", ", sort=True", ", max_cost=80, sort=2"])
def test_rows_of_a_padded_model_are_sorted_among_all_that_are_on_their_way(
    batch: Batch, tmp_path: pathlib.Path, sort: str
) -> None:
    write_model(tmp_path / "m", PADDED % sort)
    write_lines(tmp_path / "in.jsonl", [{"text": "x" * (1 + number % 16)} for number in range(64)])
    lines = read_lines(batch("m", "in.jsonl").stdout)
    assert [line["row"] for line in lines] == list(range(64))
    assert [line["output"] for line in lines] == [[1 + number % 16] * 4 for number in range(64)]


def test_more_rows_are_sorted_where_many_run_in_half_a_minute(batch: Batch, tmp_path: pathlib.Path) -> None:
    """Calls of 32 rows. Each row has the length that it is padded to for its output."""
    write_model(tmp_path / "m", PADDED.replace("max_size=4", "max_size=32") % ", sort=True")
    lengths = random.Random(1)  # noqa: S311 - lengths
    rows = [{"text": "x" * min(512, max(8, int(lengths.lognormvariate(3.7, 0.9))))} for _ in range(20_000)]
    real = sum(len(row["text"]) for row in rows)
    write_lines(tmp_path / "in.jsonl", rows)

    def padded(*options: str) -> float:
        done = batch("m", "in.jsonl", *options)
        computed: int = sum(max(line["output"]) for line in read_lines(done.stdout))
        return computed / real

    assert padded("--window", "512") > 1.25
    assert padded() < 1.18


def test_memory_stays_as_it_is_from_row_10000_on(batch: Batch, tmp_path: pathlib.Path) -> None:
    """Texts of mixed lengths, sorted, with outputs of 7 kB: 140 MB of them pass. The model measures both processes."""
    write_model(tmp_path / "m", VECTORS)
    lengths = random.Random(1)  # noqa: S311 - lengths
    rows = [{"text": "x" * min(2500, int(lengths.lognormvariate(5.3, 0.9)))} for _ in range(20_000)]
    done = batch("m", write_lines(tmp_path / "in.jsonl", rows), "-o", "out.jsonl")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out.jsonl").open() as lines:
        memory = [json.loads(line)["output"][:2] for line in lines]
    for process in (0, 1):
        settled, last = (
            statistics.median(row[process] for row in some) for some in (memory[9_000:10_000], memory[-1_000:])
        )
        assert settled > 10
        assert last - settled < 40  # MB, while 70 MB of outputs have passed


def test_what_a_model_yields_is_the_list_of_it(batch: Batch, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", STREAM)
    done = batch("m", write_lines(tmp_path / "in.jsonl", [{"n": n} for n in range(5)]), "--keep", "n")
    assert read_lines(done.stdout) == [{"row": n, "n": n, "output": [*range(n)]} for n in range(5)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["in.jsonl", "--map", "word=text"], "the model takes text, times"),
        (["in.csv"], "--map text=body"),
        (["in.csv", "--map", "text=nothing"], "the data set has the columns body"),
        (["in.csv", "--keep", "output=body"], "--keep other=body"),
        (["in.jsonl", "--keep", "a,a"], "twice"),
        (["twice.csv"], "the column 'a' is there twice"),
        (["nothing.jsonl"], "there is no nothing.jsonl"),
        (["in.txt"], "--format"),
        (["other.parquet"], "the data set has body. Say which one it is: --map text=body"),
        (["folder.parquet"], "folder.parquet"),
        (["cut.parquet"], "cannot read cut.parquet as Parquet"),
        (["empty.csv"], "is empty"),
        (["in.jsonl", "-o", "in.jsonl"], "is there already"),
        (
            ["in.jsonl", "-o", "out.csv"],
            ".csv is not written; write FILE.jsonl for JSON lines, or a folder for Parquet",
        ),
        (["in.jsonl", "-o", "out.jsonl.gz"], "-o out.jsonl.gz: .gz is not written"),
        (["in.jsonl", "-o", "/proc/nothing/out.jsonl"], "cannot write"),
    ],
)
def test_what_cannot_be_is_said_with_the_way_out(
    batch: Batch, tmp_path: pathlib.Path, arguments: list[str], message: str
) -> None:
    write_model(tmp_path / "m", SHOUT)
    write_lines(tmp_path / "in.jsonl", [{"text": "a"}])
    (tmp_path / "in.csv").write_text("body\na\n")
    (tmp_path / "twice.csv").write_text("a,a\n1,2\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "in.txt").write_text("a")
    pq.write_table(pa.table({"text": ["a"] * 1000}), tmp_path / "whole.parquet")
    pq.write_table(pa.table({"body": [1.5]}), tmp_path / "other.parquet")
    (tmp_path / "folder.parquet").mkdir()
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "whole.parquet").read_bytes()[:-100])
    done = batch("m", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr


def test_hostile_lines_are_errors_of_their_own(batch: Batch, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", SHOUT)
    path = tmp_path / "in.jsonl"
    with path.open("wb") as file:
        file.write(b'\xef\xbb\xbf{"text": "first"}\n')
        file.write(b'{"text": "\xff"}\n')
        file.write(b'{"text": "a\x00b"}\n')
        file.write(b'{"text": ' + b"[" * 100_000 + b"\n")
        file.write(b'{"text": "' + b"x" * (MAX_ROW + 10) + b'"}\n')
        file.write(b'{"text": "last"}')
    done = batch("m", path)
    found = read_lines(done.stdout)
    assert [row.get("output") for row in found] == ["FIRST", None, None, None, None, "LAST"]
    assert "UTF-8" in found[1]["error"]
    assert "64 MiB" in found[4]["error"]
    table = tmp_path / "in.csv"
    table.write_bytes(b'text\nfirst\n"a\xff"\n\x00\nlast\n')
    found = read_lines(batch("m", table).stdout)
    assert (found[0]["output"], found[-1]["output"]) == ("FIRST", "LAST")
    assert "UTF-8" in found[1]["error"]


@pytest.mark.slow
def test_a_line_of_a_gigabyte_is_an_error_and_takes_no_memory(tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", SHOUT)
    command = [sys.executable, "-m", "geartrain", "batch", "m", "-", "--format", "jsonl"]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    assert process.stdout is not None
    peaks: list[int] = []  # KiB

    def feed(file: IO[bytes]) -> None:
        with file:
            file.write(b'{"text": "first"}\n{"text": "')
            for _ in range(1024):
                file.write(b"x" * 2**20)
            file.write(b'"}\n')
            file.flush()
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            peaks.extend(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
            file.write(b'{"text": "last"}\n')

    feeding = threading.Thread(target=feed, args=(process.stdin,))
    feeding.start()
    with process.stdout as answers:
        found = read_lines(answers.read().decode())
    feeding.join()
    assert process.wait(PATIENCE) == 0
    assert [row.get("output") for row in found] == ["FIRST", None, "LAST"]
    assert "64 MiB" in found[1]["error"]
    assert peaks[0] < 400_000


def test_a_file_that_is_cut_short_says_so_and_keeps_its_rows(batch: Batch, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", BATCHED)
    pq.write_table(
        pa.table({"x": pa.array([random.random() for _ in range(40_000)])}),  # noqa: S311 - nothing secret
        tmp_path / "in.parquet",
        row_group_size=10_000,
        compression="none",
        use_dictionary=False,
    )
    content = bytearray((tmp_path / "in.parquet").read_bytes())
    content[170_000:175_000] = os.urandom(5_000)  # a page header in the midst
    (tmp_path / "in.parquet").write_bytes(content)
    done = batch("m", "in.parquet", "-o", "out.jsonl")
    rows = read_lines(tmp_path / "out.jsonl")
    assert [row["row"] for row in rows] == list(range(len(rows)))
    if done.returncode:  # the damage may lie in values alone
        assert "cannot read" in done.stderr


@pytest.mark.skipif(not pathlib.Path("/proc/self/mem").exists(), reason="needs a file that opens and cannot be read")
@pytest.mark.parametrize("name", ["in.jsonl", "in.csv"])
def test_a_file_that_cannot_be_read_is_named(batch: Batch, tmp_path: pathlib.Path, name: str) -> None:
    write_model(tmp_path / "m", SHOUT)
    (tmp_path / name).symlink_to("/proc/self/mem")
    done = batch("m", name, "-o", "out.jsonl")
    assert done.returncode == 1
    assert f"cannot read {name}: Input/output error" in done.stderr
    assert "Traceback" not in done.stderr


# cut off and gone on with


@contextmanager
def begun(*arguments: str | pathlib.Path, cwd: pathlib.Path) -> Iterator[subprocess.Popen[bytes]]:
    process = start_forked(["batch", *arguments], cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def kill_at(process: subprocess.Popen[bytes], path: pathlib.Path, size: int) -> bool:
    """Kill a run with SIGKILL as soon as its output has so many bytes; return False if it has ended before."""
    until = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < until:
        if _size(path) >= size:
            process.kill()
            return process.wait(PATIENCE) == -signal.SIGKILL
        time.sleep(0.002)
    return False


def _size(path: pathlib.Path) -> int:
    total = 0
    for each in path.rglob("*") if path.is_dir() else [path]:
        with suppress(FileNotFoundError):  # a file that has got its own name meanwhile
            total += each.stat().st_size if each.is_file() else 0
    return total


@pytest.mark.slow
@pytest.mark.parametrize(("output", "kills"), [("out.jsonl", 20), ("out", 8)])
def test_killed_at_random_moments_every_row_is_there_once(
    batch: Batch, tmp_path: pathlib.Path, output: str, kills: int
) -> None:
    write_model(tmp_path / "m", SLOW)
    write_lines(tmp_path / "in.jsonl", [{"n": n, "id": f"i{n}"} for n in range(3_000)])
    arguments = ("m", "in.jsonl", "--keep", "id", "--part-rows", "200", "--replicas", "2")
    assert batch(*arguments, "-o", f"whole{output}").returncode == 0
    whole = tmp_path / f"whole{output}"
    for share in sorted(random.sample(range(5, 90), kills)):
        with begun(*arguments, "-o", output, "--resume", cwd=tmp_path) as process:
            assert kill_at(process, tmp_path / output, _size(whole) * share // 100), f"the run was over at {share} %"
    assert batch(*arguments, "-o", output, "--resume").returncode in {0, 1}  # 1: complete already
    if output.endswith(".jsonl"):
        assert (tmp_path / output).read_bytes() == whole.read_bytes()
        return
    parts = sorted(path.name for path in whole.iterdir())
    assert [path.name for path in sorted((tmp_path / output).iterdir())] == parts
    for name in parts:
        assert (tmp_path / output / name).read_bytes() == (whole / name).read_bytes()


def test_an_interrupt_ends_it_after_the_rows_that_run(batch: Batch, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", SLOW)
    write_lines(tmp_path / "in.jsonl", [{"n": n} for n in range(2_000)])
    with begun("m", "in.jsonl", "-o", "out.jsonl", cwd=tmp_path) as process:
        while _size(tmp_path / "out.jsonl") < 1_000 if (tmp_path / "out.jsonl").exists() else True:
            assert process.poll() is None
            time.sleep(0.005)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=PATIENCE)
        assert (process.returncode, b"--resume" in stderr) == (130, True)
        assert not any(child.is_running() for child in children)
    done = batch("m", "in.jsonl", "-o", "out.jsonl", "--resume")
    assert done.returncode == 0
    assert [row["output"] for row in read_lines(tmp_path / "out.jsonl")] == [n * n for n in range(2_000)]
    assert "were done before" not in done.stdout


def test_a_full_disk_is_said_and_gone_on_with(batch: Batch, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", SHOUT)
    write_lines(tmp_path / "in.jsonl", [{"text": "x" * 1_000, "id": n} for n in range(3_000)])
    with small_disk(tmp_path / "disk", "1m") as disk:
        done = batch("m", "in.jsonl", "-o", disk / "out.jsonl", "--keep", "id")
        assert done.returncode == 1
        assert "No space left on device" in done.stderr


# two models


def test_two_models_over_one_set(batch: Batch, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "a", "def run(x: float) -> list[float]:\n    return [x, 2 * x]\n")
    write_model(tmp_path / "b", "def run(x: float) -> list[float]:\n    return [x, 2 * x + (0.001 if x == 2 else 0)]\n")
    (tmp_path / "scores.py").write_text("def distance(a, b):\n    return b[1] - a[1]\n")
    rows = write_lines(tmp_path / "in.jsonl", [{"x": n} for n in range(5)] + [{"x": "?"}])
    done = batch("a", "b", rows, "--compare")
    found = read_lines(done.stdout)
    assert [row["output"]["score"] for row in found[:5]] == [1.0, 1.0, 0.0, 1.0, 1.0]
    assert found[2]["output"]["b"] == [2.0, 4.001]
    assert found[5]["error"].startswith("a: x:")
    assert json.loads(done.stderr.splitlines()[-1])["notes"][0].startswith("4 of 5 rows are the same")
    done = batch("a", "b", rows, "--compare", "--metric", "close", "--tolerance", "0.01")
    assert "5 of 5" in done.stderr
    done = batch("a", "b", rows, "--compare", "--metric", "scores:distance", "-o", "out")
    table = pq.read_table(tmp_path / "out")
    assert table.column("output")[2].as_py()["score"] == pytest.approx(0.001)
    assert "write exact, close" in batch("a", "b", rows, "--compare", "--metric", "best").stderr
    assert "two models" in batch("a", rows, "--compare").stderr
    assert "one argument too many" in batch("a", "b", rows).stderr


# one process at a time


GATED = """
    import os

    def run(n: int, gate: str = "", mark: str = "") -> int:
        if mark:
            open(mark, "w").close()
        if gate:
            os.close(os.open(gate, os.O_RDONLY))
        return n
    """


@contextmanager
def writing(folder: pathlib.Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run of `GATED` that has begun to write, and ends when the gate opens, or is killed."""
    write_model(folder / "m", GATED)
    gate, mark = folder / "gate", folder / "mark"
    mark.unlink(missing_ok=True)
    if not gate.exists():
        os.mkfifo(gate)
    write_lines(folder / "in.jsonl", [{"n": 0, "gate": str(gate), "mark": str(mark)}, {"n": 1}])
    with begun("m", "in.jsonl", *arguments, cwd=folder) as process:
        until = time.monotonic() + PATIENCE
        while not mark.exists():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.005)
        yield process


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["-o", "out.jsonl"], ["-o", "out.jsonl", "--resume"]),
        (["-o", "out.jsonl"], ["-o", "out.jsonl", "--overwrite"]),
        (["-o", "new/out"], ["-o", "new/out", "--resume"]),
        (["-o", "new/out"], ["-o", "new/out", "--overwrite"]),
        (["-o", "new/out"], ["-o", "new/out", "--part", "0/2"]),
        (["-o", "out", "--part", "0/1"], ["-o", "out", "--part", "0/1", "--resume"]),
        (["-o", "out", "--part", "0/1"], ["-o", "out", "--overwrite"]),
        (["-o", "out.jsonl", "--part", "0/1"], ["-o", "out.jsonl", "--part", "0/1", "--resume"]),
    ],
)
def test_an_output_is_written_by_one_process_at_a_time(
    batch: Batch, tmp_path: pathlib.Path, first: list[str], second: list[str]
) -> None:
    with writing(tmp_path, *first) as process:
        refused = batch("m", "in.jsonl", *second)
        assert refused.returncode == 1
        assert "is being written by" in refused.stderr
        if "--part" not in first or "--part" in second:
            assert f"process {process.pid} on " in refused.stderr
        with (tmp_path / "gate").open("wb"):
            _, stderr = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, stderr
    kept = [path.name for path in tmp_path.rglob("*lock*")]
    assert kept == (["_lock"] if "--part" in first and first[1] == "out" else [])


@pytest.mark.parametrize("output", ["out.jsonl", "out"])
def test_the_lock_of_a_process_that_was_killed_is_free(batch: Batch, tmp_path: pathlib.Path, output: str) -> None:
    with writing(tmp_path, "-o", output) as process:
        process.kill()
        process.wait(PATIENCE)
    assert [path.name for path in tmp_path.rglob("*lock*")] == ["out.jsonl.lock" if "." in output else "_lock"]
    write_lines(tmp_path / "in.jsonl", [{"n": 0}, {"n": 1}])
    done = batch("m", "in.jsonl", "-o", output, "--overwrite")
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("*lock*"))


def test_a_run_that_cannot_begin_leaves_no_folder(batch: Batch, tmp_path: pathlib.Path) -> None:
    write_lines(tmp_path / "in.jsonl", [{"n": 0}])
    done = batch("absent", "in.jsonl", "-o", "new/folder/out")
    assert done.returncode == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("output", ["s3://bucket/out", "gs://bucket/out.jsonl"])
def test_an_output_elsewhere_is_refused(batch: Batch, tmp_path: pathlib.Path, output: str) -> None:
    write_model(tmp_path / "m", GATED)
    write_lines(tmp_path / "in.jsonl", [{"n": 0}])
    done = batch("m", "in.jsonl", "-o", output)
    assert done.returncode == 1
    assert "give --ray" in done.stderr
    assert not (tmp_path / output.partition("//")[0]).exists()
