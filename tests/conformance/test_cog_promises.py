"""Sentences of Cog's documents that no other test drives; docs/cog-compatibility.md lists which test drives which."""

from __future__ import annotations

import asyncio
import email
import email.policy
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from geartrain.bridge.payloads import WorkerFolder
from geartrain.ipc.framing import INLINE_LIMIT
from geartrain.ipc.shared_memory import LARGEST
from geartrain.outbound import upload_client
from geartrain.outbound.retries import Retries
from geartrain.service.models.deployment import Deployment
from tests.support.servers import Serve, ServerProcess, eventually, write_model
from tests.support.web_server import Received, Server, running_server

FILE = """
    import os
    from geartrain import BaseRunner, Path

    class Runner(BaseRunner):
        def run(self) -> Path:
            image = Path(os.path.abspath("image.png"))
            image.write_bytes(b"\\x89PNG")
            return image
"""


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(upload_client, "_RETRIES", Retries(tries=2, first_pause=0, jitter=0))
    with running_server() as web:
        yield web


# container runtime: the runner's life


@pytest.mark.one_server(reason="each replica has a runner of its own")
async def test_runner_is_made_and_set_up_once(serve: Serve) -> None:
    """One instance for every prediction, also after one that failed; what `self` holds stays."""
    source = """
        from geartrain import BaseRunner

        made = 0

        class Runner(BaseRunner):
            def __init__(self):
                global made
                made += 1

            def setup(self):
                self.events = ["setup"]

            def run(self, fail: bool = False) -> list:
                self.events.append("run")
                if fail:
                    raise ValueError("once")
                return [made, *self.events]
    """
    async with serve(source) as server:
        assert (await server.predict())["output"] == [1, "setup", "run"]
        assert (await server.predict({"fail": True}))["status"] == "failed"
        assert (await server.predict())["output"] == [1, "setup", "run", "run", "run"]


@pytest.mark.one_server(reason="all runs have to be in one worker")
async def test_concurrent_runs_share_the_runner_and_its_loop(serve: Serve) -> None:
    source = """
        import asyncio
        from geartrain import BaseRunner, concurrent

        class Runner(BaseRunner):
            async def setup(self):
                self.names, self.all_here = [], asyncio.Event()

            @concurrent(max=3)
            async def run(self, name: str) -> list[str]:
                self.names.append(name)
                if len(self.names) == 3:
                    self.all_here.set()
                await self.all_here.wait()
                return sorted(self.names)
    """
    async with serve(source) as server:
        bodies = await asyncio.gather(*(server.predict({"name": name}) for name in "abc"))
        assert [body["output"] for body in bodies] == [["a", "b", "c"]] * 3


async def test_atexit_runs_when_the_server_ends(server_process: Callable[..., ServerProcess], tmp_path: Path) -> None:
    source = """
        import atexit, pathlib

        class Runner:
            def setup(self):
                atexit.register(pathlib.Path("flushed").touch)

            def run(self) -> str:
                return "x"
    """
    folder = write_model(tmp_path / "model", source)
    process = server_process(str(folder))
    await asyncio.to_thread(process.wait_for, "ready")
    assert not (folder / "flushed").exists()
    process.popen.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.popen.wait, 10) == 0
    assert (folder / "flushed").exists()


