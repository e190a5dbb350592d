"""TorchServe's inference service over gRPC: its calls, its statuses, and models that were not written for it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from geartrain.transport.grpc import torchserve_pb2 as pb
from tests.support.packages import packages
from tests.support.servers import PATIENCE, ServerProcess, write_model

SERVICE = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
HANDLER = """
    from ts.handler_utils.utils import send_intermediate_predict_response
    from ts.utils.util import PredictionException

    totals = {}

    def handle(data, context):
        if data is None:
            return None
        (item,) = data
        sequence = context.get_sequence_id(0)
        if sequence:
            totals[sequence] = totals.get(sequence, 0) + int(item["data"])
            return [str(totals[sequence])]
        given = item.get("body") or item.get("data")
        if given == b"refuse":
            raise PredictionException("not this one", 413)
        if given == b"memory":
            raise MemoryError
        if given == b"broken":
            raise ValueError("broken")
        if given == b"status":
            context.set_response_status(code=418, phrase="so", idx=0)
        if given == b"pieces":
            for number in range(3):
                send_intermediate_predict_response([f"{number} "], context.request_ids, "", 200, context)
            return ["end"]
        if given == b"half":
            send_intermediate_predict_response(["half"], context.request_ids, "", 200, context)
            raise ValueError("broken off")
        if given == b"fields":
            return [{name: value.decode() for name, value in sorted(item.items())}]
        return [bytes(given)[::-1]]
"""
STATUS = grpc.StatusCode
NOTHING: Mapping[str, bytes] = {}


class Client:
    """A client of the service on one channel."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        asks, tells = pb.PredictionsRequest.SerializeToString, pb.PredictionResponse.FromString
        channel: Any = self.channel
        self.ping = channel.unary_unary(
            f"/{SERVICE}/Ping", pb.Empty.SerializeToString, pb.TorchServeHealthResponse.FromString
        )
        self.predictions = channel.unary_unary(f"/{SERVICE}/Predictions", asks, tells)
        self.stream = channel.unary_stream(f"/{SERVICE}/StreamPredictions", asks, tells)
        self.sequence = channel.stream_stream(f"/{SERVICE}/StreamPredictions2", asks, tells)

    def ask(self, data: bytes, model: str = "net", more: Mapping[str, bytes] = NOTHING) -> bytes:
        """Return the prediction of an input."""
        request = pb.PredictionsRequest(model_name=model, input={"data": data, **more})
        found: bytes = self.predictions(request, timeout=PATIENCE).prediction
        return found

    def pieces(self, data: bytes) -> list[bytes]:
        """Return the pieces of a stream."""
        request = pb.PredictionsRequest(model_name="net", input={"data": data})
        return [each.prediction for each in self.stream(request, timeout=PATIENCE)]

    def fault(self, call: Callable[..., Any], *arguments: Any) -> tuple[grpc.StatusCode, str]:
        """Return the status of a call that fails."""
        with pytest.raises(grpc.RpcError) as caught:
            call(*arguments)
        error: Any = caught.value
        return error.code(), error.details()


Start = Callable[..., Client]


@pytest.fixture
def start(server_process: Callable[..., ServerProcess]) -> Iterator[Start]:
    """Serve a model with gRPC on the port of HTTP."""
    clients = []

    def serve(path: Path, *options: str) -> Client:
        process = server_process(str(path), *options, env=packages())
        url = process.wait_for("listening")["url"]
        process.wait_for("ready")
        clients.append(Client(httpx.URL(url).netloc.decode()))
        return clients[-1]

    yield serve
    for client in clients:
        client.channel.close()


def write(folder: Path, handler: str = HANDLER) -> Path:
    """Write a handler."""
    folder.mkdir()
    (folder / "handler.py").write_text(textwrap.dedent(handler))
    return folder


def test_predictions(start: Start, tmp_path: Path) -> None:
    client = start(write(tmp_path / "net"))
    assert json.loads(client.ping(pb.Empty(), timeout=PATIENCE).health) == {"status": "Healthy"}
    every = bytes(range(256))
    assert client.ask(every) == every[::-1]
    large = every * 4000  # beyond what is read on the spot
    assert client.ask(large) == large[::-1]
    found = json.loads(client.ask(b"fields", more={"b c": b"x", "é": b""}))
    assert found == {"b c": "x", "data": "fields", "é": ""}
    assert client.ask(b"status") == b"sutats"  # a status is for HTTP
    assert client.ask(b"pieces") == b"0 1 2 end"
    for number in ("1", "1.0"):
        version = pb.PredictionsRequest(model_name="net", model_version=number, input={"body": b"ab"})
        assert client.predictions(version, timeout=PATIENCE).prediction == b"ba"
    assert client.pieces(b"pieces") == [b"0 ", b"1 ", b"2 ", b"end"]
    assert client.pieces(b"ab") == [b"ba"]


