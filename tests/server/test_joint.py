"""Models whose requests join a loop that is under way, and end one by one: a real server, over its protocols."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from geartrain.transport.grpc import open_inference_pb2 as pb
from tests.support.servers import PATIENCE, LiveServer, Serve, ServerProcess, eventually, write_model

WRITER = """
    from typing import NamedTuple
    from geartrain import BaseRunner, Batch, ConcatenateIterator, Input, current_scope, joint, streaming

    class Prompt(NamedTuple):
        prompt: str
        count: int = Input(default=3, ge=1)
        pace: str = ""

    class Runner(BaseRunner):
        @streaming
        @joint(max_size=4)
        def run(self, batch: Batch[Prompt, ConcatenateIterator[str]]) -> None:
            for live in batch:
                for request in live:
                    if request.is_new:
                        request.state = 0
                        with request:
                            print("I am new")
                    if request.inputs.pace:
                        with open(request.inputs.pace, "rb", buffering=0) as gate:
                            gate.read(1)
                    with request:
                        current_scope().record_metric("steps", 1, "incr")
                    if request.inputs.prompt == "refuse":
                        request.fail("no such thing")
                    elif request.inputs.prompt == "wrong":
                        request.fail(KeyError("x"))
                    elif request.inputs.prompt == "boom":
                        raise ValueError("the loop broke")
                    elif request.inputs.prompt == "leave":
                        return
                    else:
                        request.send(f"{request.inputs.prompt}{request.state} ")
                        request.state += 1
                        if request.state == request.inputs.count:
                            request.end()
"""
VALUE = """
    import numpy as np
    from dataclasses import dataclass, field
    from jaxtyping import Float32
    from geartrain import BaseRunner, Batch, joint

    @dataclass
    class Numbers:
        x: Float32[np.ndarray, "n"]
        powers: list[int] = field(default_factory=lambda: [1, 2])

    class Runner(BaseRunner):
        @joint
        def run(self, batch: Batch[Numbers, Float32[np.ndarray, "n"]]) -> None:
            for live in batch:
                for request in live:
                    request.end(sum(request.inputs.x ** power for power in request.inputs.powers))
"""

CHAT = """
    from typing import Any
    from geartrain import BaseRunner, Batch, ConcatenateIterator, joint

    class Talk:
        messages: list[dict[str, Any]]
        max_tokens: int = 2

    class Runner(BaseRunner):
        @joint
        def run(self, batch: Batch[Talk, ConcatenateIterator[str]]) -> None:
            for live in batch:
                for request in live:
                    request.state = (request.state or 0) + 1
                    request.send(f"{request.inputs.messages[-1]['content']}{request.state} ")
                    if request.state == request.inputs.max_tokens:
                        request.end()
"""


class Pace:
    """Lets a loop take its turns one by one: it reads a byte from a pipe before each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._file = os.open(path, os.O_RDWR)

    def step(self, turns: int = 1) -> None:
        os.write(self._file, b"." * turns)

    async def step_until_done(self, answer: asyncio.Future[Any]) -> Any:
        """Let turns pass until a request is answered: how many there are before it joins is not known."""

        def turn() -> bool:
            self.step()
            return answer.done()

        await eventually(turn)
        return answer.result()


@pytest.fixture
def pace(tmp_path: Path) -> Pace:
    return Pace(tmp_path / "pace")


async def chunks(server: LiveServer, **values: Any) -> AsyncIterator[str]:
    """Yield the pieces of a prediction as they come."""
    headers = {"accept": "text/event-stream"}
    async with server.client.stream("POST", "/predictions", json={"input": values}, headers=headers) as response:
        event = ""
        async for line in response.aiter_lines():
            if line.startswith("event:"):
                event = line.removeprefix("event:").strip()
            elif line.startswith("data:") and event == "output":
                yield json.loads(line.removeprefix("data:"))["chunk"]


async def test_requests_join_and_end_one_by_one(serve: Serve, pace: Pace) -> None:
    async with serve(WRITER) as server:
        long = chunks(server, prompt="a", count=2000, pace=str(pace.path))
        pace.step()
        assert await anext(long) == "a0 "
        short = asyncio.ensure_future(server.predict({"prompt": "b", "count": 2}))
        answer = await pace.step_until_done(short)  # it ends before the one that was there first
        assert (answer["status"], answer["output"]) == ("succeeded", ["b0 ", "b1 "])
        assert answer["logs"] == "I am new\n"
        assert answer["metrics"]["steps"] == 2
        pace.step(2000)
        assert [piece async for piece in long] == [f"a{turn} " for turn in range(1, 2000)]


