"""Models that call models: the values that travel, failures, ends, and no deadlock whatever calls what."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import pytest_asyncio
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from geartrain.transport.grpc import open_inference_pb2 as pb
from tests.support.servers import PATIENCE, ServerProcess, write_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

ECHO = """
    import os, time
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, text: str, seconds: float = 0.0) -> str:
            time.sleep(seconds)
            if text == "fail":
                raise ValueError("no such thing")
            if text == "die":
                os._exit(3)
            return text
"""
CALLER = """
    import geartrain

    class Runner(geartrain.BaseRunner):
        echo: geartrain.Model

        def run(self, text: str, times: int = 1, seconds: float = 0.0) -> str:
            return " ".join(self.echo(text=f"{text}{number or ''}", seconds=seconds) for number in range(times))
"""
ASYNC_CALLER = """
    import asyncio, geartrain

    class Runner(geartrain.BaseRunner):
        reader = geartrain.model("echo")

        @geartrain.concurrent(max=4)
        async def run(self, text: str, times: int = 3, seconds: float = 0.0) -> str:
            if text == "stream":
                writer = geartrain.models["words"].stream(text="a b c")
                return " ".join([piece async for piece in writer])
            if text == "thread":
                return " ".join(
                    await asyncio.gather(*(asyncio.to_thread(self.reader, text=str(number)) for number in range(times)))
                )
            calls = [self.reader(text=f"{text}{number}", seconds=seconds) for number in range(times)]
            return " ".join(await asyncio.gather(*calls))
"""
WAYS = """
    import concurrent.futures, pathlib, tempfile
    import numpy as np
    import geartrain
    from geartrain import ModelError, models

    class Runner(geartrain.BaseRunner):
        def setup(self) -> None:
            self.greeting = models["echo"](text="hello")

        def run(self, way: str) -> str:
            return str(getattr(self, way)())

        def greeted(self):
            return self.greeting

        def small(self):
            return models["twice"](x=np.ones((2, 2), np.float32)).tolist()

        def large(self):
            x = np.arange(1_000_000, dtype=np.float32)
            y = models["twice"](x=x)
            y[0] = 1  # the caller's own
            return (y[1:] == 2 * x[1:]).all() and y.shape

        def huge(self):
            x = np.ones(12_000_000, np.float32)  # 48 MB
            return models["twice"](x=x).sum()

        def lists(self):
            return models["twice"](x=[1.0, 2.5]).tolist()

        def record(self):
            found = models["parts"](text="ab")
            return found.name, found.count, found.scores.tolist(), found["name"]

        def plain(self):
            return models["parts"](text="ab", sizes=np.array([[1, 2], [3, 4]])).count

        def stream(self):
            return [piece for piece in models["words"].stream(text="a b c")]

        def joined(self):
            return models["words"](text="a b c")

        def some(self):
            stream = models["words"].stream(text="a b c")
            first = next(stream)
            stream.close()
            return first

        def one(self):
            return [*models["echo"].stream(text="whole")]

        def job(self):
            jobs = [models["echo"].start(text=str(number)) for number in range(3)]
            return [job.result() for job in jobs]

        def canceled(self):
            job = models["echo"].start(text="x", seconds=30)
            job.cancel()
            try:
                job.result()
            except ModelError as error:
                return error.code

        def threads(self):
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                return [*pool.map(lambda number: models["echo"](text=str(number)), range(8))]

        def unread(self):
            for _ in range(3):
                models["twice"].start(x=np.ones(1_000_000, np.float32))
            return models["echo"](text="done")

        def arrays(self):
            def double(number):
                return models["twice"](x=np.full(200_000, number, np.float32)).mean()

            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                return [float(each) for each in pool.map(double, range(8))]

        def text(self):
            return len(models["echo"](text="x" * 9_000_000))  # larger than a message

        def file(self):
            path = pathlib.Path(tempfile.mkdtemp(), "a.txt")
            path.write_text("inside")
            copy = models["files"](file=path)
            return type(copy).__name__, copy.read_text(), copy != path

        def caught(self):
            try:
                models["echo"](text="fail")
            except ModelError as error:
                return error.model, error.code, error.message

        def crashed(self):
            try:
                models["mortal"](text="die")
            except ModelError as error:
                return error.code, "crashed" in error.message

        def absent(self):
            return models["nobody"](x=1)

        def wrong(self):
            return models["echo"](txt="x")

        def number(self):
            return models[3](x=1)

        def unsent(self):
            return models["echo"](text=object())

        def version(self):
            return models["echo@1"](text="one"), models["echo@7"]
