"""What the log says of requests and of failed runs, whatever protocol asked."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from geartrain.transport.access.keys import Key, add_key, digest_of, new_key
from tests.support.gates import Gates
from tests.support.servers import PATIENCE, ServerProcess, write_model

Start = Callable[..., ServerProcess]
Lines = list[dict[str, Any]]

MODEL = """
    import os, pathlib

    def run(text: str = "x") -> str:
        if text == "fail":
            raise ValueError("no")
        if text == "die":
            os._exit(3)
        if text.startswith("wait "):
            pathlib.Path(text[5:], "there").write_bytes(b"x")
            with open(os.path.join(text[5:], "go"), "rb", buffering=0) as gate:
                gate.read(1)
        return text
"""


class Served:
    """A server whose log is read at its end."""

    def __init__(self, start: Start, folder: Path, *arguments: str) -> None:
        self.process = start(str(write_model(folder / "hello", MODEL)), *arguments)
        self.url = self.process.wait_for("listening")["url"]
        self.process.wait_for("ready")

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(f"{self.url}{path}", json=body, headers=given, timeout=PATIENCE)

    def end(self) -> Lines:
        """Stop the server; return all of its log."""
        popen = self.process.popen
        popen.send_signal(signal.SIGTERM)
        lines = self.process.read_to_the_end()
        assert popen.wait(PATIENCE) == 0
        return lines


def of(lines: Lines, logger: str) -> Lines:
    return [line for line in lines if line["logger"] == logger]


def infer(text: str) -> dict[str, Any]:
    return {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}]}


def message(text: str) -> pb.ModelInferRequest:
    tensor = pb.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(text.encode())
    return pb.ModelInferRequest(model_name="hello", inputs=[tensor])


def test_a_failing_run_has_one_line_and_one_traceback_in_every_protocol(server_process: Start, tmp_path: Path) -> None:
    served = Served(server_process, tmp_path)
    ids = {"x-request-id": "r-cog"}
    seen = {"cog": served.post("/predictions", {"input": {"text": "fail"}}, **ids).headers}
    seen["rest"] = served.post("/v2/models/hello/infer", infer("fail")).headers
    seen["generate"] = served.post("/v2/models/hello/generate", {"text": "fail"}).headers
    with grpc.insecure_channel(urlsplit(served.url).netloc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        call = stub.ModelInfer.future(message("fail"), metadata=[("x-request-id", "r-grpc")])
        assert call.code() is grpc.StatusCode.INTERNAL
        everything = [*call.initial_metadata(), *call.trailing_metadata()]
        seen["grpc"] = httpx.Headers([(str(name), str(value)) for name, value in everything])
        streamed = list(stub.ModelStreamInfer(iter([message("a"), message("fail"), message("b")])))
        assert sorted(bool(each.error_message) for each in streamed) == [False, False, True]
    lines = served.end()
    access, failures = of(lines, "geartrain.access"), of(lines, "geartrain.runs")
    assert len(access) == len(failures) == 5
    for protocol, headers in seen.items():
        (line,) = [each for each in access if each["request_id"] == headers["x-request-id"]]
        (failure,) = [each for each in failures if each["request_id"] == headers["x-request-id"]]
        assert (line["protocol"], line["outcome"], line["level"]) == (protocol, "failed", "info")
        assert (failure["protocol"], failure["error"], failure["level"]) == (protocol, "ValueError: no", "error")
        assert headers["x-prediction-id"] == line["prediction_id"] == failure["prediction_id"]
        assert headers["traceparent"].split("-")[1] == line["trace_id"] == failure["trace_id"]
        assert (line["model"], failure["model"]) == ("hello", "hello")
        assert failure["exception"].startswith("Traceback (most recent call last):\n")
        assert 'raise ValueError("no")' in failure["exception"]
        assert min(line["queue_ms"], line["run_ms"], line["total_ms"]) >= 0
        assert min(line["bytes_in"], line["total_ms"]) > 0
    assert {seen["cog"]["x-request-id"], seen["grpc"]["x-request-id"]} == {"r-cog", "r-grpc"}
    (stream,) = [line for line in access if line["path"].endswith("/ModelStreamInfer")]
    assert (stream["requests"], stream["failures"], stream["grpc_status"]) == (3, 1, 0)


def test_every_request_has_its_line_also_those_just_before_the_end(server_process: Start, tmp_path: Path) -> None:
    served = Served(server_process, tmp_path)
    with httpx.Client(base_url=served.url) as client:
        ids = [client.post("/predictions", json={"input": {}}).headers["x-request-id"] for _ in range(50)]
        client.get("/health-check")
        client.get("/metrics")
        ids.append(client.get("/nothing").headers["x-request-id"])
        refused = client.post("/predictions", json={"input": {"text": 1}})
        ids.append(refused.headers["x-request-id"])
    access = of(served.end(), "geartrain.access")
    assert [line["request_id"] for line in access] == ids, "routine requests have none"
    assert [(line["status"], line["outcome"]) for line in access[-2:]] == [(404, "refused"), (422, "refused")]
    assert access[-1]["bytes_out"] == len(refused.content)


def test_refusal_has_its_reason_in_every_protocol(server_process: Start, tmp_path: Path) -> None:
    served = Served(server_process, tmp_path)
    assert served.post("/predictions", {"input": {"text": 1}}).status_code == 422
    assert served.post("/v2/models/hello/infer", {"inputs": [{"name": "no"}]}).status_code == 400
    with grpc.insecure_channel(urlsplit(served.url).netloc) as channel:
        message_without_model = pb.ModelInferRequest(model_name="none")
        call = GRPCInferenceServiceStub(channel).ModelInfer.future(message_without_model)
        assert call.code() is grpc.StatusCode.NOT_FOUND
        details = call.details()
    served.post("/predictions", {"input": {"text": "fail"}})
    over_cog, over_rest, over_grpc, failed = of(served.end(), "geartrain.access")
    assert over_cog["error"].startswith("text: ")
    assert "datatype" in over_rest["error"] or "shape" in over_rest["error"]
    assert over_grpc["error"] == details
    assert "error" not in failed, "it has a record of its own"


def test_accepted_prediction_has_a_record_at_its_end(server_process: Start, tmp_path: Path) -> None:
    served = Served(server_process, tmp_path, "--queue", "2")
    asked = [served.post("/predictions", {"input": {"text": text}}, prefer="respond-async") for text in ("a", "fail")]
    served.post("/predictions", {"input": {}})
    failure, *ends = sorted(of(served.end(), "geartrain.runs"), key=lambda line: line["message"] != "a run failed")
    assert [line["message"] for line in ends] == ["an accepted prediction ended"] * 2
    assert [line["prediction_id"] for line in ends] == [answer.json()["id"] for answer in asked]
    assert [line["outcome"] for line in ends] == ["succeeded", "failed"]
    assert all(line["total_ms"] >= line["run_ms"] > 0 for line in ends)
    assert failure["timestamp"] <= ends[1]["timestamp"]


def test_ends_have_no_record_where_only_errors_have_lines(server_process: Start, tmp_path: Path) -> None:
    served = Served(server_process, tmp_path, "--access-log", "errors")
    assert served.post("/predictions", {"input": {}}, prefer="respond-async").status_code == 202
    assert of(served.end(), "geartrain.runs") == []


def test_lines_are_in_the_order_of_time(server_process: Start, tmp_path: Path) -> None:
    served = Served(server_process, tmp_path)
    served.post("/predictions", {"input": {"text": 1}})
    served.post("/predictions", {"input": {"text": "die"}})
    served.process.wait_for("the worker is gone; no further prediction is possible")
    served.post("/predictions", {"input": {}})
    moments = [datetime.fromisoformat(line["timestamp"]) for line in served.end()]
    assert len(moments) >= 6
    assert moments == sorted(moments)


def test_errors_alone_with_the_name_of_the_key(server_process: Start, tmp_path: Path) -> None:
    key = new_key()
    add_key(tmp_path / "keys", Key("ada", ("predict",), digest_of(key)))
    served = Served(server_process, tmp_path, "--access-log", "errors", "--keys", str(tmp_path / "keys"))
    let_in = {"authorization": f"Bearer {key}"}
    assert served.post("/predictions", {"input": {}}, **let_in).status_code == 200
    assert served.post("/predictions", {"input": {"text": 1}}, **let_in).status_code == 422
    assert served.post("/predictions", {"input": {}}).status_code == 401
    access = of(served.end(), "geartrain.access")
    assert [(line["status"], line.get("key")) for line in access] == [(422, "ada"), (401, None)]
    assert key not in json.dumps(access)


def test_routine_requests_are_for_debugging(server_process: Start, tmp_path: Path) -> None:
    served = Served(server_process, tmp_path, "--log-level", "debug")
    assert httpx.get(f"{served.url}/health-check").status_code == 200
    (line,) = of(served.end(), "geartrain.access")
    assert (line["path"], line["level"], line["protocol"]) == ("/health-check", "debug", "system")


def test_a_client_that_leaves(server_process: Start, tmp_path: Path) -> None:
    gates = Gates(tmp_path / "gates")
    there, _ = gates["there"], gates["go"]
    served = Served(server_process, tmp_path)
    parts = urlsplit(served.url)
    with socket.create_connection((parts.hostname, parts.port)) as client:
        body = json.dumps({"input": {"text": f"wait {tmp_path / 'gates'}"}}).encode()
        head = (
            f"POST /predictions HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        )
        client.sendall(f"{head}\r\n\r\n".encode() + body)
        there.wait()
    (line,) = of(served.end(), "geartrain.access")
    assert (line["status"], line["outcome"]) == (499, "disconnected")


def test_a_worker_that_dies_is_told_with_what_to_do(server_process: Start, tmp_path: Path) -> None:
    served = Served(server_process, tmp_path)
    assert served.post("/predictions", {"input": {"text": "die"}}).json()["status"] == "failed"
    lines = served.end()
    (failure,) = of(lines, "geartrain.runs")
    assert failure["error"].startswith("Worker crashed")
    (gone,) = [line for line in lines if line["message"].startswith("the worker is gone")]
    assert (gone["level"], gone["model"]) == ("error", "hello")
    assert "--restart on-crash" in gone["hint"]


def test_a_log_that_nobody_reads_holds_nothing_up(tmp_path: Path) -> None:
    """The pipe of stderr is full after 64 KiB."""
    folder = write_model(tmp_path / "hello", MODEL)
    options = ("--host", "127.0.0.1", "--port", "0", "--grpc-port", "off", "--log-format", "json")
    command = [sys.executable, "-m", "geartrain", "serve", str(folder), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        url, is_ready = "", False
        for text in server.stderr:
            line = json.loads(text)
            url = url or line.get("url", "")
            is_ready = is_ready or line["message"] == "ready"
            if url and is_ready:  # either may come first
                break
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            for _ in range(100):
                response = client.post("/predictions", json={"input": {"text": "fail"}})
                assert response.json()["error"] == "ValueError: no"
        server.send_signal(signal.SIGTERM)
        rest = server.communicate(timeout=PATIENCE)[1]
        assert server.returncode == 0
    assert len(rest) > 65_536
    assert rest.count('"message":"a run failed"') == rest.count('"message":"request"') == 100
