"""Examples that real workers run before they are ready."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from geartrain.service.workers.pool import RestartPolicy
from tests.support.servers import Serve, eventually, serve, setup_ends, write_model

__all__ = ["serve", "setup_ends"]

MODEL = """
    import os
    import geartrain

    class Runner(geartrain.BaseRunner):
        def setup(self) -> None:
            self.count = 0

        def run(self, file: geartrain.Path, fails: bool = False) -> str:
            if fails:
                os.kill(os.getpid(), 9)
            self.count += 1
            print("read", file.read_text(), self.count)
            return f"{self.count} {os.getpid()}"
"""


def model(folder: Path, warmup: str) -> Path:
    """Write the model, an example's file, and the examples."""
    write_model(folder, MODEL)
    (folder / "cat.txt").write_text("meow")
    (folder / "geartrain.yaml").write_text(f"warmup:\n{warmup}")
    return folder


async def test_examples_run_before_ready_and_count_for_nothing(tmp_path: Path, serve: Serve) -> None:
    folder = model(tmp_path / "m", "  - file: cat.txt\n  - file: data:text/plain,moo\n")
    async with serve(folder, restarts=RestartPolicy(first_delay=0.0)) as server:
        health = await server.health()
        assert health["setup"]["logs"].splitlines() == ["read meow 1", "read moo 2"]
        assert 'nv_inference_count{model="m",version="1"} 0' in (await server.client.get("/metrics")).text
        count, first = (await server.predict({"file": "data:text/plain,mee"}))["output"].split()
        assert count == "3"
        os.kill(int(first), signal.SIGKILL)
        await eventually(lambda: server.workers.restarts.count == 1 and server.workers.health == "READY")
        count, second = (await server.predict({"file": "data:text/plain,mee"}))["output"].split()
        assert (count, second != first) == ("3", True)


@pytest.mark.parametrize(
    ("warmup", "reason"),
    [
        ("  - file: dog.txt\n", "`warmup[0]` in geartrain.yaml does not fit the model: file: there is no file "),
        ("  - fails: 3\n", "`warmup[0]` in geartrain.yaml does not fit the model: "),
        ("  - {file: cat.txt, fails: true}\n", "`warmup[0]` in geartrain.yaml could not be run: Worker crashed: "),
    ],
)
async def test_wrong_examples_fail_the_setup(tmp_path: Path, serve: Serve, warmup: str, reason: str) -> None:
    async with serve(model(tmp_path / "m", warmup), ready=False) as server:
        await eventually(lambda: server.workers.setup.completed_at is not None)
        health = await server.health()
        assert health["status"] == "SETUP_FAILED"
        assert reason in health["setup"]["logs"]


EXAMPLE_FAULTS = [
    ("  - file: dog.txt\n", "`examples[0]` in geartrain.yaml does not fit the model: file: there is no file "),
    ("  - file: cat.txt\n  - fails: 3\n", "`examples[1]` in geartrain.yaml does not fit the model: "),
]


@pytest.mark.parametrize(("examples", "reason"), EXAMPLE_FAULTS)
async def test_example_for_people_that_does_not_fit_is_a_failed_setup(
    tmp_path: Path, serve: Serve, examples: str, reason: str
) -> None:
    folder = model(tmp_path / "m", "  - file: cat.txt\n")
    (folder / "geartrain.yaml").write_text(f"examples:\n{examples}")
    async with serve(folder, ready=False) as server:
        await eventually(lambda: server.workers.setup.completed_at is not None)
        health = await server.health()
        assert health["status"] == "SETUP_FAILED"
        assert reason in health["setup"]["logs"]


async def test_card_has_readme_examples_and_their_files_alone(tmp_path: Path, serve: Serve) -> None:
    folder = model(tmp_path / "m", "  - file: cat.txt\n")
    (folder / "geartrain.yaml").write_text("examples:\n  - {file: cat.txt, fails: true}\n")  # which nothing runs
    (folder / "README.md").write_text("# Cats\n")
    async with serve(folder) as server:
        card = (await server.client.get("/playground/models/m")).json()
        assert (card["readme"], card["examples"]) == ("# Cats\n", [{"file": "cat.txt", "fails": True}])
        file = await server.client.get("/playground/models/m/files/cat.txt")
        assert (file.status_code, file.text) == (200, "meow")
        assert file.headers["content-disposition"] == "attachment"
        for path in ("m/files/run.py", "m/files/..%2Fm%2Frun.py", "m/files/", "other", "m?version=9"):
            assert (await server.client.get(f"/playground/models/{path}")).status_code in {404, 503}
