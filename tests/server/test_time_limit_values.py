"""Limits of time of any value, over every protocol, on uvloop and on asyncio's loop."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import uvloop

import geartrain
from geartrain.transport.grpc import open_inference_pb2 as pb
from tests.support import hosts
from tests.support.http2 import Http2Client, http2
from tests.support.servers import PATIENCE, ServerProcess, write_model

LOOPS: Final = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
MODEL: Final = """
    import time
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, number: float = 0.0) -> float:
            time.sleep(number)
            return number
"""
UP, FINE, WRONG = 504, 200, 400
OVER_REST: Final = {  # the JSON of `timeout`, in microseconds
    "1": UP,
    "2": UP,
    "499": UP,
    "0": FINE,
    "-0": FINE,
    "30000000": FINE,
    str(2**63 - 1): FINE,
    str(2**63): FINE,
    str(2**64 - 1): FINE,
    "-1": WRONG,
    str(-(2**63)): WRONG,
    str(2**64): WRONG,
    "1e-3": WRONG,
    "0.001": WRONG,
    "1e400": WRONG,
    "NaN": WRONG,
    "Infinity": WRONG,
    "-Infinity": WRONG,
    '"1"': WRONG,
    "true": WRONG,
    "[]": WRONG,
}
DEADLINE_EXCEEDED, OK, INVALID, INTERNAL = "4", "0", "3", "13"
OVER_GRPC: Final[list[tuple[dict[str, Any], str]]] = [  # the parameter `timeout`
    *[({"int64_param": value}, DEADLINE_EXCEEDED) for value in (1, 499)],
    *[({"int64_param": value}, OK) for value in (0, 30_000_000, 2**63 - 1)],
    *[({"int64_param": value}, INVALID) for value in (-1, -(2**63))],
    *[({"uint64_param": value}, OK) for value in (0, 2**63, 2**64 - 1)],
    ({"uint64_param": 1}, DEADLINE_EXCEEDED),
    *[({"double_param": value}, INVALID) for value in (0.0, 0.001, -1.0, 2.0**63, float("nan"), float("inf"))],
    ({"string_param": "1"}, INVALID),
    ({"bool_param": True}, INVALID),
]
DEADLINES: Final = {
    **dict.fromkeys(("0n", "1n", "999n", "0u", "1u", "499u", "0m", "0S", "0H"), DEADLINE_EXCEEDED),
    **dict.fromkeys(("30S", "99999999S", "99999999M", "99999999H", "99999999m"), OK),
    **dict.fromkeys(("-1S", "", "1", "NaNS", "infS", "1e3S", "1.5S", "9223372036854775808n", "1s"), INTERNAL),
}


async def check_rest(client: httpx.AsyncClient, path: str) -> None:
    """Send every value of `timeout` as JSON."""
    tensor = {"name": "number", "datatype": "FP64", "shape": [1], "data": [0.0]}
    for value, status in OVER_REST.items():
        body = json.dumps({"inputs": [tensor], "parameters": {"timeout": "T"}}).replace('"T"', value)
        answer = await client.post(path, content=body)
        assert answer.status_code == status, (value, answer.text)
        assert status != WRONG or "parameter" in answer.text or "JSON" in answer.text, (value, answer.text)


async def check_cog(client: httpx.AsyncClient, path: str) -> None:
    """Make more predictions than may be admitted at once, one after the other."""
    for _ in range(5):
        answer = await client.post(path, json={"input": {}})
        assert (answer.status_code, answer.json()["status"]) == (200, "succeeded"), answer.text


async def infer(client: Http2Client, parameter: Mapping[str, Any] | None, deadline: str | None) -> str:
    """Call `ModelInfer`; return the status."""
    contents = pb.InferTensorContents(fp64_contents=[0.0])
    tensor = pb.ModelInferRequest.InferInputTensor(name="number", datatype="FP64", shape=[1], contents=contents)
    parameters = {} if parameter is None else {"timeout": pb.InferParameter(**parameter)}
    message = pb.ModelInferRequest(model_name="model", inputs=[tensor], parameters=parameters).SerializeToString()
    fields = [("content-type", "application/grpc"), ("te", "trailers")]
    fields += [] if deadline is None else [("grpc-timeout", deadline)]
    stream = await client.begin("POST", "/inference.GRPCInferenceService/ModelInfer", *fields)
    await client.upload(stream, struct.pack(">BI", 0, len(message)) + message)
    answer = await client.answer(stream)
    return {**answer.headers, **answer.trailers}["grpc-status"]


@pytest.mark.parametrize("loop", LOOPS)
async def test_s1_limits_of_any_value_over_three_protocols(
    server_process: Callable[..., ServerProcess], tmp_path: Path, loop: str
) -> None:
    """For asyncio's loop the server finds a module `uvloop` that runs asyncio."""
    model = write_model(tmp_path / "model", MODEL)
    fake = write_model(tmp_path / "fake", "")
    (fake / "uvloop.py").write_text("from asyncio import new_event_loop, run\n")
    env = {"PYTHONPATH": str(fake)} if loop == "asyncio" else {}
    process = server_process(str(model), "--grpc-port", "0", "--queue", "2", env=env)
    url = process.wait_for("listening")["url"]
    grpc = process.wait_for("listening-grpc")["url"]
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        process.wait_for("ready")
        await check_rest(client, "/v2/models/model/infer")
        async with http2(f"http://{grpc}") as calls:
            for parameter, status in OVER_GRPC:
                assert await infer(calls, parameter, None) == status, parameter
            for deadline, status in DEADLINES.items():
                assert await infer(calls, None, deadline) == status, deadline
        await check_cog(client, "/predictions")
        assert (await client.get("/readyz")).status_code == 200