async def test_every_protocol_and_the_signature(serve: Serve) -> None:
    async with serve(WRITER) as server:
        schema = (await server.client.get("/openapi.json")).json()["components"]["schemas"]["Input"]
        assert schema["required"] == ["prompt"]
        assert schema["properties"]["count"]["minimum"] == 1
        refused = await server.client.post("/predictions", json={"input": {"prompt": "a", "count": 0}})
        assert refused.status_code == 422
        answer = await server.client.post("/v2/models/model/generate_stream", json={"text_input": "g", "count": 2})
        pieces = [json.loads(line[5:])["text_output"] for line in answer.text.splitlines() if line.startswith("data:")]
        assert pieces == ["g0 ", "g1 "]
        answer = await server.client.post("/v1/completions", json={"model": "model", "prompt": "o"})
        assert answer.json()["choices"][0]["text"] == "o0 o1 o2 "
        answers = await asyncio.gather(*[server.predict({"prompt": name, "count": 5}) for name in "wxyz"])
        assert [each["output"] for each in answers] == [[f"{n}{i} " for i in range(5)] for n in "wxyz"]


async def test_one_value_for_each_and_tensors(serve: Serve) -> None:
    async with serve(VALUE) as server:
        assert (await server.predict({"x": [1, 2], "powers": [2]}))["output"] == [1, 4]
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [3, 4]}]}
        answer = (await server.client.post("/v2/models/model/infer", json=body)).json()
        assert answer["outputs"][0]["data"] == [12, 20]


@pytest.mark.parametrize(
    ("prompt", "error", "logged"),
    [
        ("refuse", "no such thing", "no such thing"),
        ("wrong", "KeyError: 'x'", "KeyError: 'x'"),
        ("boom", "ValueError: the loop broke", "in run\n"),
        ("leave", "run() has ended, and this request had not", "call request.end()"),
    ],
)
async def test_failures_and_the_loop_goes_on(serve: Serve, prompt: str, error: str, logged: str) -> None:
    async with serve(WRITER) as server:
        answer = await server.predict({"prompt": prompt})
        assert answer["status"] == "failed"
        assert answer["error"].startswith(error)
        assert logged in answer["logs"]
        assert (await server.predict({"prompt": "next", "count": 1}))["output"] == ["next0 "]


async def test_an_error_of_the_loop_fails_all_that_are_there(serve: Serve, pace: Pace) -> None:
    async with serve(WRITER) as server:
        first = asyncio.ensure_future(server.predict({"prompt": "a", "count": 2000, "pace": str(pace.path)}))
        await eventually(lambda: server.workers.permits.idle == 3)
        second = asyncio.ensure_future(server.predict({"prompt": "boom"}))
        answers = [await pace.step_until_done(second), await first]
        assert [each["error"] for each in answers] == ["ValueError: the loop broke"] * 2
        assert (await server.predict({"prompt": "next", "count": 1}))["output"] == ["next0 "]


async def test_who_is_canceled_or_late_leaves_with_the_next_turn(serve: Serve, pace: Pace) -> None:
    async with serve(WRITER) as server:
        stays = asyncio.ensure_future(server.predict({"prompt": "a", "count": 3, "pace": str(pace.path)}))
        await eventually(lambda: server.workers.permits.idle == 3)
        goes = asyncio.ensure_future(server.predict({"prompt": "b", "count": 1000}, id="mine"))
        body = {
            "inputs": [
                {"name": "prompt", "datatype": "BYTES", "shape": [1], "data": ["c"]},
                {"name": "count", "datatype": "INT64", "shape": [1], "data": [1000]},
            ],
            "parameters": {"timeout": 200_000},
        }
        late = asyncio.ensure_future(server.client.post("/v2/models/model/infer", json=body))
        await eventually(lambda: server.workers.permits.idle == 1)
        await server.client.post("/predictions/mine/cancel")
        assert (await goes)["status"] == "canceled"
        assert (await late).status_code >= 400
        await eventually(lambda: server.workers.permits.idle == 3)  # their places are free while the turn lasts
        others = [asyncio.ensure_future(server.predict({"prompt": name, "count": 1})) for name in "xyz"]
        await eventually(lambda: server.workers.permits.idle == 0)
        pace.step(3)
        assert (await stays)["output"] == ["a0 ", "a1 ", "a2 "]
        assert [(await each)["output"] for each in others] == [["x0 "], ["y0 "], ["z0 "]]