"""
EACH = (
    WAYS.replace("run(self, way: str)", "run(self, prompt: str)").replace("(self, way)", "(self, prompt)")
    + """
        def long(self):
            return models["echo"](text="x", seconds=60)
"""
)
TWICE = """
    import numpy as np
    from numpy.typing import NDArray
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
            return x * 2
"""
RELAY = """
    import numpy as np
    from numpy.typing import NDArray
    from geartrain import BaseRunner, models
    from geartrain.ipc.memory import Region

    written = 0
    write = Region.write

    def counted(region, parts):
        global written
        written += sum(map(len, parts)) // 1_000_000
        return write(region, parts)

    class Runner(BaseRunner):
        def setup(self) -> None:
            Region.write = counted
            self.kept = []

        def run(self, x: NDArray[np.float32], way: str) -> NDArray[np.float32]:
            global written
            before, written = written, 0
            if way == "written":
                return np.array([before], np.float32)
            if way == "kept":
                return np.array([each[-1] for each in self.kept], np.float32)
            y = models["twice"](x=np.arange(1_000_000, dtype=np.float32) + x[0])
            if way == "keep":
                self.kept.append(y)
                return x
            if "changed" in way:
                y[0] = -1
            return models["twice"](x=y) if "on" in way else y
"""
HOLDER = """
    import asyncio
    import geartrain
    import numpy as np

    class Runner(geartrain.BaseRunner):
        @geartrain.concurrent(max=8)
        async def run(self, number: int) -> bool:
            found = []
            for turn in range(6):
                x = np.full(100_000 + 1000 * turn, number + turn, np.float32)
                found.append(await geartrain.models["twice"](x=x))
            return all((y == 2 * (number + turn)).all() for turn, y in enumerate(found))
"""
PARTS = """
    from typing import NamedTuple
    import numpy as np
    from numpy.typing import NDArray
    from geartrain import BaseRunner

    class Parts(NamedTuple):
        name: str
        count: int
        scores: NDArray[np.float32]

    class Runner(BaseRunner):
        def run(self, text: str, sizes: list[list[int]] = []) -> Parts:
            return Parts(text, sum(map(sum, sizes)) or len(text), np.arange(2, dtype=np.float32))
"""
WORDS = """
    from geartrain import BaseRunner, ConcatenateIterator

    class Runner(BaseRunner):
        def run(self, text: str) -> ConcatenateIterator[str]:
            yield from text.split()
"""
FILES = """
    import shutil, tempfile
    from geartrain import BaseRunner, Path

    class Runner(BaseRunner):
        def run(self, file: Path) -> Path:
            return Path(shutil.copy(file, tempfile.mkdtemp()))
"""
SELF = """
    import geartrain

    class Runner(geartrain.BaseRunner):
        @geartrain.concurrent(max={slots})
        async def run(self, depth: int) -> int:
            return 0 if not depth else 1 + await geartrain.models["{name}"](depth=depth - 1)
"""
PING = """
    import geartrain

    class Runner(geartrain.BaseRunner):
        def run(self, seconds: float = 0.2, times: int = 1) -> int:
            import time
            time.sleep(seconds)
            return 0 if not times else 1 + geartrain.models["{other}"](seconds=seconds, times=times - 1)
"""
BATCHED = """
    from geartrain import BaseRunner, batched

    class Runner(BaseRunner):
        @batched(max_size=16, max_delay=0.02)
        def run(self, text: list[str]) -> list[str]:
            return [f"{each}/{len(text)}" for each in text]
"""
WRITER = """
    import geartrain

    class Runner(geartrain.BaseRunner):
        echo: geartrain.Model

        def run(self, prompt: str) -> str:
            return self.echo(text=prompt).upper()
"""
FAN = """
    import asyncio, geartrain

    class Runner(geartrain.BaseRunner):
        async def run(self, times: int = 16) -> list[str]:
            calls = [geartrain.models["batched"](text=str(number)) for number in range(times)]
            return [*await asyncio.gather(*calls)]
