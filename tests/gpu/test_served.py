"""Models on a GPU, as a server runs them: devices, metrics, batches, crashes, and memory that is given back."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import pytest
import torch

from geartrain.launch.server import Server, ServerError, serve_command

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "gpu"
READY_WITHIN: Final = 120.0  # seconds; the first use of CUDA takes several
PATIENCE: Final = 60.0
GIBIBYTE: Final = 2**30


@contextlib.contextmanager
def serving(
    target: Path, environment: dict[str, str] | None = None, **options: Any
) -> Iterator[tuple[Server, httpx.Client]]:
    """Serve a model; yield the server and a client once it is ready."""
    server = Server(serve_command(str(target), options), environment or {})
    try:
        server.wait_until_ready(READY_WITHIN)
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            yield server, client
    finally:
        server.stop()


def write(folder: Path, text: str) -> Path:
    (folder / "run.py").write_text(textwrap.dedent(text))
    (folder / "cog.yaml").write_text("predict: run.py:Runner\n")
    return folder


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Look until a condition holds that another process brings about."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it does not come about"
        time.sleep(0.05)


def memory_in_use(client: httpx.Client) -> float:
    """Return the bytes of the first GPU that any process uses, as `/metrics` has them."""
    text = client.get("/metrics").text
    found = re.search(r'^geartrain_gpu_memory_used_bytes\{gpu="0".*\} (\S+)$', text, re.MULTILINE)
    assert found, text[-2000:]
    return float(found[1])


def calls_in(metrics: str) -> float:
    """Return the number of calls of `run()` by a model that takes batches."""
    found = re.search(r"^geartrain_batch_size_count\{.*\} (\S+)$", metrics, re.MULTILINE)
    assert found, metrics[-2000:]
    return float(found[1])


# The example


def test_example_runs_on_the_gpu_in_batches() -> None:
    rows = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    with serving(EXAMPLE, queue=100) as (server, client):
        assert f"on {torch.cuda.get_device_name(0)}, with CUDA {torch.version.cuda}" in server.log

        def ask(row: Any) -> dict[str, Any]:
            answer = client.post("/predictions", json={"input": {"x": [row.tolist()]}})
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            return found

        alone = [ask(row) for row in rows[:8]]
        with ThreadPoolExecutor(16) as pool:
            together = list(pool.map(ask, rows))
        calls = calls_in(client.get("/metrics").text)
    assert all(each["metrics"]["gpu_memory_peak"] > 0 for each in together)
    for one, same in zip(alone, together, strict=False):
        assert one["output"][0] == pytest.approx(same["output"][0], abs=2e-2)
    assert calls < len(alone) + len(together)


def test_example_is_kept_from_the_gpu() -> None:
    with serving(EXAMPLE, devices="cpu") as (server, client):
        assert "on the CPU, since no GPU is given to this worker" in server.log
        answer = client.post("/predictions", json={"input": {"x": [[0.0, 0.0, 0.0, 0.0]]}}).json()
    assert "gpu_memory_peak" not in answer["metrics"]


def test_missing_gpu_is_named() -> None:
    count = torch.cuda.device_count()
    with pytest.raises(ServerError) as error, serving(EXAMPLE, devices=f"cuda:{count}"):
        pass
    assert f"cuda:{count}" in str(error.value)


WHERE: Final = """
    import os
    import torch
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def setup(self, device: str) -> None:
            self.device = device
            self.kept = torch.zeros(GIB, 2**28, device=device)  # so many GiB

        def run(self, crash: bool = False, fault: bool = False) -> str:
            if crash:
                os._exit(1)
            if fault:  # an index out of range: an assertion on the device, after which CUDA cannot be used
                torch.zeros(4, device=self.device)[torch.tensor([9], device=self.device)].cpu()
            return f"{self.device} {torch.cuda.get_device_name(self.device)} {os.getpid()}"