async def test_before_setup_begins(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server answers, its health is UNKNOWN, and there are no predictions yet."""
    begin = asyncio.Event()
    start = Deployment.start

    async def start_later(deployment: Deployment) -> None:
        await begin.wait()
        await start(deployment)

    monkeypatch.setattr(Deployment, "start", start_later)
    async with serve("def run() -> str: return 'x'", ready=False) as server:
        health = await server.health()
        assert (health["status"], "setup" in health) == ("UNKNOWN", False)
        response = await server.client.post("/predictions", json={})
        assert (response.status_code, response.json()["status"]) == (503, "failed")
        begin.set()
        await eventually(lambda: server.workers.setup.completed_at is not None)
        health = await server.health()
        assert (health["status"], health["setup"]["status"]) == ("READY", "succeeded")


# container runtime: what parent and worker say to each other

WIRE = """
    import asyncio, os, sys
    from collections.abc import AsyncIterator
    from geartrain import Path, concurrent

    @concurrent(max=2)
    async def run(do: str, text: str = "", size: int = 0) -> AsyncIterator[str | Path]:
        print("begun")
        match do:
            case "wait":
                while not os.path.exists("go"):
                    await asyncio.sleep(0.002)
            case "flood":
                while True:
                    yield "x" * 100_000
                    await asyncio.sleep(0)
            case "exit":
                asyncio.get_running_loop().call_soon(sys.exit)
                await asyncio.sleep(0.01)
            case "file":
                Path("own.txt").write_text("own")
                yield Path("own.txt").absolute()
        yield text or "y" * size
"""


@pytest.fixture
def in_files(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that inputs were written to."""
    files: list[Path] = []
    new_input = WorkerFolder.new_input

    def remember(folder: WorkerFolder) -> Path:
        files.append(new_input(folder))
        return files[-1]

    monkeypatch.setattr(WorkerFolder, "new_input", remember)
    return files


@pytest.mark.one_server(reason="it looks at the files of one server")
async def test_input_over_the_limit_travels_by_a_file_that_the_worker_deletes(
    serve: Serve, in_files: list[Path]
) -> None:
    frame = len(b'{"do":"wait","text":""}')
    async with serve(WIRE) as server:
        server.open_gate()
        for length in (1, INLINE_LIMIT - frame, INLINE_LIMIT + 1):
            assert (await server.predict({"do": "wait", "text": "x" * length}))["output"] == ["x" * length]
        assert in_files == []
        (server.root / "go").unlink()
        await server.start({"do": "wait", "text": "x" * LARGEST}, id="large")
        await server.said("large", "begun")
        (file,) = in_files
        assert file.parent.is_dir()
        assert not file.exists()  # it has been read, and the run has not ended
        server.open_gate()
        assert (await server.ended("large")).chunks == [b'"' + b"x" * LARGEST + b'"']


@pytest.mark.one_server(reason="it looks at the files of one server")
async def test_output_files_are_written_where_the_server_says(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of the author's files, and an output over the limit; nothing is left of either."""
    lent: list[tuple[Path, bool]] = []
    monkeypatch.setattr(WorkerFolder, "lend", lambda _, file: lent.append((Path(file.filename), file.is_output)))
    async with serve(WIRE) as server:
        outputs = Path(server.worker._slots.folder.outputs)
        assert (await server.predict({"do": "", "size": 1}))["output"] == ["y"]
        assert lent == []
        body = await server.predict({"do": "file", "size": INLINE_LIMIT})
        assert body["output"] == ["data:text/plain;base64,b3du", "y" * INLINE_LIMIT]
        assert [(path.parents[1], is_whole) for path, is_whole in lent] == [(outputs, False), (outputs, True)]
        await eventually(lambda: not list(outputs.iterdir()))


async def test_flood_of_one_slot_does_not_hold_up_the_other(serve: Serve) -> None:
    async with serve(WIRE) as server:
        await server.start({"do": "flood"}, id="flood")
        await server.said("flood", "begun")
        for _ in range(10):
            async with asyncio.timeout(40):
                assert (await server.predict({"do": "", "text": "quick"}))["output"] == ["quick"]
        assert (await server.client.post("/predictions/flood/cancel")).status_code == 200
        assert (await server.ended("flood")).status == "canceled"


@pytest.mark.one_server(reason="it reads the log of one server")
async def test_worker_itself_writes_to_the_servers_log(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    async with serve(WIRE) as server:
        await server.predict({"do": "exit"})
        await eventually(lambda: "a background task of the model asked to exit" in caplog.text)
        (record,) = [record for record in caplog.records if "asked to exit" in record.message]
        assert (record.levelname, vars(record)["worker_target"]) == ("WARNING", "geartrain.worker")
        assert (await server.predict({"do": "", "text": "after"}))["output"] == ["after"]


# HTTP API: iterators without the decorator, and files that are uploaded


async def test_iterator_without_the_decorator_is_a_list_in_json_and_no_stream(serve: Serve) -> None:
    source = """
        from collections.abc import Iterator

        def run() -> Iterator[str]:
            yield from ("Onions", " bloom")
    """
    async with serve(source) as server:
        assert (await server.predict())["output"] == ["Onions", " bloom"]
        for method, path in (("POST", "/predictions"), ("PUT", "/predictions/x")):
            headers = {"accept": "text/event-stream"}
            response = await server.client.request(method, path, json={"input": {}}, headers=headers)
            assert response.status_code == 406


def form_of(received: Received) -> tuple[str, str | None, str, bytes]:
    """Name, file name, media type and content of the only part of a form, as another implementation reads it."""
    head = f"Content-Type: {received.headers['content-type']}\r\n\r\n".encode()
    message = email.message_from_bytes(head + received.body, policy=email.policy.HTTP)
    assert message.get_content_type() == "multipart/form-data"
    (part,) = message.iter_parts()
    name = part.get_param("name", header="content-disposition")
    content = part.get_payload(decode=True)
    assert isinstance(content, bytes)
    return str(name), part.get_filename(), part.get_content_type(), content


async def test_output_file_prefix(serve: Serve, web: Server) -> None:
    prefix = web.serve("/upload")
    async with serve(FILE) as server:
        body = await server.predict(output_file_prefix=prefix)
        assert (body["status"], body["output"]) == ("succeeded", f"{prefix}/image.png")
        assert (await server.predict())["output"] == "data:image/png;base64,iVBORw=="
    (received,) = web.received
    assert (received.method, received.path) == ("PUT", "/upload")
    assert form_of(received) == ("file", "image.png", "image/png", b"\x89PNG")


async def test_output_file_prefix_that_refuses(serve: Serve, web: Server) -> None:
    prefix = web.serve("/upload", status=403)
    async with serve(FILE) as server:
        body = await server.predict(output_file_prefix=prefix)
        assert body["status"] == "failed"
        assert "403" in body["error"]
        assert "output" not in body


async def test_output_file_prefix_is_for_synchronous_predictions(serve: Serve, web: Server) -> None:
    asked = {"output_file_prefix": web.serve("/upload")}
    header = {"prefer": "respond-async"}
    async with serve(FILE) as server:
        response = await server.client.post("/predictions", json=asked, headers=header)
        assert response.status_code == 422
        (detail,) = response.json()["detail"]
        assert detail["loc"] == ["body", "output_file_prefix"]
        assert "--upload-url" in detail["msg"]
    assert not web.received


async def test_upload_url_takes_files_of_asynchronous_predictions(serve: Serve, web: Server) -> None:
    web.serve("/up/image.png")
    web.serve("/upload")
    async with serve(FILE, upload_url=web.url("/up")) as server:
        await server.start(id="a", output_file_prefix=web.url("/upload"))
        await server.ended("a")
        body = (await server.client.get("/predictions/a")).json()
        assert (body["status"], body["output"]) == ("succeeded", web.url("/up/image.png"))
    (received,) = web.received
    assert (received.method, received.path, received.body) == ("PUT", "/up/image.png", b"\x89PNG")