def test_statuses(start: Start, tmp_path: Path) -> None:
    client = start(write(tmp_path / "net"))
    assert client.fault(client.ask, b"refuse") == (STATUS.RESOURCE_EXHAUSTED, "not this one")
    assert client.fault(client.ask, b"memory") == (STATUS.INTERNAL, "Out of resources")
    assert client.fault(client.ask, b"broken")[0] is STATUS.UNAVAILABLE
    assert client.fault(client.pieces, b"refuse") == (STATUS.RESOURCE_EXHAUSTED, "not this one")
    assert client.fault(client.pieces, b"half")[0] is STATUS.UNAVAILABLE
    assert client.fault(client.ask, b"half")[0] is STATUS.UNAVAILABLE
    assert client.fault(client.ask, b"x", "other")[0] is STATUS.INTERNAL  # as there
    assert client.fault(client.ask, b"x", "") == (STATUS.INTERNAL, "Parameter model_name is required.")
    request = pb.PredictionsRequest(model_name="net", input={str(number): b"" for number in range(200)})
    assert client.fault(client.predictions, request)[0] is STATUS.INVALID_ARGUMENT
    assert client.fault(lambda: client.ask(b"x", more={'"': b""})) == (
        STATUS.INVALID_ARGUMENT,
        "input: a name has no quotes, no backslashes and no control characters",
    )
    raw: Any = client.channel
    wrong = raw.unary_unary(f"/{SERVICE}/Predictions")
    for message in (b"\x08\x01", b"\x0a\xff", b"\x0a\x01\xff"):
        assert client.fault(wrong, message)[0] is STATUS.INVALID_ARGUMENT
    assert client.ask(b"ab") == b"ba"


def test_sequences(start: Start, tmp_path: Path) -> None:
    """Requests of a stream run in their order, and a fault of one does not end it."""
    client = start(write(tmp_path / "net"))

    def requests() -> Iterator[pb.PredictionsRequest]:
        for sequence, data in (("a", b"1"), ("b", b"5"), ("a", b"2"), ("", b"9"), ("a", b"x"), ("a", b"4")):
            yield pb.PredictionsRequest(model_name="net", sequenceId=sequence or None, input={"data": data})
        started = {"data": b"7", "ts_request_sequence_start": b"true"}
        yield pb.PredictionsRequest(model_name="net", input=started)

    answers = list(client.sequence(requests(), timeout=PATIENCE))
    assert [each.prediction for each in answers] == [b"1", b"5", b"3", b"", b"", b"7", b"7"]
    assert [each.sequenceId for each in answers[:3]] == ["a", "b", "a"]
    assert answers[6].sequenceId.startswith("ts-seq-")
    missing, broken = answers[3].status, answers[4].status
    assert (missing.code, missing.message) == (STATUS.INTERNAL.value[0], "Parameter sequenceId is required.")
    assert broken.code == STATUS.UNAVAILABLE.value[0]


def test_other_models(start: Start, tmp_path: Path) -> None:
    """A model of our own is asked by its inputs, or by a whole one, with `--api torchserve`."""
    text = """
        def run(text: str, times: int = 1) -> str:
            return text * times
    """
    client = start(write_model(tmp_path / "net", text), "--api", "torchserve")
    request = pb.PredictionsRequest(model_name="net", input={"text": b"ab", "times": b"2"})
    assert client.predictions(request, timeout=PATIENCE).prediction == b'"abab"'
    assert client.ask(b'{"text": "c"}') == b'"c"'
    assert client.ask(b"plain") == b'"plain"'
    status, text = client.fault(lambda: client.ask(b"x", more={"more": b"y"}))
    assert status is STATUS.INVALID_ARGUMENT
    assert text.endswith(": the model has no such input")


def test_reflection_and_servers_without_it(start: Start, tmp_path: Path) -> None:
    client = start(write(tmp_path / "net"))
    assert SERVICE in ProtoReflectionDescriptorDatabase(client.channel).get_services()
    plain = start(write_model(tmp_path / "plain", "def run(text: str) -> str:\n    return text\n"))
    assert SERVICE not in ProtoReflectionDescriptorDatabase(plain.channel).get_services()
    assert plain.fault(plain.ask, b"x")[0] is STATUS.UNIMPLEMENTED