"""


LATE = """
    import threading, geartrain
    from geartrain.worker.runtime.{kind}_engine import {engine}

    class Runner(geartrain.BaseRunner):
        def setup(self):
            # Its cancel comes when the run is over, and the next one begins.
            self.is_over, cancel = threading.Event(), {engine}.cancel
            {engine}.cancel = lambda *call: self.is_over.wait(60) and cancel(*call)

        {run} run(self, way: str) -> str:
            if way == "next":
                self.is_over.set()
                return way
            self.is_over.clear()
            try:
                return {wait} geartrain.models["echo"](text="x", seconds=60)
            except geartrain.ModelError:
                if way == "raises":
                    raise
                return "caught"
"""
TOP = """
    import asyncio, geartrain

    class Runner(geartrain.BaseRunner):
        left: geartrain.Model
        right: geartrain.Model

        @geartrain.concurrent(max=8)
        async def run(self, text: str) -> list[str]:
            return [*await asyncio.gather(self.left(text=text), self.right(text=text))]
"""
SIDE = """
    import geartrain

    class Runner(geartrain.BaseRunner):
        bottom: geartrain.Model

        def run(self, text: str) -> str:
            return "{name} " + self.bottom(text=text, seconds=0.001)
"""


class Live:
    """A server of models that call each other."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        url = process.wait_for("listening")["url"]
        self.http = httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=httpx.Limits(max_connections=None))
        self._channel = grpc.aio.insecure_channel(process.wait_for("listening-grpc")["url"])
        self.grpc: Any = GRPCInferenceServiceStub(self._channel)

    async def start(self) -> Live:
        async with asyncio.timeout(3 * PATIENCE):  # the workers of many models start
            while (await self.http.get("/v2/health/ready")).status_code != HTTPStatus.OK:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.02)
        return self

    async def close(self) -> None:
        await self.http.aclose()
        await self._channel.close()
        self.process.end()

    async def ask(self, model: str, **inputs: Any) -> dict[str, Any]:
        response = await self.http.post(f"/models/{model}/predictions", json={"input": inputs})
        assert response.status_code == HTTPStatus.OK, response.text
        found: dict[str, Any] = response.json()
        return found

    async def output(self, model: str, **inputs: Any) -> Any:
        found = await self.ask(model, **inputs)
        assert found["status"] == "succeeded", found
        return found["output"]

    async def error(self, model: str, **inputs: Any) -> str:
        found = await self.ask(model, **inputs)
        assert found["status"] == "failed", found
        return str(found["error"])

    async def metric(self, start: str) -> float:
        """The sum of the values of the lines of /metrics that begin so."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))

    async def reached(self, start: str, value: float) -> None:
        async with asyncio.timeout(PATIENCE):
            while await self.metric(start) < value:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.02)

    async def until_idle(self) -> None:
        """Wait until nothing runs or waits."""
        async with asyncio.timeout(PATIENCE):
            while await self.metric("geartrain_predictions_"):  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.02)


def write_models(root: Path) -> None:
    models = {
        "echo": ECHO,
        "mortal": ECHO,
        "caller": CALLER,
        "acaller": ASYNC_CALLER,
        "ways": WAYS,
        "each": EACH,
        "twice": TWICE,
        "relay": RELAY,
        "holder": HOLDER,
        "parts": PARTS,
        "words": WORDS,
        "files": FILES,
        "deep": SELF.format(slots=4, name="deep"),
        "shallow": SELF.format(slots=1, name="shallow"),
        "endless": SELF.format(slots=32, name="endless"),
        "ping": PING.format(other="pong"),
        "pong": PING.format(other="ping"),
        "batched": BATCHED,
        "writer": WRITER,
        "fan": FAN,
        "late": LATE.format(kind="sync", engine="SyncEngine", run="def", wait=""),
        "alate": LATE.format(kind="async", engine="AsyncEngine", run="async def", wait="await"),
        "top": TOP,
        "left": SIDE.format(name="left"),
        "right": SIDE.format(name="right"),
        "bottom": ECHO,
    }
    for name, text in models.items():
        write_model(root / name, text)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    root = tmp_path_factory.mktemp("nested")
    write_models(root)
    live = await Live(ServerProcess(str(root), "--queue", "1000", "--restart", "on-crash", "--grpc-port", "0")).start()
    yield live
    await live.close()


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("greeted", "hello"),
        ("small", "[[2.0, 2.0], [2.0, 2.0]]"),
        ("large", "(1000000,)"),
        ("huge", "2.4e+07"),
        ("lists", "[2.0, 5.0]"),
        ("record", "('ab', 2, [0.0, 1.0], 'ab')"),
        ("plain", "10"),
        ("stream", "['a', 'b', 'c']"),
        ("joined", "abc"),
        ("some", "a"),
        ("one", "['whole']"),
        ("job", "['0', '1', '2']"),
        ("canceled", "run_canceled"),
        ("threads", "['0', '1', '2', '3', '4', '5', '6', '7']"),
        ("arrays", "[0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]"),
        ("text", "9000000"),
        ("file", "('PosixPath', 'inside', True)"),
        ("caught", "('echo', 'run_failed', 'ValueError: no such thing')"),
        ("crashed", "('run_failed', True)"),
    ],
)
async def test_values_there_and_back(live: Live, way: str, expected: str) -> None:
    assert await live.output("ways", way=way) == expected


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("absent", "ModelError: nobody: Request for unknown model: 'nobody' is not found"),
        ("wrong", 'ModelError: echo: txt: Unexpected field "txt"; the inputs of this model are: text, seconds; .*'),
        ("number", "TypeError: the name of a model is a string, not int"),
        ("unsent", "TypeError: an input of a model .*object.*"),
    ],
)
async def test_calls_that_cannot_be(live: Live, way: str, expected: str) -> None:
    error = await live.error("ways", way=way)
    assert re.fullmatch(expected, error), error


async def test_stream_in_an_async_model(live: Live) -> None:
    assert await live.output("acaller", text="stream") == "a b c"


async def test_outputs_that_are_never_read_are_let_go_of(live: Live) -> None:
    def memories() -> int:
        opened = Path(f"/proc/{live.process.popen.pid}/fd").iterdir()
        return sum(str(each.readlink()).startswith("/memfd:") for each in opened if each.is_symlink())

    # A test before this one ends a worker, and the next one has memory of its own.
    await live.reached('geartrain_model_ready{model="mortal"', 1)
    for _ in range(3):  # the memory of the called model grows with what is held
        assert await live.output("ways", way="unread") == "done"
    before = memories()
    for _ in range(10):
        assert await live.output("ways", way="unread") == "done"
    async with asyncio.timeout(PATIENCE):  # the caller's worker lets go after its answer
        while memories() > before + 2:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.02)
    assert await live.output("ways", way="large") == "(1000000,)"


_RESTARTS = 'geartrain_worker_restarts_total{model="twice"'


async def test_output_of_a_worker_that_was_replaced_is_its_own(live: Live) -> None:
    """A descriptor's number of the server is given again: what was opened by its path before is another memory."""
    for _ in range(3):
        assert await live.output("ways", way="large") == "(1000000,)"
        response = await live.http.post("/v2/repository/models/twice/load", json={})
        assert response.status_code == HTTPStatus.OK, response.text
        restarts = await live.metric(_RESTARTS)
        for child in _workers(live.process.popen.pid, "twice"):
            child.kill()
        await live.reached(_RESTARTS, restarts + 1)  # until then the killed one still counts as ready
        await live.reached('geartrain_model_ready{model="twice"', 1)
    assert await live.output("ways", way="large") == "(1000000,)"


