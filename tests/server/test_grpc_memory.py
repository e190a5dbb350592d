"""The memory that calls of gRPC leave behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.support.attacks import resident
from tests.support.servers import PATIENCE, ServerProcess, write_model
from tests.support.triton import grpc_channel

MODEL: Final = """
    import numpy as np
    from jaxtyping import Float32
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, x: Float32[np.ndarray, "n"]) -> Float32[np.ndarray, "n"]:
            return x
"""
COUNT: Final = 600_000  # numbers of 4 bytes
CALLS: Final = 200
LARGEST_GROWTH: Final = 20_000_000  # bytes


def test_s2_calls_with_a_deadline_leave_nothing_in_memory(
    server_process: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    process = server_process(str(write_model(tmp_path / "model", MODEL)), "--grpc-port", "0")
    first, second = (process.wait_for_one("listening-grpc", "ready") for _ in range(2))
    address = first.get("url") or second["url"]
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[COUNT])
    request = pb.ModelInferRequest(model_name="model", inputs=[tensor], raw_input_contents=[bytes(4 * COUNT)])
    options: list[tuple[str, Any]] = [("grpc.max_receive_message_length", -1)]
    with grpc_channel(address, options) as channel:
        infer = GRPCInferenceServiceStub(channel).ModelInfer
        for _ in range(20):
            infer(request, timeout=PATIENCE)
        before = resident(process.popen.pid)
        for _ in range(CALLS):
            response = infer(request, timeout=PATIENCE)
            assert len(response.raw_output_contents[0]) == 4 * COUNT
    assert resident(process.popen.pid) - before < LARGEST_GROWTH
