"""What a server must bear: crowds, clients that leave, models that misbehave. And it keeps nothing of all that."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from tests.support.folders import files_below
from tests.support.servers import LiveServer, Serve, eventually
from tests.support.wire import connection

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "robustness.py"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

MIXED = """
    import asyncio, os, pathlib, subprocess, sys
    from collections.abc import AsyncIterator
    import geartrain
    from geartrain import BaseRunner, current_scope

    class Runner(BaseRunner):
        async def run(self, what: str, image: geartrain.Path | None = None, text: str = "") -> AsyncIterator[object]:
            print("running", what)
            if what == "raise":
                raise ValueError("no")
            elif what == "wait":
                await asyncio.Event().wait()
            elif what == "file":
                pathlib.Path("out.txt").write_text("content")
                yield geartrain.Path("out.txt")
            elif what == "copy":
                yield image
            elif what == "helper":
                subprocess.run(["echo", "from a helper"], check=True)
            elif what == "metric":
                current_scope().record_metric("n", 1)
            yield len(text)
"""


@LINUX
def test_script_finds_no_fault() -> None:
    """200 clients for one slot, 2,000 predictions in a row (D1), 200 and 200 clients that disconnect.

    Shorter than `python benchmarks/robustness.py` alone, and the same otherwise.
    """
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--seconds", "3", "--disconnects", "200"],
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def entries(folder: str) -> int:
    """How many there are."""
    return len(list(Path(folder).iterdir()))


class Use:
    """What this process and the worker hold."""

    def __init__(self, server: LiveServer, folder: Path) -> None:
        self.descriptors = entries("/proc/self/fd")
        self.workers_descriptors = entries(f"/proc/{server.pid}/fd")
        self.tasks = len(asyncio.all_tasks())
        self.workers_threads = entries(f"/proc/{server.pid}/task")
        self.threads = {thread.name for thread in threading.enumerate() if "asyncio" not in thread.name}
        self.files = sorted(str(path) for path in files_below(folder))

    def differs_from(self, other: Use) -> list[str]:
        """What is not as it was."""
        return [
            f"{name}: {value} → {vars(self)[name]}" for name, value in vars(other).items() if vars(self)[name] > value
        ]


@LINUX
async def test_nothing_is_kept_of_predictions_of_every_kind(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    async with serve(MIXED, cog_yaml="concurrency: {max: 4}") as server:
        await all_kinds(server, rounds=2)  # what is made once is made now
        await settled(server)
        for _ in range(server.workers.permits.size):  # the memory of each slot, too: they take turns
            await server.predict({"what": "plain", "text": "x" * 7_000_000})
            await settled(server)
        before = Use(server, folder)
        await all_kinds(server, rounds=25)
        await settled(server)
        await eventually(lambda: not Use(server, folder).differs_from(before), 5)
        assert (await server.health())["status"] == "READY"
    assert list(folder.iterdir()) == []


async def all_kinds(server: LiveServer, *, rounds: int) -> None:
    """Each kind of prediction, and a few refusals, so many times."""
    image = f"data:text/plain;base64,{base64.b64encode(b'an image').decode()}"
    for number in range(rounds):
        bodies = await asyncio.gather(
            server.predict({"what": "plain"}),
            server.predict({"what": "raise"}),
            server.predict({"what": "file"}),
            server.predict({"what": "copy", "image": image}),
        )
        assert [body["status"] for body in bodies] == ["succeeded", "failed", "succeeded", "succeeded"]
        await server.predict({"what": "helper"})
        await server.predict({"what": "metric", "text": "x" * 100_000})
        if number % 10 == 0:
            await server.predict({"what": "plain", "text": "x" * 7_000_000})
        accepted = await server.start({"what": "wait"})
        assert (await server.client.post(f"/predictions/{accepted['id']}/cancel")).status_code == 200
        await server.ended(accepted["id"])
        await hang_up(server, f"gone-{number}")
        for refused in ({}, {"what": "copy", "image": "/etc/passwd"}):
            assert (await server.client.post("/predictions", json={"input": refused})).status_code == 422
        assert (await server.client.post("/predictions", content=b"{")).status_code in {400, 415}
        await settled(server)  # a canceled run may still be cleaning up


async def hang_up(server: LiveServer, prediction_id: str) -> None:
    """Ask for a prediction and leave while it runs."""
    body = b'{"input":{"what":"wait"}}'
    head = f"PUT /predictions/{prediction_id} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
    async with connection(server.url) as wire:
        await wire.send(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await server.said(prediction_id, "running wait")
    assert (await server.ended(prediction_id)).status == "canceled"


async def settled(server: LiveServer) -> None:
    """Wait until every slot is back."""
    await eventually(lambda: server.workers.permits.idle == server.workers.permits.size)


async def test_hung_up_clients_of_a_sync_model_give_the_slot_back(serve: Serve) -> None:
    source = """
        import select
        def run(what: str) -> str:
            print("running", what)
            select.select([], [], []) if what == "wait" else None
            return what
    """
    async with serve(source) as server:
        for number in range(15):
            await hang_up(server, str(number))
        assert (await server.predict({"what": "free"}))["output"] == "free"


async def test_helper_that_floods_its_output_holds_up_nobody(serve: Serve) -> None:
    """What it writes goes on after its prediction has ended, and for ever."""
    source = """
        import subprocess
        helpers = []
        def run(what: str) -> str:
            if what == "flood":
                helpers.append(subprocess.Popen(["yes", "flood"]))
            elif what == "stop":
                for helper in helpers:
                    helper.kill()
                    helper.wait()
            return what
    """
    async with serve(source) as server:
        await server.predict({"what": "flood"})
        for _ in range(5):
            body = await server.predict({"what": "on"})
            assert (body["status"], body["output"]) == ("succeeded", "on")
            assert (await server.health())["status"] == "READY"
        assert (await server.predict({"what": "stop"}))["output"] == "stop"


async def test_last_words_of_a_crash_are_in_the_logs(serve: Serve) -> None:
    source = """
        import ctypes
        def run() -> None:
            print("so far")
            ctypes.string_at(0)
    """
    async with serve(source) as server:
        body = await server.predict()
        assert (body["status"], body["error"]) == ("failed", "Worker crashed: killed by SIGSEGV")
        assert "so far\n" in body["logs"]
        assert "Fatal Python error: Segmentation fault" in body["logs"]
        assert (await server.health())["status"] == "DEFUNCT"


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_model_that_closes_every_descriptor_does_not_hang(serve: Serve, kind: str) -> None:
    """As code does that makes a daemon of itself. It cannot answer any more; its clients must be told."""
    source = f"""
        import os
        {kind} run(close: bool = False) -> str:
            if close:
                os.closerange(3, 1024)
            return "fine"
    """
    async with serve(source) as server:
        assert (await server.predict())["output"] == "fine"
        body = await asyncio.wait_for(server.predict({"close": True}), 40)
        assert (body["status"], body["error"].partition(":")[0]) == ("failed", "Worker crashed")
        assert (await server.health())["status"] == "DEFUNCT"


async def test_slow_reader_holds_neither_a_slot_nor_the_end(serve: Serve) -> None:
    source = """
        def run(size: int) -> str:
            return "x" * size
    """
    async with serve(source) as server:
        body = b'{"input":{"size":50000000}}'
        head = b"POST /predictions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        async with connection(server.url) as wire:
            await wire.send(head % len(body) + body)
            await wire.head()  # and not a byte more
            assert (await server.predict({"size": 1}))["output"] == "x"
            assert (await server.health())["status"] == "READY"


async def test_many_at_once_get_what_is_theirs(serve: Serve) -> None:
    source = """
        import asyncio
        async def run(n: int) -> int:
            print("this is", n)
            await asyncio.sleep(0)
            return n * n
    """
    async with serve(source, cog_yaml="concurrency: {max: 64}") as server:

        async def client(number: int) -> None:
            async with connection(server.url) as wire:
                for n in range(number, 640, 64):
                    body = b'{"input":{"n":%d}}' % n
                    answer = await wire.post("/predictions", body, "content-type: application/json")
                    prediction = answer.json()
                    assert (prediction["output"], prediction["logs"]) == (n * n, f"this is {n}\n")

        await asyncio.gather(*map(client, range(64)))
