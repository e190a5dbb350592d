"""Answers that are kept: hits, shared runs, streams, keys, clients' wishes, and what is never kept."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import grpc
import httpx
import pytest
import pytest_asyncio
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from geartrain.transport.grpc import open_inference_pb2 as pb
from tests.support.attacks import resident
from tests.support.servers import PATIENCE, ServerProcess, write_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNTED = """
    import os, time
    from geartrain import BaseRunner, current_scope

    class Runner(BaseRunner):
        runs = 0

        def run(self, text: str, gate: str = "", size: int = 0) -> str:
            self.runs += 1
            current_scope().record_metric("tokens.completion", 7)
            print("running")
            while gate and not os.path.exists(gate):
                time.sleep(0.002)
            if text == "fail":
                raise ValueError(f"run {self.runs}")
            return f"{text} {self.runs} " + size * "x"
"""
STREAM = """
    import os, time
    from geartrain import BaseRunner, ConcatenateIterator, streaming

    class Runner(BaseRunner):
        runs = 0

        @streaming
        def run(self, text: str, gate: str = "") -> ConcatenateIterator[str]:
            self.runs += 1
            for number, word in enumerate(text.split()):
                while number and gate and not os.path.exists(gate):
                    time.sleep(0.002)
                yield f"{word}{self.runs} "
"""
DECLARED = """
    from geartrain import cached

    count = 0

    @cached(ttl="10m", max_bytes="1MiB", share=True)
    def run(prompt: str, steps: int = 5, temperature: float = 0.5) -> str:
        global count
        count += 1
        return f"{prompt} {steps} {temperature} {count}"
"""
FILES = """
    import os, time
    from geartrain import Path

    count = 0

    def run(file: Path, gate: str = "") -> str:
        global count
        count += 1
        while gate and not os.path.exists(gate):
            time.sleep(0.002)
        return f"{file.read_text()}{file.suffix} {count}"
"""
GIVES_FILES = """
    import tempfile
    from pathlib import Path as Local
    from collections.abc import Iterator
    from geartrain import BaseRunner, Path, streaming

    class Runner(BaseRunner):
        runs = 0

        @streaming
        def run(self, text: str) -> Iterator[Path]:
            self.runs += 1
            for word in text.split():
                path = Local(tempfile.mkdtemp()) / f"{word}.txt"
                path.write_text(f"{word} {self.runs}")
                yield path
"""
GIVES_ONE = """
    import tempfile
    from pathlib import Path as Local
    from geartrain import Path

    count = 0

    def run(text: str) -> Path:
        global count
        count += 1
        path = Local(tempfile.mkdtemp()) / "one.txt"
        path.write_text(f"{text} {count}")
        return path
"""


BOUND = 160 * 1024**2
SIZE = 1024**2  # of an answer
SLACK = 72 * 1024**2  # bytes: 48 MiB that malloc may hold for later, and what first requests take


class Live:
    """A server of models that keep answers."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        url = process.wait_for("listening")["url"]
        self.http = httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=httpx.Limits(max_connections=None))
        self.channel = grpc.aio.insecure_channel(process.wait_for("listening-grpc")["url"])
        self.grpc: Any = GRPCInferenceServiceStub(self.channel)

    async def start(self) -> Live:
        async with asyncio.timeout(3 * PATIENCE):
            while (await self.http.get("/v2/health/ready")).status_code != HTTPStatus.OK:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.02)
        return self

    async def stop(self) -> None:
        """End the server as a supervisor does: what waits for the disk is written."""
        self.process.popen.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(self.process.popen.wait, PATIENCE) == 0

    async def close(self) -> None:
        await self.http.aclose()
        await self.channel.close()
        self.process.end()

    async def post(self, model: str, inputs: dict[str, Any], **headers: str) -> httpx.Response:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(f"/models/{model}/predictions", json={"input": inputs}, headers=names)

    async def running(self, model: str) -> None:
        line = f'geartrain_slots_in_use{{model="{model}",version="1"}} 1.0'
        async with asyncio.timeout(PATIENCE):
            while line not in (await self.http.get("/metrics")).text:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.01)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    root = tmp_path_factory.mktemp("cached")
    for name, text, cache in (
        ("counted", COUNTED, "true"),
        ("small", COUNTED, "{ttl: 1h, max_bytes: 40kB}"),
        ("brief", COUNTED, "{ttl: 0.3}"),
        ("stream", STREAM, "{ttl: 10m}"),
        ("files", FILES, "true"),
        ("gives", GIVES_FILES, "true"),
        ("one", GIVES_ONE, "true"),
        ("plain", COUNTED, ""),
        ("declared", DECLARED, ""),
        ("overruled", DECLARED, "false"),
        ("rewritten", DECLARED, "{max_bytes: 0}"),
    ):
        write_model(root / name, text)
        if cache:
            (root / name / "geartrain.yaml").write_text(f"cache: {cache}\n")
    live = await Live(ServerProcess(str(root), "--grpc-port", "0", "--queue", "0")).start()
    yield live
    await live.close()