async def _relayed(live: Live, x: float, way: str) -> Any:
    inputs = [
        {"name": "x", "datatype": "FP32", "shape": [1], "data": [x]},
        {"name": "way", "datatype": "BYTES", "shape": [1], "data": [way]},
    ]
    body = {"inputs": inputs, "outputs": [{"name": "output", "parameters": {"binary_data": True}}]}
    response = await live.http.post("/v2/models/relay/infer", json=body)
    assert response.status_code == HTTPStatus.OK, response.text
    return np.frombuffer(response.content[int(response.headers["inference-header-content-length"]) :], np.float32)


@pytest.mark.parametrize(
    ("way", "times", "written"),
    [("same", 2, 4), ("changed", 2, 8), ("on", 4, 4), ("on changed", 4, 8)],
)
async def test_array_that_is_only_passed_on_is_not_copied(live: Live, way: str, times: int, written: int) -> None:
    """The input of the first call is written by the caller; what it has been answered only if it has changed that."""
    for number in range(3):
        found = await _relayed(live, number, way)
        expected = times * (np.arange(1_000_000, dtype=np.float32) + number)
        if "changed" in way:
            expected[0] = -2 if "on" in way else -1
        assert np.array_equal(found, expected)
        assert await _relayed(live, 0, "written") == [written]


