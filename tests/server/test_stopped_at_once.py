"""Runs that are stopped before their clients could be told of anything: each is answered, with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.support.servers import ServerProcess, write_model
from tests.support.triton import grpc_channel

SIZED: Final = """
    from geartrain import BaseRunner, ConcatenateIterator, streaming

    class Runner(BaseRunner):
        @streaming
        def run(self, prompt: str) -> ConcatenateIterator[str]:
            yield "x" * int(prompt)
"""
LIMIT: Final = 10_000  # bytes of output
TOO_LARGE: Final = 20_000
ENOUGH: Final = 5  # requests of one client, from which on the server awaits the end of a call on the spot
SSE: Final = {"accept": "text/event-stream"}
CHAT: Final = "/v1/chat/completions"


def _chat(size: int, **fields: Any) -> dict[str, Any]:
    return {"model": "model", "messages": [{"role": "user", "content": str(size)}], **fields}


def _tool(size: int) -> dict[str, Any]:
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "progressToken": 1}
    meta["io.modelcontextprotocol/clientCapabilities"] = {}
    params = {"name": "model", "arguments": {"prompt": str(size)}, "_meta": meta}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


_MCP: Final = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "model"}
_TENSOR: Final = {"name": "prompt", "shape": [1], "datatype": "BYTES"}

WAYS: Final[dict[str, tuple[str, Callable[[int], dict[str, Any]], dict[str, str]]]] = {
    "cog": ("/predictions", lambda size: {"input": {"prompt": str(size)}}, {}),
    "cog stream": ("/predictions", lambda size: {"input": {"prompt": str(size)}}, SSE),
    "generate": ("/v2/models/model/generate", lambda size: {"prompt": str(size)}, {}),
    "generate stream": ("/v2/models/model/generate_stream", lambda size: {"prompt": str(size)}, {}),
    "infer stream": (
        "/v2/models/model/infer_stream",
        lambda size: {"inputs": [{**_TENSOR, "data": [str(size)]}]},
        {},
    ),
    "chat": (CHAT, _chat, {}),
    "chat stream": (CHAT, lambda size: _chat(size, stream=True), {}),
    "chats": (CHAT, lambda size: _chat(size, n=2), {}),
    "messages": ("/v1/messages", lambda size: _chat(size, max_tokens=9), {}),
    "responses": ("/v1/responses", lambda size: {"model": "model", "input": str(size), "stream": True}, {}),
    "mcp": ("/mcp", _tool, {**_MCP, "accept": "application/json, text/event-stream"}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A server, and where its gRPC is."""
    folder = write_model(tmp_path_factory.mktemp("sized") / "model", SIZED)
    process = ServerProcess(str(folder), "--max-output-size", str(LIMIT))
    try:
        url = process.wait_for("listening")["url"]
        process.wait_for("ready")
        yield url, url.removeprefix("http://")
    finally:
        process.end()


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_asking_is_answered_with_the_reason(server: tuple[str, str], way: str) -> None:
    path, make, headers = WAYS[way]
    with httpx.Client(base_url=server[0], timeout=30, headers=headers) as client:
        for _ in range(2):
            for _ in range(ENOUGH):
                assert client.post(path, json=make(1)).status_code == 200
            answer = client.post(path, json=make(TOO_LARGE)).text
            assert "--max-output-size" in answer, answer[:300]


def test_a_stream_of_grpc_is_answered_with_the_reason(server: tuple[str, str]) -> None:
    def message(size: int) -> pb.ModelInferRequest:
        given = pb.ModelInferRequest.InferInputTensor(name="prompt", datatype="BYTES", shape=[1])
        given.contents.bytes_contents.append(str(size).encode())
        return pb.ModelInferRequest(model_name="model", inputs=[given])

    with grpc_channel(server[1]) as channel:
        stub = GRPCInferenceServiceStub(channel)
        for _ in range(ENOUGH):
            (fine,) = stub.ModelStreamInfer(iter([message(1)]), timeout=30)
            assert not fine.error_message
        *_, last = stub.ModelStreamInfer(iter([message(TOO_LARGE)]), timeout=30)
    assert "--max-output-size" in last.error_message, json.dumps(last.error_message)
