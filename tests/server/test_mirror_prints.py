"""What runs print, in the server's log: of the protocols whose answers have no logs, or as `--mirror-prints` says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as by_grpc

from tests.support.servers import ServerProcess, write_model

MODEL = """
    import sys
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, text: str) -> str:
            print("printed", text)
            sys.stderr.write("\\r 50%")
            sys.stderr.write("\\r100%\\n")
            if text.startswith("bad"):
                raise ValueError("boom " + text)
            print("end of", text, end="")
            return text
"""
Start = Callable[..., ServerProcess]


class Asked:
    """A server, and its model asked by each protocol."""

    def __init__(self, start: Start, folder: Path, *arguments: str) -> None:
        self.process = start(str(write_model(folder / "model", MODEL)), "--grpc-port", "0", *arguments)
        self.url = self.process.wait_for("listening")["url"]
        first, second = (self.process.wait_for_one("listening-grpc", "ready") for _ in range(2))
        self._grpc = first.get("url") or second["url"]

    def cog(self, text: str) -> dict[str, Any]:
        body: dict[str, Any] = httpx.post(f"{self.url}/predictions", json={"input": {"text": text}}, timeout=40).json()
        return body

    def rest(self, text: str) -> None:
        tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
        httpx.post(f"{self.url}/v2/models/model/infer", json={"inputs": [tensor]}, timeout=40)

    def generate(self, text: str) -> None:
        httpx.post(f"{self.url}/v2/models/model/generate", json={"text": text}, timeout=40)

    def grpc(self, text: str) -> None:
        tensor = by_grpc.InferInput("text", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([text.encode()], dtype=np.object_))
        with by_grpc.InferenceServerClient(self._grpc) as client:
            client.infer("model", [tensor])

    def printed_until(self, message: str) -> list[dict[str, Any]]:
        """The records of what runs have printed, up to one of them."""
        self.process.wait_for(message)
        lines = [line for line in self.process.lines if line["logger"] == "geartrain.model"]
        self.process.lines.clear()
        return lines


@pytest.mark.parametrize("protocol", ["rest", "generate", "grpc"])
def test_prints_of_protocols_without_logs(server_process: Start, tmp_path: Path, protocol: str) -> None:
    asked = Asked(server_process, tmp_path)
    asked.cog("quiet")
    getattr(asked, protocol)("loud")
    lines = asked.printed_until("end of loud")
    assert [line["message"] for line in lines] == ["printed loud", "100%", "end of loud"]
    assert [line.get("source") for line in lines[:2]] == ["stdout", "stderr"]
    assert {(line["model"], line["level"]) for line in lines} == {("model", "info")}
    (prediction,) = {line["prediction_id"] for line in lines}
    assert prediction


def test_failed_run_has_its_traceback_in_the_log(server_process: Start, tmp_path: Path) -> None:
    asked = Asked(server_process, tmp_path)
    asked.rest("bad")
    asked.process.wait_for("a run failed")
    (failure,) = [line for line in asked.process.lines if line["message"] == "a run failed"]
    assert failure["exception"].startswith("Traceback (most recent call last):\n")
    assert failure["exception"].endswith("ValueError: boom bad")
    asked.rest("after")
    lines = asked.printed_until("end of after")
    assert not [line for line in lines if "Traceback" in line["message"] or "boom bad" in line["message"]]
    assert failure["prediction_id"] in {line["prediction_id"] for line in lines}


def test_every_run_with_on(server_process: Start, tmp_path: Path) -> None:
    asked = Asked(server_process, tmp_path, "--mirror-prints", "on")
    body = asked.cog("both")
    lines = asked.printed_until("end of both")
    assert {line["prediction_id"] for line in lines} == {body["id"]}
    assert body["logs"] == "printed both\n100%\nend of both"


def test_no_run_with_off(server_process: Start, tmp_path: Path) -> None:
    asked = Asked(server_process, tmp_path, "--mirror-prints", "off")
    asked.rest("quiet")
    asked.process.popen.terminate()
    assert asked.printed_until("stopping") == []