async def test_arrays_that_outlive_their_run_stay_as_they_are(live: Live) -> None:
    for number in range(5):
        await _relayed(live, 1_000_000 * number, "keep")
    for number in range(10):
        await _relayed(live, number, "same")
    assert (await _relayed(live, 0, "kept")).tolist() == [2 * (1_000_000 * number + 999_999) for number in range(5)]


async def test_arrays_that_many_hold_at_once_stay_as_they_are(live: Live) -> None:
    assert await asyncio.gather(*(live.output("holder", number=number) for number in range(24))) == [True] * 24


async def test_memory_of_a_caller_that_was_replaced_is_its_own(live: Live) -> None:
    """See the test of the called model: here it reads the input of a caller in the memory of that one."""
    for number in range(3):
        assert (await _relayed(live, number, "on"))[-1] == 4 * (999_999 + number)
        restarts = await live.metric('geartrain_worker_restarts_total{model="relay"')
        for child in _workers(live.process.popen.pid, "relay"):
            child.kill()
        await live.reached('geartrain_worker_restarts_total{model="relay"', restarts + 1)
        await live.reached('geartrain_model_ready{model="relay"', 1)
    assert (await _relayed(live, 7, "on"))[-1] == 4 * (999_999 + 7)


async def test_threads_of_an_async_model_call_too(live: Live) -> None:
    found = await asyncio.gather(*(live.output("acaller", text="thread", times=4) for _ in range(8)))
    assert found == ["0 1 2 3"] * 8


async def test_error_that_is_not_caught_fails_the_caller(live: Live) -> None:
    assert await live.error("caller", text="fail") == "ModelError: echo: ValueError: no such thing"


async def test_outer_requests_of_every_protocol(live: Live) -> None:
    assert await live.output("caller", text="hi", times=2) == "hi hi1"
    assert await live.output("acaller", text="hi") == "hi0 hi1 hi2"
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hi"]}
    body = (await live.http.post("/v2/models/caller/infer", json={"inputs": [tensor]})).json()
    assert body["outputs"][0]["data"] == ["hi"]
    body = (await live.http.post("/v2/models/caller/generate", json={"text": "hi"})).json()
    assert "hi" in body.values(), body
    request = pb.ModelInferRequest(model_name="acaller")
    request.inputs.add(
        name="text", datatype="BYTES", shape=[1], contents=pb.InferTensorContents(bytes_contents=[b"hi"])
    )
    answer = await live.grpc.ModelInfer(request)
    assert answer.raw_output_contents[0][4:] == b"hi0 hi1 hi2"
    answer = await live.http.post("/v1/completions", json={"model": "writer", "prompt": "hi"})
    assert answer.json()["choices"][0]["text"] == "HI"


class Outer:
    """Requests to the model `each` over one protocol; `ask` returns its text, or raises `AssertionError`."""

    def __init__(self, live: Live) -> None:
        self._live = live

    async def cog(self, prompt: str) -> str:
        found = await self._live.ask("each", prompt=prompt)
        assert found["status"] == "succeeded", found["error"]
        return str(found["output"])

    async def infer(self, prompt: str) -> str:
        tensor = {"name": "prompt", "datatype": "BYTES", "shape": [1], "data": [prompt]}
        body = await self._post("/v2/models/each/infer", {"inputs": [tensor]})
        return str(body["outputs"][0]["data"][0])

    async def generate(self, prompt: str) -> str:
        return str((await self._post("/v2/models/each/generate", {"text_input": prompt}))["text_output"])

    async def openai(self, prompt: str) -> str:
        body = await self._post("/v1/completions", {"model": "each", "prompt": prompt})
        return str(body["choices"][0]["text"])

    async def grpc(self, prompt: str) -> str:
        request = pb.ModelInferRequest(model_name="each")
        contents = pb.InferTensorContents(bytes_contents=[prompt.encode()])
        request.inputs.add(name="prompt", datatype="BYTES", shape=[1], contents=contents)
        try:
            answer = await self._live.grpc.ModelInfer(request, timeout=PATIENCE)
        except grpc.aio.AioRpcError as error:
            raise AssertionError(error.details()) from None
        return bytes(answer.raw_output_contents[0][4:]).decode()

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = await self._live.http.post(path, json=body)
        assert response.status_code == HTTPStatus.OK, response.text
        found: dict[str, Any] = response.json()
        return found