async def test_a_client_that_leaves_frees_its_place(serve: Serve, pace: Pace) -> None:
    async with serve(WRITER) as server:
        stays = asyncio.ensure_future(server.predict({"prompt": "a", "count": 2000, "pace": str(pace.path)}))
        await eventually(lambda: server.workers.permits.idle == 3)
        body = {"text_input": "b", "count": 100_000}

        async def first_line() -> str:
            async with server.client.stream("POST", "/v2/models/model/generate_stream", json=body) as answer:
                return await anext(answer.aiter_lines())  # and then the connection is closed

        assert '"b0 "' in await pace.step_until_done(asyncio.ensure_future(first_line()))
        await eventually(lambda: server.workers.permits.idle == 3)
        pace.step(2000)
        assert len((await stays)["output"]) == 2000


async def test_a_crash_fails_all_that_are_there(serve: Serve, pace: Pace) -> None:
    async with serve(WRITER.replace('raise ValueError("the loop broke")', "__import__('os')._exit(3)")) as server:
        stays = asyncio.ensure_future(server.predict({"prompt": "a", "count": 2000, "pace": str(pace.path)}))
        await eventually(lambda: server.workers.permits.idle == 3)
        boom = asyncio.ensure_future(server.predict({"prompt": "boom"}))
        answers = [await pace.step_until_done(boom), await stays]
        assert [each["status"] for each in answers] == ["failed"] * 2
        assert all("crashed" in each["error"] for each in answers)


async def test_more_requests_than_places(serve: Serve) -> None:
    async with serve(WRITER) as server:

        async def ask(number: int) -> str:
            body = {"text_input": f"n{number}-", "count": 1 + number % 7}
            answer = await server.client.post("/v2/models/model/generate", json=body)
            return str(answer.json()["text_output"])

        texts = await asyncio.gather(*map(ask, range(200)))
        for number, text in enumerate(texts):
            assert text == "".join(f"n{number}-{step} " for step in range(1 + number % 7))
        assert server.workers.permits.idle == 4


async def test_chats_of_several_clients(serve: Serve) -> None:
    async with serve(CHAT) as server:

        async def ask(name: str, *, stream: bool) -> str:
            body = {"model": "model", "messages": [{"role": "user", "content": name}], "max_tokens": 3}
            answer = await server.client.post("/v1/chat/completions", json={**body, "stream": stream})
            if not stream:
                return str(answer.json()["choices"][0]["message"]["content"])
            lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
            deltas = [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]
            return "".join(delta.get("content") or "" for delta in deltas)

        texts = await asyncio.gather(*(ask(name, stream=name in "ac") for name in "abcd"))
        assert texts == [f"{name}1 {name}2 {name}3 " for name in "abcd"]


def test_streams_over_grpc(tmp_path: Path, server_process: Callable[..., ServerProcess]) -> None:
    process = server_process(str(write_model(tmp_path / "model", WRITER)), "--grpc-port", "0")
    address = process.wait_for("listening-grpc")["url"]
    process.wait_for("ready")

    def request(name: str, count: int) -> Any:
        message = pb.ModelInferRequest(model_name="model", id=name)
        text = pb.InferTensorContents(bytes_contents=[name.encode()])
        message.inputs.add(name="prompt", datatype="BYTES", shape=[1], contents=text)
        number = pb.InferTensorContents(int64_contents=[count])
        message.inputs.add(name="count", datatype="INT64", shape=[1], contents=number)
        return message

    with grpc.insecure_channel(address) as channel:
        stub: Any = GRPCInferenceServiceStub(channel)
        found: dict[str, list[str]] = {"a": [], "b": [], "c": []}
        for each in stub.ModelStreamInfer(iter([request("a", 5), request("b", 1), request("c", 3)]), timeout=PATIENCE):
            assert not each.error_message
            answer = each.infer_response
            if answer.raw_output_contents:
                found[answer.id].append(answer.raw_output_contents[0][4:].decode())
    assert found == {
        name: [f"{name}{step} " for step in range(count)] for name, count in (("a", 5), ("b", 1), ("c", 3))
    }


def test_run_and_doctor(tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "model", WRITER))

    def geartrain(*arguments: str) -> str:
        command = [sys.executable, "-m", "geartrain", *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert geartrain("run", model, "-i", "prompt=r", "-i", "count=2").strip() == "r0 r1"
    told = geartrain("doctor", model)
    assert "prompt" in told
    assert "✗" not in told