@pytest.mark.parametrize("loop", LOOPS)
def test_s1_limits_of_any_value_inside_another_server(tmp_path: Path, loop: str) -> None:
    async def main() -> None:
        served = geartrain.asgi(write_model(tmp_path / "model", MODEL), wait_ready=True, queue=2)
        async with (
            hosts.hosted("uvicorn", served) as url,
            httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client,
        ):
            await check_rest(client, "/v2/models/model/infer")
            await check_cog(client, "/predictions")

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("seconds", [1e-9, 1e-6, 4e-4, 1e-3])
def test_s1_runs_with_hardly_any_time_fail_and_leave_their_place(tmp_path: Path, loop: str, seconds: float) -> None:
    async def main() -> None:
        served = geartrain.asgi(write_model(tmp_path / "model", MODEL), wait_ready=True, queue=1, run_timeout=seconds)
        async with (
            hosts.hosted("uvicorn", served) as url,
            httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client,
        ):
            for _ in range(3):
                answer = await client.post("/predictions", json={"input": {"number": 0.1}})
                assert (answer.status_code, answer.json()["status"]) == (200, "failed"), answer.text
                assert "timed out" in answer.json()["error"]
            assert (await client.get("/readyz")).status_code == 200

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


@pytest.mark.parametrize("seconds", [0, 2**63, 2.0**63, 1e300])
async def test_s1_a_limit_that_is_far_or_none_is_never_up(tmp_path: Path, seconds: float) -> None:
    served = geartrain.asgi(
        write_model(tmp_path / "model", MODEL), wait_ready=True, run_timeout=seconds, setup_timeout=seconds
    )
    async with (
        hosts.hosted("uvicorn", served) as url,
        httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client,
    ):
        await check_cog(client, "/predictions")


@pytest.mark.parametrize("value", [-1, -0.001, float("nan"), float("inf"), True, "5"])
@pytest.mark.parametrize(
    "name",
    ["keep", "run_timeout", "cancel_grace", "stream_grace", "setup_timeout", "shutdown_grace", "store_keep", "lease"],
)
def test_s1_an_option_that_is_no_span_of_time_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    options: Any = {name: value}
    with pytest.raises(ValueError, match=f"`{name}` is .*; write a number of seconds, 0 or more"):
        geartrain.asgi(write_model(tmp_path / "model", MODEL), **options)