PROTOCOLS = ["cog", "infer", "generate", "openai", "grpc"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_every_way_of_calling_works_for_each_protocol(live: Live, protocol: str) -> None:
    ask = getattr(Outer(live), protocol)
    ways = {
        "greeted": "hello",
        "small": "[[2.0, 2.0], [2.0, 2.0]]",
        "large": "(1000000,)",
        "record": "('ab', 2, [0.0, 1.0], 'ab')",
        "stream": "['a', 'b', 'c']",
        "some": "a",
        "job": "['0', '1', '2']",
        "canceled": "run_canceled",
        "threads": "['0', '1', '2', '3', '4', '5', '6', '7']",
        "file": "('PosixPath', 'inside', True)",
        "caught": "('echo', 'run_failed', 'ValueError: no such thing')",
    }
    assert {way: await ask(way) for way in ways} == ways
    with pytest.raises(AssertionError, match="ModelError: nobody: Request for unknown model"):
        await ask("absent")


@pytest.mark.parametrize("protocol", PROTOCOLS[1:])  # of Cog's API: `test_cancel_ends_what_was_called`
async def test_client_that_hangs_up_ends_what_was_called(live: Live, protocol: str) -> None:
    await live.until_idle()
    asked = asyncio.create_task(getattr(Outer(live), protocol)("long"))
    await live.reached('geartrain_predictions_running{model="echo"', 1)
    asked.cancel()
    await live.until_idle()
    assert await live.output("caller", text="after") == "after"


async def test_nested_predictions_count_as_those_of_their_model(live: Live) -> None:
    start = 'nv_inference_count{model="twice"'
    before = await live.metric(start)
    calls = 'geartrain_model_calls_total{caller="ways",model="twice",outcome="succeeded"}'
    called = await live.metric(calls)
    await live.output("ways", way="small")
    assert await live.metric(start) == before + 1
    assert await live.metric(calls) == called + 1
    assert await live.metric("geartrain_model_calls_running{") == 0


async def test_calls_of_one_run_share_batches(live: Live) -> None:
    found = await live.output("fan")
    assert [each.split("/")[0] for each in found] == [str(number) for number in range(16)]
    assert max(int(each.split("/")[1]) for each in found) >= 8


async def test_cancel_ends_what_was_called(live: Live) -> None:
    started = await live.http.post(
        "/models/caller/predictions",
        json={"input": {"text": "x", "seconds": 60}},
        headers={"Prefer": "respond-async"},
    )
    await live.reached('geartrain_predictions_running{model="echo"', 1)
    await live.http.post(f"/models/caller/predictions/{started.json()['id']}/cancel")
    await live.until_idle()
    assert await live.output("caller", text="after") == "after"


@pytest.mark.parametrize("way", ["raises", "catches"])
@pytest.mark.parametrize("model", ["late", "alate"])
async def test_caller_is_canceled_though_it_hears_first_of_the_end_of_its_call(
    live: Live, model: str, way: str
) -> None:
    await live.until_idle()
    path = f"/models/{model}/predictions"
    started = await live.http.post(path, json={"input": {"way": way}}, headers={"Prefer": "respond-async"})
    await live.reached('geartrain_predictions_running{model="echo"', 1)
    one = f"{path}/{started.json()['id']}"
    await live.http.post(f"{one}/cancel")
    await live.until_idle()
    found = (await live.http.get(one)).json()
    assert (found["status"], "error" in found, "output" in found) == ("canceled", False, False)
    assert await live.output(model, way="next") == "next"


async def test_time_of_the_caller_is_that_of_the_called(live: Live) -> None:
    tensors = [
        {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["x"]},
        {"name": "seconds", "datatype": "FP64", "shape": [1], "data": [60.0]},
    ]
    began = time.monotonic()
    body = {"inputs": tensors, "parameters": {"timeout": 2_000_000}}
    response = await live.http.post("/v2/models/caller/infer", json=body)
    assert response.status_code == HTTPStatus.GATEWAY_TIMEOUT, response.text
    assert time.monotonic() - began < 30
    await live.until_idle()


async def test_model_that_calls_itself_has_idle_slots_or_a_sentence(live: Live) -> None:
    assert await live.output("deep", depth=3) == 3
    assert "in its own chain of calls" in await live.error("deep", depth=4)
    assert "in its own chain of calls" in await live.error("shallow", depth=1)
    assert await live.output("endless", depth=16) == 16
    assert "at most 16 predictions" in await live.error("endless", depth=17)
    found = await asyncio.gather(*(live.ask("deep", depth=3) for _ in range(12)))
    assert {each["status"] for each in found} <= {"succeeded", "failed"}
    await live.until_idle()


async def test_models_that_call_each_other_never_wait_for_ever(live: Live) -> None:
    """One slot each: the second of two calls that cross is refused, and the first goes on."""
    async with asyncio.timeout(PATIENCE):
        found = await asyncio.gather(
            *(live.ask(name, times=1) for _ in range(6) for name in ("ping", "pong")), return_exceptions=True
        )
    answers = [each for each in found if isinstance(each, dict)]
    assert len(answers) == len(found)
    for each in answers:
        assert each["status"] == "succeeded" or "wait for it" in each["error"], each
    assert any(each["status"] == "succeeded" for each in answers)
    await live.until_idle()


async def test_called_model_that_is_loaded_anew_loses_nothing(live: Live) -> None:
    async def reload() -> None:
        for _ in range(3):
            response = await live.http.post("/v2/repository/models/echo/load", json={})
            assert response.status_code == HTTPStatus.OK, response.text

    asked = [live.output("caller", text=f"t{number}", times=3, seconds=0.002) for number in range(60)]
    *found, _ = await asyncio.gather(*asked, reload())
    assert found == [f"t{number} t{number}1 t{number}2" for number in range(60)]


async def test_called_model_that_is_not_loaded_is_said_to_be_so(live: Live) -> None:
    await live.http.post("/v2/repository/models/words/unload", json={})
    assert "ModelError: words: " in await live.error("ways", way="joined")
    await live.http.post("/v2/repository/models/words/load", json={})
    assert await live.output("ways", way="joined") == "abc"


async def test_two_ways_to_one_slot(live: Live) -> None:
    """A diamond: both models in the middle call the one at the bottom, which has one slot, as they have."""
    async with asyncio.timeout(PATIENCE):
        found = await asyncio.gather(*(live.output("top", text=str(number)) for number in range(40)))
    assert found == [[f"left {number}", f"right {number}"] for number in range(40)]


async def test_called_model_that_is_unloaded_under_its_callers(live: Live) -> None:
    """Each request is answered: as always, or with the sentence that the model is not there."""

    found: list[dict[str, Any]] = []

    async def ask(number: int) -> None:
        found.append({"number": number, **await live.ask("left", text=str(number))})

    async def unload() -> None:
        for _ in range(3):
            for verb in ("unload", "load"):
                response = await live.http.post(f"/v2/repository/models/bottom/{verb}", json={})
                assert response.status_code == HTTPStatus.OK, response.text

    async with asyncio.timeout(2 * PATIENCE):
        await asyncio.gather(*map(ask, range(60)), unload())
        assert len(found) == 60
        for each in found:
            if each["status"] == "succeeded":
                assert each["output"] == f"left {each['number']}"
            else:
                assert each["status"] == "failed"
                assert "ModelError: bottom: " in each["error"], each
        await live.until_idle()
        assert await live.output("left", text="after") == "left after"


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 2])
async def test_many_with_hang_ups_deadlines_and_crashes(tmp_path: Path, slots: int) -> None:
    """500 requests with three calls each; a third hang up, a fifth have little time, the called model is killed."""
    write_model(tmp_path / "echo", ECHO.replace('if text == "die"', "if False"))
    write_model(tmp_path / "caller", CALLER)
    for name in ("echo", "caller"):
        (tmp_path / name / "geartrain.yaml").write_text(f"replicas: {slots}\n")
    process = ServerProcess(
        str(tmp_path), "--queue", "1000", "--restart", "on-crash", "--restart-limit", "100", "--grpc-port", "0"
    )
    live = await Live(process).start()
    chance = random.Random(slots)  # noqa: S311 - not for secrets

    async def one(number: int) -> str:
        kind = "hang up" if number % 3 == 0 else "short" if number % 5 == 0 else "whole"
        tensors = [
            {"name": "text", "datatype": "BYTES", "shape": [1], "data": [f"n{number}"]},
            {"name": "times", "datatype": "INT64", "shape": [1], "data": [3]},
            {"name": "seconds", "datatype": "FP64", "shape": [1], "data": [chance.random() * 0.004]},
        ]
        body = {"inputs": tensors, "parameters": {"timeout": chance.randrange(1, 60_000)} if kind == "short" else {}}
        # All wait in one queue: the limit below is that of the last one, and a limit of the client would be another.
        asked = live.http.post("/v2/models/caller/infer", json=body, timeout=None)
        if kind == "hang up":
            try:
                await asyncio.wait_for(asked, chance.random() * 0.05)
            except TimeoutError:
                return "left"
            return "early"
        response = await asked
        if response.status_code == HTTPStatus.OK:
            assert response.json()["outputs"][0]["data"] == [f"n{number} n{number}1 n{number}2"]
        return str(response.status_code)

    async def kill() -> None:
        for _ in range(10):
            await asyncio.sleep(0.25)
            for child in _workers(process.popen.pid, "echo"):
                child.kill()

    try:
        async with asyncio.timeout(4 * PATIENCE):
            *outcomes, _ = await asyncio.gather(*(one(number) for number in range(500)), kill())
        assert outcomes.count("200") > 50
        assert set(outcomes) <= {"200", "left", "early", "504", "500", "503", "400"}, set(outcomes)
        await live.until_idle()
        async with asyncio.timeout(PATIENCE):
            answer: dict[str, Any] = {}
            while answer.get("output") != "end end1 end2":  # the called model may be on its way back
                answer = await live.ask("caller", text="end", times=3)
    finally:
        await live.close()


