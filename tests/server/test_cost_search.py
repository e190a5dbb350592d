"""`max_cost: auto`: the most that a call may cost, found by real workers before they are ready."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from geartrain.bridge.resources import free_memory
from geartrain.service.workers.pool import RestartPolicy
from tests.support.servers import LiveServer, Serve, eventually, serve, write_model

__all__ = ["serve"]

TEXTS = """
    import time
    from geartrain import BaseRunner, Input, batched

    class Runner(BaseRunner):
        @batched(max_size=16, cost="text", max_cost="auto", retry_singly=True)
        def run(self, text: list[str] = Input(max_length=64)) -> list[str]:
            with open("calls.txt", "a") as calls:
                calls.write(f"{len(text)} {sum(map(len, text))}\\n")
            print("a run")
            SLOW
            return [each.upper() for each in text]
"""
SAME = "time.sleep(0.03)"  # each call takes as long, so that larger ones do more in a second
SLOWER = "time.sleep(0.05 * len(text) ** 2)"
MEMORY = (
    SAME
    + """
            if sum(map(len, text)) > 100:
                raise MemoryError("100 have room")
"""
)
TENSORS = """
    import time
    import numpy as np
    from jaxtyping import Int64
    from geartrain import BaseRunner, batched

    class Runner(BaseRunner):
        @batched(max_size=8, cost="ids", max_cost="auto")
        def run(
            self, ids: Int64[np.ndarray, "batch tokens"], mask: Int64[np.ndarray, "batch tokens"]
        ) -> Int64[np.ndarray, "batch"]:
            time.sleep(0.02)
            if ids.size > 200:
                raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
            return (ids * mask).sum(axis=1)
"""


def model(folder: Path, slow: str, settings: str = "warmup:\n  - text: abcdefgh\n") -> Path:
    """Write a model of texts, and settings with an example of eight characters."""
    write_model(folder, TEXTS.replace("SLOW", slow))
    (folder / "geartrain.yaml").write_text(settings)
    return folder


def calls(folder: Path) -> list[tuple[int, int]]:
    """The runs so far, each with its requests and what they cost together."""
    lines = (folder / "calls.txt").read_text().splitlines()
    return [(int(number), int(cost)) for number, cost in map(str.split, lines)]


async def limits(server: LiveServer) -> tuple[float, str | None]:
    """The limit as the metrics and the model's properties tell it."""
    metrics = (await server.client.get("/metrics")).text.splitlines()
    (line,) = [line for line in metrics if line.startswith("geartrain_batch_max_cost{")]
    found = (await server.client.get("/v2/models/m")).json()
    return float(line.split()[-1]), found["properties"].get("batch_max_cost")


async def test_larger_calls_are_tried_until_inputs_cannot_grow(tmp_path: Path, serve: Serve) -> None:
    folder = model(tmp_path / "m", SAME)
    async with serve(folder) as server:
        assert await limits(server) == (1024.0, "1024")
        tried = list(dict.fromkeys(calls(folder)))
        assert tried == [(1, 8), (2, 16), (4, 32), (8, 64), (16, 128), (16, 256), (16, 512), (16, 1024)]
        assert (await server.health())["setup"]["logs"] == "a run\n"  # of the warm-up
        assert 'nv_inference_count{model="m",version="1"} 0' in (await server.client.get("/metrics")).text
        assert (await server.predict({"text": "a"}))["output"] == "A"


async def test_memory_is_the_limit(tmp_path: Path, serve: Serve) -> None:
    """The call that fails runs once: it is not run again in parts, or one by one, and no limit of rows remains."""
    folder = model(tmp_path / "m", MEMORY)
    async with serve(folder) as server:
        assert await limits(server) == (64.0, "64")
        found = calls(folder)
        assert found[-1] == (16, 128)
        assert found.count((16, 128)) == 1
        assert "out_of_memory" not in (await server.client.get("/metrics")).text


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
async def test_more_than_the_free_memory_fails_before_it_is_touched(tmp_path: Path, serve: Serve) -> None:
    """The model only reserves it, which the system allows by itself: a character takes a part of what is free."""
    slow = (
        f"import numpy; reserved = numpy.empty(sum(map(len, text)) * {int(free_memory() * 0.0375)}, numpy.uint8); "
        + SAME
    )
    folder = model(tmp_path / "m", slow)
    async with serve(folder) as server:
        assert await limits(server) == (16.0, "16")
        assert calls(folder)[-1] == (4, 32)


async def test_calls_that_do_no_more_in_a_second_are_the_limit(tmp_path: Path, serve: Serve) -> None:
    folder = model(tmp_path / "m", SLOWER)
    async with serve(folder) as server:
        assert await limits(server) == (8.0, "8")
        assert max(number for number, _ in calls(folder)) == 4


async def test_tensors_grow_with_those_that_are_as_long(tmp_path: Path, serve: Serve) -> None:
    folder = write_model(tmp_path / "m", TENSORS)
    (folder / "geartrain.yaml").write_text("warmup:\n  - {ids: [[1, 2, 3]], mask: [[1, 0, 1]]}\n")
    async with serve(folder) as server:
        assert await limits(server) == (192.0, "192")  # 8 rows of 24 tokens


async def test_replicas_and_restarts_share_the_search(tmp_path: Path, serve: Serve) -> None:
    folder = model(tmp_path / "m", MEMORY)
    async with serve(folder, replicas=2, restarts=RestartPolicy(first_delay=0.0)) as server:
        await eventually(lambda: server.workers.are_all_ready)
        assert await limits(server) == (64.0, "64")
        assert calls(folder).count((16, 128)) == 1
        os.kill(server.pid, signal.SIGKILL)
        await eventually(lambda: server.workers.restarts.count == 1 and server.workers.are_all_ready)
        assert await limits(server) == (64.0, "64")
        assert calls(folder).count((16, 128)) == 1


@pytest.mark.parametrize(
    ("slow", "settings", "reason"),
    [
        (SAME, "", "there is no example"),
        ("raise ValueError('never')", "examples:\n  - text: hi\n", "fails: ValueError: never"),
    ],
)
async def test_without_a_measure_there_is_no_limit(
    tmp_path: Path, serve: Serve, caplog: pytest.LogCaptureFixture, slow: str, settings: str, reason: str
) -> None:
    with caplog.at_level(logging.WARNING, "geartrain"):
        async with serve(model(tmp_path / "m", slow, settings)) as server:
            assert await limits(server) == (0.0, None)
    (record,) = [record for record in caplog.records if "max_cost: auto" in record.getMessage()]
    assert reason in vars(record)["reason"]


async def test_a_worker_that_dies_of_a_call_is_a_failed_setup(tmp_path: Path, serve: Serve) -> None:
    folder = model(tmp_path / "m", "if len(text) > 2: import os; os.kill(os.getpid(), 9)")
    async with serve(folder, ready=False) as server:
        await eventually(lambda: server.workers.setup.completed_at is not None)
        health: dict[str, Any] = await server.health()
        assert health["status"] == "SETUP_FAILED"
        said = health["setup"]["logs"]
        assert "`max_cost: auto`: a call of 4 requests that cost 32 could not be run: Worker crashed: " in said
        assert "write a smaller number for max_cost" in said