async def test_equal_requests_have_one_run(live: Live) -> None:
    first = await live.post("counted", {"text": "a", "size": 3})
    again = await live.post("counted", {"size": 3, "text": "a"})
    assert first.json()["output"] == again.json()["output"]
    assert (first.headers["x-cache"], again.headers["x-cache"]) == ("miss", "hit")
    assert int(again.headers["age"]) >= 0
    assert "age" not in first.headers
    assert again.json()["metrics"]["tokens"] == {"completion": 7}
    assert again.json()["id"] != first.json()["id"]
    assert again.json()["status"] == "succeeded"
    other = await live.post("counted", {"text": "b"})
    assert other.headers["x-cache"] == "miss"
    assert "x-cache" not in (await live.post("plain", {"text": "a"})).headers


async def test_a_model_declares_its_cache_and_geartrain_yaml_overrules_it(live: Live) -> None:
    for name, found in (("declared", ["miss", "hit"]), ("overruled", [None, None]), ("rewritten", ["miss", "miss"])):
        answers = [await live.post(name, {"prompt": "declared"}) for _ in range(2)]
        assert [answer.headers.get("x-cache") for answer in answers] == found, name


async def test_choices_for_one_prompt_are_not_one_answer(live: Live) -> None:
    """A kept answer is the first of them."""
    body = {"model": "declared", "prompt": ["choices", "more"]}
    answers = [(await live.http.post("/v1/completions", json={**body, "n": n})).json()["choices"] for n in (3, 3, 1)]
    first, again, alone = ([choice["text"] for choice in answer] for answer in answers)
    assert (len(set(first)), len(set(again))) == (6, 6)
    assert alone == [first[0], first[3]] == [again[0], again[3]]


async def test_inputs_that_are_left_out_are_their_defaults(live: Live) -> None:
    first = await live.post("declared", {"prompt": "left"})
    again = await live.post("declared", {"prompt": "left", "steps": 5, "temperature": 0.5})
    assert (again.headers["x-cache"], again.json()["output"]) == ("hit", first.json()["output"])
    assert (await live.post("declared", {"prompt": "left", "steps": 6})).headers["x-cache"] == "miss"

    prompt = {"name": "prompt", "datatype": "BYTES", "shape": [1], "data": ["tensors"]}
    steps = {"name": "steps", "datatype": "INT64", "shape": [1], "data": [5]}
    url = "/v2/models/declared/infer"
    asked = [await live.http.post(url, json={"inputs": inputs}) for inputs in ([prompt], [prompt, steps])]
    assert [answer.headers["x-cache"] for answer in asked] == ["miss", "hit"]

    bodies: list[dict[str, Any]] = [{"model": "declared", "prompt": "text"}]
    bodies.append({**bodies[0], "temperature": 0.5})
    asked = [await live.http.post("/v1/completions", json=body) for body in bodies]
    assert [answer.headers["x-cache"] for answer in asked] == ["miss", "hit"]


async def test_doctor_shows_it(tmp_path: Path) -> None:
    write_model(tmp_path, DECLARED)
    for text, shown in (
        ("", "its answers are kept for 600 s in up to 1048576 bytes, shared by all clients (@cached)"),
        ("cache: {ttl: 5m}\n", "its answers are kept for 300 s in up to 268435456 bytes (geartrain.yaml)"),
        ("cache: {folder: /var/answers}\n", "in up to 268435456 bytes and in /var/answers (geartrain.yaml)"),
        ("cache: false\n", ""),
    ):
        (tmp_path / "geartrain.yaml").write_text(text)
        command = (sys.executable, "-m", "geartrain", "doctor", str(tmp_path))
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        printed = (await process.communicate())[0].decode()
        assert shown in printed if shown else "answers are kept" not in printed, printed