def _workers(server: int, model: str) -> list[Any]:
    import psutil

    return [child for child in psutil.Process(server).children() if child.cwd().endswith(f"/{model}")]


async def test_declared_circle_is_an_error_of_the_load(tmp_path: Path) -> None:
    declaring = """
        import geartrain

        class Runner(geartrain.BaseRunner):
            {other}: geartrain.Model

            def run(self) -> str:
                return "fine"
    """
    for name, other in (("a", "b"), ("b", "c"), ("c", "a"), ("alone", "alone")):
        write_model(tmp_path / name, declaring.format(other=other))
    process = ServerProcess(str(tmp_path), "--grpc-port", "0")
    try:
        failed = [process.wait_for("setup-failed") for _ in range(2)]
        reasons = {each["model"]: str(each["text"]) for each in failed}
        assert "alone → alone" in reasons.pop("alone")
        ((name, reason),) = reasons.items()
        at = "abc".index(name)
        assert " → ".join("abcabc"[at : at + 4]) in reason
        assert "in a circle" in reason
    finally:
        process.end()


async def test_calls_that_are_not_listed_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "echo", ECHO)
    write_model(tmp_path / "other", ECHO)
    write_model(
        tmp_path / "caller",
        """
        import geartrain

        class Runner(geartrain.BaseRunner):
            echo: geartrain.Model

            def run(self, name: str) -> str:
                return self.echo(text="x") + geartrain.models[name](text="y")
        """,
    )
    (tmp_path / "caller" / "geartrain.yaml").write_text("calls: []\n")
    live = await Live(ServerProcess(str(tmp_path), "--grpc-port", "0")).start()
    try:
        assert await live.output("caller", name="echo") == "xy"
        error = await live.error("caller", name="other")
        assert error == "ModelError: other: the model 'caller' may not call 'other'; its `calls` are: echo"
    finally:
        await live.close()