"""


def test_replicas_share_a_gpu(tmp_path: Path) -> None:
    with serving(write(tmp_path, WHERE.replace("GIB", "1")), replicas=2, queue=100) as (_, client):

        def ask(_: int) -> str:
            return str(client.post("/predictions", json={"input": {}}).json()["output"])

        with ThreadPoolExecutor(8) as pool:
            answers = set(pool.map(ask, range(64)))
    assert len(answers) == 2
    assert all(each.startswith(f"cuda:0 {torch.cuda.get_device_name(0)} ") for each in answers)


def test_memory_of_a_worker_that_died_is_given_back(tmp_path: Path) -> None:
    folder = write(tmp_path, WHERE.replace("GIB", "8"))
    with serving(folder, restart="on-crash", queue=100) as (server, client):
        used = memory_in_use(client)
        assert used > 8 * GIBIBYTE
        first = client.post("/predictions", json={"input": {}}).json()["output"]
        os.kill(int(first.split()[-1]), signal.SIGKILL)

        def is_another() -> bool:
            answer = client.post("/predictions", json={"input": {}})
            return answer.status_code == 200 and answer.json().get("output") not in {None, first}

        wait_for(is_another)
        assert memory_in_use(client) < used + GIBIBYTE  # of one worker, not of two
        crashed = client.post("/predictions", json={"input": {"crash": True}}).json()
        assert crashed["status"] == "failed"
        wait_for(is_another)
        assert memory_in_use(client) < used + GIBIBYTE
        assert server.pid


def test_fault_of_cuda_is_an_error_of_its_request(tmp_path: Path) -> None:
    with serving(write(tmp_path, WHERE.replace("GIB", "1"))) as (_, client):
        answer = client.post("/predictions", json={"input": {"fault": True}}).json()
        assert answer["status"] == "failed"
        assert "CUDA error" in answer["error"] or "Accelerator" in answer["error"]
        assert client.get("/readyz").status_code in {200, 503}


def test_doctor_tells_of_the_gpu() -> None:
    command = [sys.executable, "-m", "geartrain", "doctor", str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    said = re.sub(r"\s+", " ", done.stdout + done.stderr)
    assert torch.cuda.get_device_name(0) in said, said
    assert f"torch {torch.__version__}" in said, said


# A model of some size

HEAVY: Final = """
    # ruff: noqa
    import numpy as np
    import torch
    from jaxtyping import Float32
    from geartrain import BaseRunner, batched

    class Runner(BaseRunner):
        def setup(self, device: str) -> None:
            torch.manual_seed(0)
            layers = [torch.nn.Linear(4096, 4096) for _ in range(24)]
            self.network = torch.nn.Sequential(*layers).to(device, torch.bfloat16).eval()
            self.device = device

        @batched(max_size=64)
        def run(self, x: Float32[np.ndarray, "rows 4096"]) -> Float32[np.ndarray, "rows 4096"]:
            with torch.inference_mode():
                rows = torch.from_numpy(x).to(self.device, torch.bfloat16)
                return self.network(rows).float().cpu().numpy()
"""


def test_batches_on_the_gpu_answer_as_single_requests_do(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).normal(size=(64, 4096)).astype(np.float32)
    with serving(write(tmp_path, HEAVY), model_name="model", queue=100) as (_, client):

        def ask(row: Any) -> Any:
            data = [{"name": "x", "datatype": "FP32", "shape": [1, 4096], "data": row.tolist()}]
            answer = client.post("/v2/models/model/infer", json={"inputs": data})
            assert answer.status_code == 200, answer.text[:500]
            return np.array(answer.json()["outputs"][0]["data"], np.float32)

        alone = [ask(row) for row in rows[:4]]
        with ThreadPoolExecutor(32) as pool:
            together = list(pool.map(ask, rows))
        text = client.get("/metrics").text
    for one, same in zip(alone, together, strict=False):
        assert one == pytest.approx(same, rel=0.1, abs=0.02)
    assert calls_in(text) < len(alone) + len(together)