async def test_what_a_client_wishes(live: Live) -> None:
    first = (await live.post("counted", {"text": "wish"})).json()["output"]
    fresh = await live.post("counted", {"text": "wish"}, cache_control="max-age=0, No-Cache")
    assert (fresh.headers["x-cache"], fresh.json()["output"] != first) == ("miss", True)
    stored = await live.post("counted", {"text": "wish"})
    assert (stored.headers["x-cache"], stored.json()["output"]) == ("hit", fresh.json()["output"])
    alone = await live.post("counted", {"text": "wish"}, cache_control="no-store")
    assert "x-cache" not in alone.headers
    assert (await live.post("counted", {"text": "wish"})).json()["output"] == fresh.json()["output"]


async def test_failures_are_not_kept(live: Live) -> None:
    first, again = [(await live.post("counted", {"text": "fail"})).json()["error"] for _ in range(2)]
    assert first != again


async def test_a_thousand_at_once_are_one_run(live: Live, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    before = (await live.post("counted", {"text": "before"})).json()["output"]
    asked = [asyncio.ensure_future(live.post("counted", {"text": "many", "gate": str(gate)})) for _ in range(1000)]
    await live.running("counted")
    # A model with one slot and no queue: whatever has no equal run is refused.
    assert (await live.post("counted", {"text": "other"})).status_code == HTTPStatus.CONFLICT
    gate.touch()
    answers = await asyncio.gather(*asked)
    assert {answer.status_code for answer in answers} == {HTTPStatus.OK}
    assert len({answer.json()["output"] for answer in answers}) == 1
    assert len({answer.json()["id"] for answer in answers}) == 1000
    assert [answer.headers["x-cache"] for answer in answers].count("miss") == 1
    after = (await live.post("counted", {"text": "after"})).json()["output"]
    assert int(after.split()[1]) == int(before.split()[1]) + 2


async def test_a_run_goes_on_until_the_last_of_its_clients_has_left(live: Live, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    inputs = {"text": "left", "gate": str(gate)}
    first = asyncio.ensure_future(live.post("counted", inputs))
    await live.running("counted")
    second = asyncio.ensure_future(live.post("counted", inputs))
    accepted = await live.post("counted", inputs, prefer="respond-async")
    assert accepted.headers["x-cache"] == "shared"
    first.cancel()
    await live.http.post(f"/models/counted/predictions/{accepted.json()['id']}/cancel")
    found = (await live.http.get(f"/models/counted/predictions/{accepted.json()['id']}")).json()
    assert found["status"] == "canceled"
    gate.touch()
    assert (await second).json()["status"] == "succeeded"
    # All leave: the slot is free again.
    closed = {"text": "closed", "gate": str(tmp_path / "never")}
    leaving = [asyncio.ensure_future(live.post("counted", closed)) for _ in range(3)]
    await live.running("counted")
    for each in leaving:
        each.cancel()
    async with asyncio.timeout(PATIENCE):
        while (await live.post("counted", {"text": "free"})).status_code != HTTPStatus.OK:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_time_of_one_is_not_that_of_the_others(live: Live, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    inputs = {"text": "time", "gate": str(gate)}
    whole = asyncio.ensure_future(live.post("counted", inputs))
    await live.running("counted")
    tensors = [{"name": n, "datatype": "BYTES", "shape": [1], "data": [v]} for n, v in inputs.items()]
    body = {"inputs": tensors, "parameters": {"timeout": 200_000}}
    late = await live.http.post("/v2/models/counted/infer", json=body)
    assert late.status_code == HTTPStatus.GATEWAY_TIMEOUT, late.text
    gate.touch()
    assert (await whole).json()["status"] == "succeeded"


async def test_streams_are_given_again(live: Live, tmp_path: Path) -> None:
    async def stream(inputs: dict[str, Any]) -> tuple[str, list[str]]:
        headers = {"accept": "text/event-stream"}
        async with live.http.stream(
            "POST", "/models/stream/predictions", json={"input": inputs}, headers=headers
        ) as answer:
            return answer.headers["x-cache"], [line async for line in answer.aiter_lines() if "data:" in line]

    def words(lines: list[str]) -> list[str]:
        return re.findall(r'"([a-z]\d+ )"', " ".join(lines))

    first, again = await stream({"text": "a b c"}), await stream({"text": "a b c"})
    assert (first[0], again[0]) == ("miss", "hit")
    assert words(first[1]) == words(again[1]) == ["a1 ", "b1 ", "c1 "] * 2  # one by one, and in the end
    gate = tmp_path / "open"
    inputs = {"text": "d e f", "gate": str(gate)}
    one = asyncio.ensure_future(stream(inputs))
    await live.running("stream")
    two = asyncio.ensure_future(stream(inputs))
    gate.touch()
    (_, lines), (cache, others) = await one, await two
    assert cache in {"shared", "hit"}
    assert words(lines) == words(others) == ["d2 ", "e2 ", "f2 "] * 2


async def test_other_protocols(live: Live) -> None:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hi"]}
    answers = [await live.http.post("/v2/models/counted/infer", json={"inputs": [tensor]}) for _ in range(2)]
    assert answers[0].json()["outputs"] == answers[1].json()["outputs"]
    assert [answer.headers["x-cache"] for answer in answers] == ["miss", "hit"]
    request = pb.ModelInferRequest(model_name="counted")
    request.inputs.add(
        name="text", datatype="BYTES", shape=[1], contents=pb.InferTensorContents(bytes_contents=[b"rpc"])
    )
    outputs = [(await live.grpc.ModelInfer(request)).raw_output_contents[0] for _ in range(2)]
    assert outputs[0] == outputs[1]
    stats = (await live.http.get("/v2/models/counted/stats")).json()["model_stats"][0]["inference_stats"]
    assert stats["cache_hit"]["count"] >= 2
    assert stats["cache_miss"]["count"] >= 2
    by_grpc = await live.grpc.ModelStatistics(pb.ModelStatisticsRequest(name="counted"))
    assert by_grpc.model_stats[0].inference_stats.cache_hit.count == stats["cache_hit"]["count"]
    metrics = (await live.http.get("/metrics")).text
    assert f'nv_cache_num_hits_per_model{{model="counted",version="1"}} {stats["cache_hit"]["count"]}' in metrics


async def test_answers_asked_for_longest_ago_make_room(live: Live) -> None:
    for text in ("one", "two", "one", "three", "one"):
        await live.post("small", {"text": text, "size": 15_000})
    assert (await live.post("small", {"text": "one", "size": 15_000})).headers["x-cache"] == "hit"
    assert (await live.post("small", {"text": "two", "size": 15_000})).headers["x-cache"] == "miss"
    for _ in range(2):
        assert (await live.post("small", {"text": "large", "size": 50_000})).headers["x-cache"] == "miss"


async def test_files_of_an_input_count_as_their_content(live: Live) -> None:
    url = "/models/files/predictions"
    first = await live.post("files", {"file": "data:text/plain,hello"})
    assert (first.headers["x-cache"], first.json()["output"]) == ("miss", "hello.txt 1")
    again = [
        await live.post("files", {"file": "data:text/plain;base64,aGVsbG8="}),
        await live.http.post(url, files={"file": ("other.txt", b"hello", "text/plain")}),
        await live.http.post(url, content=b"hello", headers={"content-type": "text/plain"}),
    ]
    assert [answer.headers["x-cache"] for answer in again] == ["hit"] * 3
    assert {answer.json()["output"] for answer in again} == {"hello.txt 1"}
    others = [
        await live.post("files", {"file": "data:text/plain,hallo"}),
        await live.post("files", {"file": "data:text/csv,hello"}),
        await live.post("files", {"file": "data:text/plain,hello"}, cache_control="no-cache"),
    ]
    assert [answer.headers["x-cache"] for answer in others] == ["miss"] * 3
    assert (
        "x-cache" not in (await live.post("files", {"file": "data:text/plain,hello"}, cache_control="no-store")).headers
    )
    large = "data:text/plain," + 300_000 * "x"  # the JSON is larger than that of an input without files may be
    asked = [await live.post("files", {"file": large}) for _ in range(2)]
    assert [answer.headers["x-cache"] for answer in asked] == ["miss", "hit"]

    tensor = {"name": "file", "datatype": "BYTES", "shape": [1], "data": ["data:text/plain,tensors"]}
    infers = [await live.http.post("/v2/models/files/infer", json={"inputs": [tensor]}) for _ in range(2)]
    assert [answer.headers["x-cache"] for answer in infers] == ["miss", "hit"]


async def test_a_url_whose_content_has_changed(tmp_path: Path) -> None:
    class Handler(BaseHTTPRequestHandler):
        content = b"old"

        def do_GET(self) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("content-length", str(len(self.content)))
            self.end_headers()
            self.wfile.write(self.content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    write_model(tmp_path / "files", FILES)
    (tmp_path / "files" / "geartrain.yaml").write_text("cache: true\n")
    live = await Live(ServerProcess(str(tmp_path), "--grpc-port", "0", "--allow-private-urls")).start()
    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{web.server_port}/a.txt"
        found = [(await live.post("files", {"file": url})).headers["x-cache"]]
        found.append((await live.post("files", {"file": url + "?again"})).headers["x-cache"])
        Handler.content = b"new"
        answer = await live.post("files", {"file": url})
        assert [*found, answer.headers["x-cache"]] == ["miss", "hit", "miss"]
        assert answer.json()["output"].startswith("new.txt")
    finally:
        web.shutdown()
        web.server_close()
        await live.close()


async def test_requests_with_equal_files_share_a_run_and_leave_nothing(tmp_path: Path) -> None:
    gate, temporary = tmp_path / "open", tmp_path / "temporary"
    temporary.mkdir()
    write_model(tmp_path / "models" / "files", FILES)
    (tmp_path / "models" / "files" / "geartrain.yaml").write_text("cache: true\n")
    arguments = (str(tmp_path / "models"), "--grpc-port", "0", "--queue", "100")
    live = await Live(ServerProcess(*arguments, env={"TMPDIR": str(temporary)})).start()

    def files() -> list[str]:
        return [name for _, _, names in os.walk(temporary) for name in names if name.endswith(".txt")]

    try:
        inputs = {"file": "data:text/plain,shared", "gate": str(gate)}
        first = asyncio.ensure_future(live.post("files", inputs))
        await live.running("files")
        asked = [asyncio.ensure_future(live.post("files", inputs)) for _ in range(20)]
        accepted = await live.post("files", inputs, prefer="respond-async")
        url = f"/models/files/predictions/{accepted.json()['id']}"
        # Those that share the run wait for it without files of their own.
        async with asyncio.timeout(PATIENCE):
            while (await live.http.get(url)).json()["status"] != "processing":  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.01)
            while len(files()) != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        first.cancel()  # its file is that of the run
        await live.http.post(f"{url}/cancel")
        assert (await live.http.get(url)).json()["status"] == "canceled"
        gate.touch()
        answers = await asyncio.gather(*asked)
        assert {answer.json()["output"] for answer in answers} == {"shared.txt 1"}
        assert {answer.headers["x-cache"] for answer in answers} <= {"shared", "hit"}
        assert (await live.post("files", inputs)).headers["x-cache"] == "hit"
        assert files() == []
        assert list(temporary.glob("geartrain-*/prediction-*")) == []
    finally:
        await live.close()


async def test_files_that_were_uploaded_are_not_kept(tmp_path: Path) -> None:
    class Receiver(BaseHTTPRequestHandler):
        ids: ClassVar[list[str]] = []

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.ids.append(self.headers["x-prediction-id"])
            self.send_response(HTTPStatus.OK)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    web = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{web.server_port}/files"
    write_model(tmp_path / "one", GIVES_ONE)
    (tmp_path / "one" / "geartrain.yaml").write_text("cache: true\n")
    live = await Live(ServerProcess(str(tmp_path), "--grpc-port", "0", "--upload-url", url)).start()
    try:
        answers = [await live.post("one", {"text": "a"}) for _ in range(2)]
        assert [answer.headers["x-cache"] for answer in answers] == ["miss", "miss"]
        assert [answer.json()["output"] for answer in answers] == [f"{url}/one.txt"] * 2
        assert Receiver.ids == [answer.json()["id"] for answer in answers]
    finally:
        web.shutdown()
        web.server_close()
        await live.close()


async def test_an_answer_is_forgotten_after_its_time(live: Live) -> None:
    first = await live.post("brief", {"text": "a"})
    async with asyncio.timeout(PATIENCE):
        while (again := await live.post("brief", {"text": "a"})).headers["x-cache"] == "hit":
            assert again.json()["output"] == first.json()["output"]
    assert again.headers["x-cache"] == "miss"


async def test_files_of_outputs_are_kept(live: Live) -> None:
    first, again = [await live.post("one", {"text": "a"}) for _ in range(2)]
    assert (first.headers["x-cache"], again.headers["x-cache"]) == ("miss", "hit")
    assert first.json()["output"] == again.json()["output"] == "data:text/plain;base64,YSAx"
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["b"]}
    infers = [await live.http.post("/v2/models/one/infer", json={"inputs": [tensor]}) for _ in range(2)]
    assert [answer.headers["x-cache"] for answer in infers] == ["miss", "hit"]
    assert infers[0].json()["outputs"] == infers[1].json()["outputs"]
    request = pb.ModelInferRequest(model_name="one")
    request.inputs.add(name="text", datatype="BYTES", shape=[1], contents=pb.InferTensorContents(bytes_contents=[b"b"]))
    assert b"data:text/plain;base64," in (await live.grpc.ModelInfer(request)).raw_output_contents[0]

    found = []
    for _ in range(2):
        headers = {"accept": "text/event-stream"}
        answer = await live.http.post("/models/gives/predictions", json={"input": {"text": "a b"}}, headers=headers)
        found.append((answer.headers["x-cache"], re.findall(r"base64,(\w+)", answer.text)))
    assert found == [("miss", found[0][1]), ("hit", found[0][1])]
    assert len(found[0][1]) == 4  # one by one, and in the end


async def test_a_folder_keeps_answers_across_a_restart(tmp_path: Path) -> None:
    models, kept = tmp_path / "models", tmp_path / "kept"
    write_model(models / "counted", COUNTED)
    write_model(models / "stream", STREAM)
    write_model(models / "brief", COUNTED)
    for name, more in (("counted", ""), ("stream", ""), ("brief", ", ttl: 0.001")):
        (models / name / "geartrain.yaml").write_text(f"cache: {{folder: {kept}{more}}}\n")

    async def serve(events: int) -> Live:
        live = Live(ServerProcess(str(models), "--grpc-port", "0"))
        for _ in range(events):
            live.process.wait_for("answers of a former server have been read")
        return await live.start()

    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["t"]}
    outputs: list[dict[str, Any]] = []
    for results in (["miss"] * 4, ["hit"] * 3 + ["miss"]):
        live = await serve(3)
        try:
            answers = [
                await live.post("counted", {"text": "a"}),
                await live.post("stream", {"text": "a b"}),
                await live.http.post("/v2/models/counted/infer", json={"inputs": [tensor]}),
                await live.post("brief", {"text": "a"}),
            ]
            await live.stop()
        finally:
            await live.close()
        assert [answer.headers["x-cache"] for answer in answers] == results
        outputs.append(
            {f"{n}": each.json().get("output") or each.json()["outputs"] for n, each in enumerate(answers[:3])}
        )
        assert answers[0].json()["metrics"]["tokens"] == {"completion": 7}
    assert outputs[0] == outputs[1]
    written = sorted(path for path in kept.rglob("*") if path.is_file())
    assert {path.suffix for path in written} == {".answer"}
    assert {path.stat().st_mode & 0o777 for path in written} == {0o600}

    # A damaged file is no answer, nor is anything that belongs to a model with other code.
    for path in (kept / "counted@1").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    write_model(models / "stream", STREAM + "\n    # changed\n")
    live = await serve(3)
    try:
        for name, text in (("counted", "a"), ("stream", "a b")):
            assert (await live.post(name, {"text": text})).headers["x-cache"] == "miss", name
    finally:
        await live.close()


async def test_reloads(live: Live) -> None:
    await live.post("small", {"text": "reload"})
    assert (await live.http.post("/v2/repository/models/small/unload", json={})).status_code == HTTPStatus.OK
    assert (await live.http.post("/v2/repository/models/small/load", json={})).status_code == HTTPStatus.OK
    assert (await live.post("small", {"text": "reload"})).headers["x-cache"] == "miss"


async def test_the_server_s_memory_at_the_bound_and_after_the_end_of_a_cache(tmp_path: Path) -> None:
    write_model(tmp_path / "bounded", COUNTED)
    (tmp_path / "bounded" / "geartrain.yaml").write_text(f"cache: {{max_bytes: {BOUND}}}\n")
    live = await Live(ServerProcess(str(tmp_path), "--grpc-port", "0", "--keep", "0")).start()
    try:
        pid = live.process.popen.pid
        before = resident(pid)
        for number in range(2 * BOUND // SIZE):
            answer = await live.post("bounded", {"text": f"{number}", "size": SIZE})
            assert answer.headers["x-cache"] == "miss"
        assert BOUND - SLACK < resident(pid) - before < BOUND + SLACK
        for action in ("unload", "load"):
            assert (await live.http.post(f"/v2/repository/models/bounded/{action}", json={})).is_success
        async with asyncio.timeout(PATIENCE):
            while resident(pid) - before > SLACK:  # noqa: ASYNC110 - malloc is trimmed every few seconds
                await asyncio.sleep(0.1)
    finally:
        await live.close()
