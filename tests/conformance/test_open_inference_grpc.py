"""The Open Inference Protocol over gRPC: one real server of several models, Triton's client and bare stubs."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import struct
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import serialize_byte_tensor

from geartrain import __version__
from geartrain.transport.grpc import open_inference_pb2 as ours
from tests.support.gates import Gates
from tests.support.servers import ServerProcess, start_process
from tests.support.triton import grpc_channel, triton_grpc

MODELS: Final = {
    "ident": """
        import numpy as np
        from typing import TypedDict
        from jaxtyping import Float32
        from geartrain import BaseRunner

        class Out(TypedDict):
            y: Float32[np.ndarray, "rows columns"]

        class Runner(BaseRunner):
            def run(self, x: Float32[np.ndarray, "rows columns"]) -> Out:
                return {"y": x}
    """,
    "two": """
        import numpy as np
        from typing import TypedDict
        from jaxtyping import Int32
        from geartrain import BaseRunner

        class Out(TypedDict):
            sum: Int32[np.ndarray, "2"]
            diff: Int32[np.ndarray, "2"]

        class Runner(BaseRunner):
            def run(self, a: Int32[np.ndarray, "2"], b: Int32[np.ndarray, "2"]) -> Out:
                return {"sum": a + b, "diff": a - b}
    """,
    "types": """
        import numpy as np
        from typing import TypedDict
        from jaxtyping import Bool, Float32, Float64, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64
        from geartrain import BaseRunner

        A = np.ndarray

        class Out(TypedDict):
            BOOL: Bool[A, "n"]
            INT8: Int8[A, "n"]
            INT16: Int16[A, "n"]
            INT32: Int32[A, "n"]
            INT64: Int64[A, "n"]
            UINT8: UInt8[A, "n"]
            UINT16: UInt16[A, "n"]
            UINT32: UInt32[A, "n"]
            UINT64: UInt64[A, "n"]
            FP32: Float32[A, "n"]
            FP64: Float64[A, "n"]
            BYTES: list[bytes]

        class Runner(BaseRunner):
            def run(
                self, BOOL: Bool[A, "n"], INT8: Int8[A, "n"], INT16: Int16[A, "n"], INT32: Int32[A, "n"],
                INT64: Int64[A, "n"], UINT8: UInt8[A, "n"], UINT16: UInt16[A, "n"], UINT32: UInt32[A, "n"],
                UINT64: UInt64[A, "n"], FP32: Float32[A, "n"], FP64: Float64[A, "n"],
                BYTES: list[bytes],
            ) -> Out:
                given = dict(locals())
                return {name: given[name] for name in Out.__annotations__}
    """,
    "half": """
        import numpy as np
        from jaxtyping import Float16
        from geartrain import BaseRunner

        class Runner(BaseRunner):
            def run(self, x: Float16[np.ndarray, "n"]) -> Float16[np.ndarray, "n"]:
                return x
    """,
    "words": """
        import os
        from geartrain import BaseRunner, current_scope

        class Runner(BaseRunner):
            def run(self, text: str, times: int = 1, fail: str = "") -> str:
                scope = current_scope()
                if fail == "raise":
                    raise ValueError(text)
                if fail == "exit":
                    os._exit(3)
                if scope.parameters:
                    scope.record_metric("seen", repr(sorted(scope.parameters.items())))
                return text * times
    """,
    "tokens": """
        import pathlib
        from collections.abc import Iterator
        from geartrain import BaseRunner, CancelationException, concurrent, streaming

        class Runner(BaseRunner):
            @streaming
            def run(self, n: int, word: str = "t", fail: bool = False, gates: str = "") -> Iterator[str]:
                try:
                    for index in range(n):
                        yield f"{word}{index}"
                    if gates:
                        pathlib.Path(gates, "there").write_bytes(b"x")
                        with open(pathlib.Path(gates, "go"), "rb", buffering=0) as gate:
                            gate.read(1)
                except CancelationException:
                    pathlib.Path(gates, "canceled").write_bytes(b"x")
                    raise
                if fail:
                    raise ValueError("no more")
    """,
    "waits": """
        import asyncio, pathlib
        from geartrain import BaseRunner, concurrent

        class Runner(BaseRunner):
            @concurrent(max=4)
            async def run(self, gates: str = "", text: str = "") -> str:
                if gates:
                    pathlib.Path(gates, "there").write_bytes(b"x")
                    try:
                        await asyncio.sleep(600)
                    except asyncio.CancelledError:
                        pathlib.Path(gates, "canceled").write_bytes(b"x")
                        raise
                return text
    """,
    "multi/1": """
        from geartrain import BaseRunner

        class Runner(BaseRunner):
            def run(self, x: float) -> str:
                return "one"
    """,
    "multi/10": """
        from geartrain import BaseRunner

        class Runner(BaseRunner):
            def run(self, x: float) -> str:
                return "ten"
    """,
    "broken": """
        from geartrain import BaseRunner

        class Runner(BaseRunner):
            def setup(self) -> None:
                raise RuntimeError("boom")

            def run(self, x: float) -> str:
                return ""
    """,
}
WITH_LIMIT: Final = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
STATUS: Final = grpc.StatusCode


def write_repository(root: Path) -> Path:
    for name, source in MODELS.items():
        folder = root / name
        folder.mkdir(parents=True)
        (folder / "run.py").write_text(textwrap.dedent(source))
    return root


class Live:
    """The server, and everything that talks to it."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self.address = process.wait_for("listening-grpc")["url"]
        self.channel = grpc_channel(self.address, WITH_LIMIT)
        self.stub = GRPCInferenceServiceStub(self.channel)
        self.health: Any = health_pb2_grpc.HealthStub(self.channel)
        self.client = triton_grpc(triton.InferenceServerClient, self.address)
        self.wait_until_loaded()

    def wait_until_loaded(self) -> None:
        """Wait for each model, the broken one too."""
        until = time.monotonic() + 40
        while True:
            models = self.stub.RepositoryIndex(pb.RepositoryIndexRequest()).models
            if len(models) == len(MODELS) and all(each.state in {"READY", "UNAVAILABLE"} for each in models):
                return
            assert time.monotonic() < until, f"not all models are loaded: {models}"
            time.sleep(0.02)

    def infer(self, model: str, *inputs: Any, timeout: float = 20, **fields: Any) -> pb.ModelInferResponse:
        return self.stub.ModelInfer(request(model, *inputs, **fields), timeout=timeout)

    def close(self) -> None:
        self.client.close()
        self.channel.close()
        self.process.end()


Input = pb.ModelInferRequest.InferInputTensor
Output = pb.ModelInferRequest.InferRequestedOutputTensor


def request(model: str, *inputs: Any, **fields: Any) -> Any:
    """A request with raw contents for inputs given as arrays or texts by name, or with inputs as they are."""
    raw = list(fields.pop("raw_input_contents", []))
    tensors = []
    for each in inputs:
        if isinstance(each, Input):
            tensors.append(each)
        else:
            name, datatype, shape, data = each
            tensors.append(Input(name=name, datatype=datatype, shape=shape))
            raw.append(data)
    return pb.ModelInferRequest(model_name=model, inputs=tensors, raw_input_contents=raw, **fields)


def text(name: str, value: str) -> tuple[str, str, list[int], bytes]:
    data = value.encode()
    return name, "BYTES", [1], struct.pack("<I", len(data)) + data


def integer(name: str, value: int) -> tuple[str, str, list[int], bytes]:
    return name, "INT64", [1], struct.pack("<q", value)


def flag(name: str, *, value: bool) -> tuple[str, str, list[int], bytes]:
    return name, "BOOL", [1], bytes([value])


def fp32(name: str, *values: float, shape: list[int] | None = None) -> tuple[str, str, list[int], bytes]:
    return name, "FP32", [1, len(values)] if shape is None else shape, struct.pack(f"<{len(values)}f", *values)


def int32(name: str, *values: int) -> tuple[str, str, list[int], bytes]:
    return name, "INT32", [len(values)], struct.pack(f"<{len(values)}i", *values)


def text_of(response: Any, index: int = 0) -> str:
    data: bytes = response.raw_output_contents[index]
    return data[4:].decode()


def refused(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    """The status of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    return error.code(), error.details()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    root = write_repository(tmp_path_factory.mktemp("repository") / "models")
    process = start_process(str(root), "--grpc-port", "0", "--shared-memory", "--restart", "on-crash")
    server = Live(process)
    yield server
    server.close()


# health and metadata


def test_server_is_live_and_models_are_ready_each_for_itself(live: Live) -> None:
    assert live.stub.ServerLive(pb.ServerLiveRequest()).live
    assert live.client.is_server_live()
    assert live.client.is_model_ready("ident")
    assert live.client.is_model_ready("multi", "10")
    assert live.client.is_model_ready("multi", "01")


@pytest.mark.parametrize(("name", "version"), [("nope", ""), ("Ident", ""), ("broken", ""), ("ident", "7"), ("", "")])
def test_model_that_is_not_there_is_not_ready_and_no_error(live: Live, name: str, version: str) -> None:
    assert not live.stub.ModelReady(pb.ModelReadyRequest(name=name, version=version)).ready


def test_server_is_not_ready_while_a_model_is_broken(live: Live) -> None:
    assert not live.stub.ServerReady(pb.ServerReadyRequest()).ready


@pytest.mark.parametrize("method", ["ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"])
def test_version_that_is_no_number_is_the_clients_mistake(live: Live, method: str) -> None:
    message = getattr(pb, f"{method}Request")(name="ident", version="abc")
    code, details = refused(lambda: getattr(live.stub, method)(message))
    assert code is STATUS.INVALID_ARGUMENT
    assert "failed to get model version from 'abc'" in details


@pytest.mark.one_server(reason="it names shared memory, which replicas do not have with clients")
def test_server_tells_who_it_is(live: Live) -> None:
    metadata = live.stub.ServerMetadata(pb.ServerMetadataRequest())
    assert (metadata.name, metadata.version) == ("geartrain", __version__)
    assert {"model_repository", "system_shared_memory", "statistics"} <= set(metadata.extensions)


def test_metadata_names_inputs_outputs_and_versions(live: Live) -> None:
    metadata = live.client.get_model_metadata("ident", as_json=True)
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "-1"]}]
    assert metadata["outputs"] == [{"name": "y", "datatype": "FP32", "shape": ["-1", "-1"]}]
    assert metadata["versions"] == ["1"]
    assert metadata["platform"]
    assert live.client.get_model_metadata("multi").versions == ["1", "10"]
    assert live.client.get_model_metadata("multi", "1").versions == ["1"]


def test_o6_metadata_has_properties(live: Live) -> None:
    call: Any = live.channel.unary_unary(
        "/inference.GRPCInferenceService/ModelMetadata",
        request_serializer=ours.ModelMetadataRequest.SerializeToString,
        response_deserializer=ours.ModelMetadataResponse.FromString,
    )
    found = {name: dict(call(ours.ModelMetadataRequest(name=name)).properties) for name in ("ident", "tokens")}
    assert found == {
        "ident": {"kind": "code", "streaming": "false"},
        "tokens": {"kind": "code", "streaming": "true"},
    }


def test_config_tells_types_dimensions_and_whether_it_streams(live: Live) -> None:
    config = live.client.get_model_config("types").config
    assert {each.name: pb_type(each.data_type) for each in config.input} == {
        each: "TYPE_STRING" if each == "BYTES" else f"TYPE_{each}" for each in RAW
    }
    assert not config.model_transaction_policy.decoupled
    assert live.client.get_model_config("tokens").config.model_transaction_policy.decoupled
    optional = {each.name: each.optional for each in live.client.get_model_config("words").config.input}
    assert optional == {"text": False, "times": True, "fail": True}


def pb_type(number: int) -> str:
    name: str = triton.model_config_pb2.DataType.Name(number)
    return name


@pytest.mark.parametrize("method", ["ModelMetadata", "ModelConfig"])
@pytest.mark.parametrize(
    ("name", "version", "wanted"),
    [
        ("nope", "", "Request for unknown model: 'nope' is not found"),
        ("", "", "Request for unknown model: '' is not found"),
        ("multi", "7", "Request for unknown model: 'multi' version 7 is not found"),
    ],
)
def test_what_is_not_there_is_not_found(live: Live, method: str, name: str, version: str, wanted: str) -> None:
    message = getattr(pb, f"{method}Request")(name=name, version=version)
    code, details = refused(lambda: getattr(live.stub, method)(message))
    assert code is STATUS.NOT_FOUND
    assert wanted in details


def test_model_whose_setup_has_failed_is_described(live: Live) -> None:
    metadata = live.stub.ModelMetadata(pb.ModelMetadataRequest(name="broken"))
    assert (metadata.name, list(metadata.versions), len(metadata.outputs)) == ("broken", ["1"], 1)
    config = live.stub.ModelConfig(pb.ModelConfigRequest(name="broken", version="1")).config
    assert config.instance_group[0].count == 1


@pytest.mark.one_server(reason="each replica counts what it has run itself")
def test_statistics_count_what_has_run(live: Live) -> None:
    before = live.client.get_inference_statistics("two").model_stats[0]
    live.infer("two", int32("a", 1, 2), int32("b", 3, 4))
    refused(lambda: live.infer("two", int32("a", 1, 2)))
    after = live.client.get_inference_statistics("two").model_stats[0]
    assert after.inference_count == before.inference_count + 1
    assert after.execution_count == before.execution_count + 1
    assert after.inference_stats.success.ns > before.inference_stats.success.ns
    assert abs(after.last_inference / 1000 - time.time()) < 60
    everything = {(each.name, each.version) for each in live.client.get_inference_statistics().model_stats}
    assert {("two", "1"), ("multi", "1"), ("multi", "10")} <= everything


@pytest.mark.parametrize(("name", "version"), [("nope", ""), ("two", "7")])
def test_statistics_of_what_is_not_there(live: Live, name: str, version: str) -> None:
    code, details = refused(lambda: live.stub.ModelStatistics(pb.ModelStatisticsRequest(name=name, version=version)))
    assert code is STATUS.INVALID_ARGUMENT
    assert f"requested model '{name}' is not available" in details


# inference

RAW: Final[dict[str, Any]] = {
    "BOOL": np.array([True, False]),
    "INT8": np.array([-128, 127], np.int8),
    "INT16": np.array([-(2**15), 2**15 - 1], np.int16),
    "INT32": np.array([-(2**31), 2**31 - 1], np.int32),
    "INT64": np.array([-(2**63), 2**63 - 1], np.int64),
    "UINT8": np.array([0, 255], np.uint8),
    "UINT16": np.array([0, 2**16 - 1], np.uint16),
    "UINT32": np.array([0, 2**32 - 1], np.uint32),
    "UINT64": np.array([0, 2**64 - 1], np.uint64),
    "FP32": np.array([0.1, np.inf], np.float32),
    "FP64": np.array([0.1, -np.inf], np.float64),
    "BYTES": np.array([b"", b"a\0\xff"], np.object_),
}
FIELDS: Final = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def triton_input(name: str, datatype: str, value: Any) -> triton.InferInput:
    made = triton.InferInput(name, list(value.shape), datatype)
    return made.set_data_from_numpy(value)


def test_every_datatype_raw(live: Live) -> None:
    result = live.client.infer("types", [triton_input(name, name, value) for name, value in RAW.items()])
    for name, value in RAW.items():
        got = result.as_numpy(name)
        assert result.get_output(name).datatype == name
        assert got.dtype == value.dtype
        assert got.tolist() == value.tolist(), name


def test_every_datatype_typed(live: Live) -> None:
    inputs = [
        Input(name=name, datatype=name, shape=[2], contents=pb.InferTensorContents(**{FIELDS[name]: value.tolist()}))
        for name, value in RAW.items()
    ]
    response = live.infer("types", *inputs)
    raw = live.infer("types", *((name, name, [2], contents_of(value)) for name, value in RAW.items()))
    assert response.raw_output_contents == raw.raw_output_contents
    assert not any(each.HasField("contents") for each in response.outputs)


def contents_of(value: Any) -> bytes:
    data: bytes = serialize_byte_tensor(value).item() if value.dtype == np.object_ else value.tobytes()
    return data


def test_half_precision_comes_raw_only(live: Live) -> None:
    halves = np.array([0.5, -65504.0], np.float16)
    result = live.client.infer("half", [triton_input("x", "FP16", halves)])
    assert result.as_numpy("output").tolist() == halves.tolist()
    typed = Input(name="x", datatype="FP16", shape=[1], contents=pb.InferTensorContents(fp32_contents=[1]))
    code, details = refused(lambda: live.infer("half", typed))
    assert code is STATUS.INVALID_ARGUMENT
    assert "send it in raw_input_contents" in details


def test_id_and_version_come_back_and_the_newest_version_answers(live: Live) -> None:
    x = ("x", "FP64", [1], bytes(8))
    answers = {version: live.infer("multi", x, model_version=version, id="42") for version in ("", "1", "01", "10")}
    assert {version: text_of(answer) for version, answer in answers.items()} == {
        "": "ten",
        "1": "one",
        "01": "one",
        "10": "ten",
    }
    assert [answers[version].model_version for version in ("", "1", "10")] == ["10", "1", "10"]
    assert {answer.id for answer in answers.values()} == {"42"}


def test_only_the_outputs_asked_for_come_in_the_models_order(live: Live) -> None:
    inputs = (int32("a", 1, 2), int32("b", 3, 5))
    every = live.infer("two", *inputs)
    assert [each.name for each in every.outputs] == ["sum", "diff"]
    assert every.raw_output_contents[1] == struct.pack("<2i", -2, -3)
    one = live.infer("two", *inputs, outputs=[Output(name="diff")])
    assert [each.name for each in one.outputs] == ["diff"]
    assert len(one.raw_output_contents) == 1
    both = live.infer("two", *inputs, outputs=[Output(name="diff"), Output(name="sum"), Output(name="sum")])
    assert [each.name for each in both.outputs] == ["sum", "diff"]


def test_parameters_reach_the_model_and_recorded_values_come_back(live: Live) -> None:
    parameters = {
        "b": pb.InferParameter(bool_param=True),
        "d": pb.InferParameter(double_param=0.5),
        "i": pb.InferParameter(int64_param=-5),
        "s": pb.InferParameter(string_param="é"),
        "u": pb.InferParameter(uint64_param=2**64 - 1),
    }
    response = live.infer("words", text("text", "a"), parameters=parameters)
    wanted = [("b", True), ("d", 0.5), ("i", -5), ("s", "é"), ("u", 2**64 - 1)]
    assert response.parameters["seen"].string_param == repr(wanted)
    assert set(response.parameters) == {"seen"}


def test_empty_tensor_goes_both_ways(live: Live) -> None:
    response = live.infer("ident", ("x", "FP32", [0, 3], b""))
    assert list(response.outputs[0].shape) == [0, 3]
    assert list(response.raw_output_contents) == [b""]


def test_streaming_model_is_joined_into_one_answer(live: Live) -> None:
    response = live.infer("tokens", integer("n", 3), id="7")
    assert list(response.outputs[0].shape) == [3]
    assert response.raw_output_contents[0] == b"".join(struct.pack("<I", 2) + each for each in (b"t0", b"t1", b"t2"))
    assert "triton_final_response" not in response.parameters


@pytest.mark.slow
def test_message_of_64_mebibytes_goes_both_ways(live: Live) -> None:
    data = np.arange(16 * 1024**2, dtype=np.float32).tobytes()
    response = live.infer("ident", ("x", "FP32", [4096, 4096], data), timeout=50)
    assert response.raw_output_contents[0] == data


def test_compressed_request_is_understood(live: Live) -> None:
    x = triton_input("x", "FP32", np.ones((1, 1000), np.float32))
    result = live.client.infer("ident", [x], compression_algorithm="gzip")
    assert result.as_numpy("y").shape == (1, 1000)


async def test_asyncio_client(live: Live) -> None:
    async with triton_grpc(triton_aio.InferenceServerClient, live.address) as client:
        x = triton_input("x", "FP32", np.ones((1, 2), np.float32))
        results = await asyncio.gather(*(client.infer("ident", [x], request_id=str(index)) for index in range(20)))
        assert [result.get_response().id for result in results] == [str(index) for index in range(20)]


# errors, each a row of the observed server's table

X = fp32("x", 1, 2)


@pytest.mark.parametrize(
    ("model", "inputs", "fields", "code", "details"),
    [
        ("nope", (X,), {}, STATUS.NOT_FOUND, "Request for unknown model: 'nope' is not found"),
        ("", (X,), {}, STATUS.NOT_FOUND, "Request for unknown model: '' is not found"),
        ("multi", (X,), {"model_version": "7"}, STATUS.NOT_FOUND, "'multi' version 7 is not found"),
        ("ident", (X,), {"model_version": "abc"}, STATUS.INVALID_ARGUMENT, "version from 'abc'"),
        ("broken", (X,), {}, STATUS.NOT_FOUND, "has no available versions"),
        ("ident", (), {}, STATUS.INVALID_ARGUMENT, "missing required input(s) ['x']"),
        ("two", (int32("a", 1, 2),), {}, STATUS.INVALID_ARGUMENT, "missing required input(s) ['b']"),
        ("ident", (X, X), {}, STATUS.INVALID_ARGUMENT, "input 'x' already exists in request"),
        ("ident", (fp32("zz", 1),), {}, STATUS.INVALID_ARGUMENT, "unexpected inference input 'zz'"),
        ("ident", (fp32("x", 1, shape=[1]),), {}, STATUS.INVALID_ARGUMENT, "unexpected shape for input 'x'"),
        ("ident", (fp32("x", 1, shape=[-1, 1]),), {}, STATUS.INVALID_ARGUMENT, "[-1, 1]"),
        ("two", (int32("a", 1), int32("b", 1, 2)), {}, STATUS.INVALID_ARGUMENT, "Expected [2], got [1]"),
        ("ident", (int32("x", 1),), {}, STATUS.INVALID_ARGUMENT, "INT32; the model expects FP32"),
        ("ident", (("x", "FLOAT", [1, 1], b"1234"),), {}, STATUS.INVALID_ARGUMENT, "FLOAT"),
        ("ident", (("x", "fp32", [1, 1], b"1234"),), {}, STATUS.INVALID_ARGUMENT, "fp32"),
        ("ident", (("X", "FP32", [1, 1], b"1234"),), {}, STATUS.INVALID_ARGUMENT, "unexpected inference input 'X'"),
        ("ident", (("x", "FP32", [1, 4], bytes(12)),), {}, STATUS.INVALID_ARGUMENT, "Expected 16 bytes"),
        ("ident", (("x", "FP32", [1, 4], bytes(17)),), {}, STATUS.INVALID_ARGUMENT, "got 17"),
        ("words", (("text", "BYTES", [1], b"\x0a\0\0\0abc"),), {}, STATUS.INVALID_ARGUMENT, "incomplete string data"),
        ("words", (("text", "BYTES", [1], b"\x0a\0"),), {}, STATUS.INVALID_ARGUMENT, "incomplete string length"),
        ("words", (("text", "BYTES", [1], bytes(8)),), {}, STATUS.INVALID_ARGUMENT, "number of string elements"),
        ("words", (("text", "BYTES", [1], b"\1\0\0\0\xff"),), {}, STATUS.INVALID_ARGUMENT, "not valid UTF-8"),
        ("ident", (X,), {"outputs": [Output(name="zz")]}, STATUS.INVALID_ARGUMENT, "unexpected inference output 'zz'"),
        (
            "ident",
            (Input(name="x", datatype="FP32", shape=[1, 1]),),
            {},
            STATUS.INVALID_ARGUMENT,
            "unable to find data",
        ),
        (
            "ident",
            (Input(name="x", datatype="FP32", shape=[1, 1], contents=pb.InferTensorContents(fp32_contents=[1])),),
            {"raw_input_contents": [b"1234"]},
            STATUS.INVALID_ARGUMENT,
            "contents field must not be specified when using raw_input_contents for 'x' for model 'ident'",
        ),
        (
            "ident",
            (Input(name="x", datatype="FP32", shape=[1, 1], contents=pb.InferTensorContents(int_contents=[1])),),
            {},
            STATUS.INVALID_ARGUMENT,
            "whose typed contents are fp32_contents; it has int_contents",
        ),
        (
            "ident",
            (Input(name="x", datatype="FP32", shape=[1, 3], contents=pb.InferTensorContents(fp32_contents=[1])),),
            {},
            STATUS.INVALID_ARGUMENT,
            "Expected 12 bytes",
        ),
        (
            "ident",
            (X,),
            {"parameters": {"triton_x": pb.InferParameter(bool_param=True)}},
            STATUS.INVALID_ARGUMENT,
            "'triton_x' is reserved",
        ),
    ],
)
def test_mistake_of_a_client_has_its_status(
    live: Live, model: str, inputs: tuple[Any, ...], fields: dict[str, Any], code: grpc.StatusCode, details: str
) -> None:
    got, said = refused(lambda: live.infer(model, *inputs, **fields))
    assert got is code
    assert details in said
    assert "/run.py" not in said
    assert live.infer("ident", X).raw_output_contents


@pytest.mark.parametrize("method", ["ModelInfer", "ModelMetadata", "RepositoryIndex"])
@pytest.mark.parametrize("size", [3, 100_000])
def test_t5_unparsable_request_is_the_clients_mistake(live: Live, method: str, size: int) -> None:
    call: Any = live.channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
    code, details = refused(lambda: call(b"\x0a" + b"\xff" * size))
    assert code is STATUS.INVALID_ARGUMENT
    assert "Unable to parse request" in details


def test_unknown_method_is_unimplemented(live: Live) -> None:
    call: Any = live.channel.unary_unary("/inference.GRPCInferenceService/Nonsense")
    assert refused(lambda: call(b""))[0] is STATUS.UNIMPLEMENTED


def test_t1_classification_is_refused_and_kills_nothing(live: Live) -> None:
    output = Output(name="output", parameters={"classification": pb.InferParameter(int64_param=1)})
    code, details = refused(lambda: live.infer("words", text("text", "a"), outputs=[output]))
    assert code is STATUS.INVALID_ARGUMENT
    assert "classification" in details
    assert live.client.is_server_live()


@pytest.mark.one_server(reason="a client cannot ask for the replica whose worker died")
def test_t2_worker_that_dies_is_restarted_and_its_request_told(live: Live) -> None:
    code, _ = refused(lambda: live.infer("words", text("text", "a"), text("fail", "exit")))
    assert code is STATUS.INTERNAL
    until = time.monotonic() + 40
    while not live.client.is_model_ready("words"):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert text_of(live.infer("words", text("text", "back"))) == "back"


@pytest.mark.parametrize("shape", [[2**40, 2**40], [2**62, 2], [2**63 - 1, 2**63 - 1], [2**32, 2**32, 2**32]])
@pytest.mark.parametrize("model", ["ident", "words"])
def test_t3_product_of_a_shape_that_overflows_is_refused(live: Live, shape: list[int], model: str) -> None:
    tensor = ("x", "FP32", shape, bytes(16)) if model == "ident" else ("text", "BYTES", shape, bytes(16))
    assert refused(lambda: live.infer(model, tensor))[0] is STATUS.INVALID_ARGUMENT
    assert live.infer("ident", X).raw_output_contents


def test_t4_integer_out_of_range_is_refused(live: Live) -> None:
    a = Input(name="a", datatype="INT8", shape=[2], contents=pb.InferTensorContents(int_contents=[1, 300]))
    code, details = refused(lambda: live.infer("two", a))
    assert code is STATUS.INVALID_ARGUMENT
    assert "300 at index 1, which is out of the range of INT8" in details


def test_t10_surplus_raw_contents_are_refused(live: Live) -> None:
    code, details = refused(lambda: live.infer("ident", X, raw_input_contents=[b"1234"]))
    assert code is STATUS.INVALID_ARGUMENT
    assert "raw_input_contents has 2 entries" in details


def test_t19_model_error_tells_the_message_and_no_paths(live: Live) -> None:
    code, details = refused(lambda: live.infer("words", text("text", "the reason"), text("fail", "raise")))
    assert code is STATUS.INTERNAL
    assert "the reason" in details
    assert "run.py" not in details
    assert "Traceback" not in details


def test_long_error_is_cut_to_what_a_status_can_carry(live: Live) -> None:
    code, details = refused(lambda: live.infer("words", text("text", "ä\n" * 100_000), text("fail", "raise")))
    assert code is STATUS.INTERNAL
    assert details.endswith("(cut)")


# a client that gives up


def test_deadline_ends_the_run_and_gives_the_slot_back(live: Live, gates: Gates) -> None:
    call = live.stub.ModelInfer.future(request("waits", text("gates", str(gates["there"].path.parent))), timeout=0.5)
    canceled = gates["canceled"]
    gates["there"].wait()
    assert call.exception().code() is STATUS.DEADLINE_EXCEEDED
    canceled.wait()
    assert text_of(live.infer("waits", text("text", "free"))) == "free"


def test_cancel_by_the_client_ends_the_run(live: Live, gates: Gates) -> None:
    canceled = gates["canceled"]
    call = live.stub.ModelInfer.future(request("waits", text("gates", str(gates["there"].path.parent))))
    gates["there"].wait()
    call.cancel()
    canceled.wait()


def test_connection_that_breaks_ends_the_run(live: Live, gates: Gates) -> None:
    canceled = gates["canceled"]
    with grpc_channel(live.address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        call = stub.ModelInfer.future(request("waits", text("gates", str(gates["there"].path.parent))))
        gates["there"].wait()
    assert call.exception() is not None
    canceled.wait()


@pytest.mark.one_server(reason="another replica has a free slot")
def test_t16_time_in_the_queue_is_bounded_by_the_client(live: Live, gates: Gates) -> None:
    """One slot, held by a stream; the next request waits no longer than it said."""
    go, there = gates["go"], gates["there"]
    stream = live.stub.ModelStreamInfer(
        iter([request("tokens", integer("n", 0), text("gates", str(go.path.parent)))]), timeout=30
    )
    there.wait()
    timeout = {"timeout": pb.InferParameter(int64_param=50_000)}
    code, details = refused(lambda: live.infer("tokens", integer("n", 1), parameters=timeout))
    assert code is STATUS.DEADLINE_EXCEEDED
    assert details == "timed out after 0.05 s"
    go.open()
    assert list(stream) == []


# streams


class Stream:
    """Triton's client with a stream open."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self._answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client = triton_grpc(triton.InferenceServerClient, live.address)
        self.client.start_stream(lambda result, error: self._answers.put((result, error)))

    def send(self, model: str, *inputs: Any, **options: Any) -> None:
        made = []
        for name, datatype, shape, data in inputs:
            tensor = triton.InferInput(name, shape, datatype)
            tensor._raw_content = data
            made.append(tensor)
        self.client.async_stream_infer(model, made, **options)

    def next(self) -> Any:
        result, error = self._answers.get(timeout=20)
        return error if result is None else result.get_response()

    def close(self) -> None:
        self.client.stop_stream()
        self.client.close()


@pytest.fixture
def stream(live: Live) -> Iterator[Stream]:
    opened = Stream(live)
    yield opened
    opened.close()


def final(response: Any) -> bool:
    flag_: bool = response.parameters["triton_final_response"].bool_param
    return flag_


def test_stream_answers_a_plain_model_once(stream: Stream) -> None:
    stream.send("words", text("text", "a"), request_id="1")
    response = stream.next()
    assert (response.id, text_of(response), final(response)) == ("1", "a", True)


def test_empty_final_response_changes_nothing_for_a_plain_model(stream: Stream) -> None:
    stream.send("words", text("text", "a"), request_id="1", enable_empty_final_response=True)
    assert stream.next().id == "1"
    stream.send("words", text("text", "b"), request_id="2")
    assert stream.next().id == "2"


def test_stream_gives_each_yield_as_a_response(stream: Stream) -> None:
    stream.send("tokens", integer("n", 3), request_id="1")
    stream.send("words", text("text", "a"), request_id="2")
    answers = [stream.next() for _ in range(4)]
    yielded = [each for each in answers if each.id == "1"]
    assert [text_of(each) for each in yielded] == ["t0", "t1", "t2"]
    assert [final(each) for each in yielded] == [False] * 3
    assert {(each.model_name, each.model_version) for each in yielded} == {("tokens", "1")}


def test_empty_final_response_ends_a_stream_of_yields(stream: Stream) -> None:
    stream.send("tokens", integer("n", 1), request_id="1", enable_empty_final_response=True)
    assert text_of(stream.next()) == "t0"
    last = stream.next()
    assert (last.model_name, last.model_version, last.id) == ("tokens", "", "1")
    assert final(last)
    assert not last.outputs


def test_model_that_yields_nothing_answers_nothing_but_the_end(stream: Stream) -> None:
    stream.send("tokens", integer("n", 0), request_id="1")
    stream.send("tokens", integer("n", 0), request_id="2", enable_empty_final_response=True)
    last = stream.next()
    assert (last.id, final(last)) == ("2", True)


def test_requests_of_one_stream_run_at_once(live: Live, gates: Gates) -> None:
    """The first is held by a gate that the test opens only when the second has been answered."""
    go, there = gates["go"], gates["there"]
    sent: queue.Queue[Any] = queue.Queue()
    responses = live.stub.ModelStreamInfer(iter(sent.get, None), timeout=30)
    sent.put(request("tokens", integer("n", 1), text("gates", str(go.path.parent)), id="held"))
    there.wait()
    sent.put(request("words", text("text", "quick"), id="quick"))
    assert [next(responses).infer_response.id for _ in range(2)] == ["held", "quick"]
    go.open()
    sent.put(None)
    assert list(responses) == []


def test_error_of_a_request_leaves_the_stream_usable(live: Live) -> None:
    unparsable = b"\x0a\xff"
    messages = [
        request("nope", X, id="a").SerializeToString(),
        request("ident", id="b").SerializeToString(),
        unparsable,
        request(
            "words", parameters={"triton_enable_empty_final_response": pb.InferParameter(string_param="")}, id="c"
        ).SerializeToString(),
        request("ident", X, id="d").SerializeToString(),
    ]
    call: Any = live.channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer", None, pb.ModelStreamInferResponse.FromString
    )
    answers = {each.infer_response.id: each for each in call(iter(messages), timeout=20)}
    assert answers["a"].error_message == "Request for unknown model: 'nope' is not found"
    assert not answers["a"].infer_response.parameters
    assert "missing required input(s) ['x']" in answers["b"].error_message
    assert "Unable to parse request" in answers[""].error_message
    assert "triton_enable_empty_final_response" in answers["c"].error_message
    assert not answers["d"].error_message
    assert final(answers["d"].infer_response)


def test_error_of_a_model_comes_after_what_it_gave_and_is_final(live: Live) -> None:
    asked = [request("tokens", integer("n", 1), flag("fail", value=True), id="z")]
    first, last = live.stub.ModelStreamInfer(iter(asked), timeout=20)
    assert text_of(first.infer_response) == "t0"
    assert "no more" in last.error_message
    assert (last.infer_response.model_name, last.infer_response.id) == ("tokens", "z")
    assert final(last.infer_response)


def test_client_that_leaves_the_stream_ends_what_runs(live: Live, gates: Gates) -> None:
    there, canceled, _ = gates["there"], gates["canceled"], gates["go"]
    sent: queue.Queue[Any] = queue.Queue()
    responses = live.stub.ModelStreamInfer(iter(sent.get, None))
    sent.put(request("tokens", integer("n", 1), text("gates", str(there.path.parent))))
    assert text_of(next(responses).infer_response) == "t0"
    there.wait()
    responses.cancel()
    sent.put(None)
    canceled.wait()
    assert len(live.infer("tokens", integer("n", 1)).outputs) == 1


async def test_asyncio_client_streams_many_requests(live: Live) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for index in range(200):
            x = triton_input("x", "FP32", np.full((1, 2), index, np.float32))
            yield {"model_name": "ident", "inputs": [x], "request_id": str(index)}

    async with triton_grpc(triton_aio.InferenceServerClient, live.address) as client:
        got = {}
        async for result, error in client.stream_infer(requests()):
            assert error is None
            got[result.get_response().id] = result.as_numpy("y")[0, 0]
    assert got == {str(index): float(index) for index in range(200)}


# repository and shared memory


def test_repository_index_has_every_version_with_its_state(live: Live) -> None:
    models = {(each.name, each.version): each for each in live.client.get_model_repository_index().models}
    assert models["multi", "1"].state == models["multi", "10"].state == "READY"
    assert models["broken", "1"].state == "UNAVAILABLE"
    assert "boom" in models["broken", "1"].reason
    ready = live.stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=True)).models
    assert "broken" not in {each.name for each in ready}


@pytest.mark.one_server(reason="replicas refuse administration")
@pytest.mark.parametrize(
    ("method", "message", "code", "details"),
    [
        ("RepositoryIndex", pb.RepositoryIndexRequest(repository_name="r"), STATUS.UNIMPLEMENTED, "repository_name"),
        (
            "RepositoryModelLoad",
            pb.RepositoryModelLoadRequest(repository_name="r", model_name="ident"),
            STATUS.UNIMPLEMENTED,
            "repository_name",
        ),
        (
            "RepositoryModelLoad",
            pb.RepositoryModelLoadRequest(
                model_name="ident", parameters={"bogus": pb.ModelRepositoryParameter(int64_param=1)}
            ),
            STATUS.INVALID_ARGUMENT,
            "unrecognized load parameter 'bogus'.",
        ),
        ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="nope"), STATUS.NOT_FOUND, "nope"),
        ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="nope"), STATUS.NOT_FOUND, "nope"),
    ],
)
def test_mistake_with_the_repository_has_its_status(
    live: Live, method: str, message: Any, code: grpc.StatusCode, details: str
) -> None:
    got, said = refused(lambda: getattr(live.stub, method)(message))
    assert got is code
    assert details in said


@pytest.mark.one_server(reason="replicas refuse administration")
def test_model_is_unloaded_and_loaded_again(live: Live) -> None:
    live.client.unload_model("two")
    assert not live.client.is_model_ready("two")
    code, details = refused(lambda: live.infer("two", int32("a", 1, 2), int32("b", 3, 4)))
    assert code is STATUS.NOT_FOUND
    assert "has no available versions" in details
    live.client.load_model("two")
    assert live.client.is_model_ready("two")
    assert live.infer("two", int32("a", 1, 2), int32("b", 3, 4)).outputs


@contextlib.contextmanager
def shared_object(data: bytes) -> Iterator[str]:
    """A shared memory object of the client's; its key."""
    import multiprocessing.shared_memory

    memory = multiprocessing.shared_memory.SharedMemory(create=True, size=len(data))
    memory.buf[: len(data)] = data  # type: ignore[index]  # it is there until it is closed
    try:
        yield memory.name
    finally:
        memory.close()
        memory.unlink()


def place(region: str, size: int, offset: int = 0) -> dict[str, Any]:
    return {
        "shared_memory_region": pb.InferParameter(string_param=region),
        "shared_memory_byte_size": pb.InferParameter(int64_param=size),
        "shared_memory_offset": pb.InferParameter(int64_param=offset),
    }


@pytest.mark.one_server(reason="replicas have no shared memory with clients")
def test_tensors_travel_in_shared_memory(live: Live) -> None:
    values = struct.pack("<4f", 1, 2, 3, 4)
    with shared_object(bytes(16) + values) as key:
        live.stub.SystemSharedMemoryRegister(
            pb.SystemSharedMemoryRegisterRequest(name="mine", key=f"/{key}", offset=0, byte_size=32)
        )
        status = live.client.get_system_shared_memory_status("mine").regions["mine"]
        assert (status.name, status.key, status.offset, status.byte_size) == ("mine", f"/{key}", 0, 32)
        x = Input(name="x", datatype="FP32", shape=[2, 2], parameters=place("mine", 16, 16))
        got = live.infer("ident", x)
        assert list(got.raw_output_contents) == [values]
        placed = live.infer("ident", x, outputs=[Output(name="y", parameters=place("mine", 16))])
        assert list(placed.raw_output_contents) == [b""]
        assert placed.outputs[0].parameters["shared_memory_region"].string_param == "mine"
        again = live.infer("ident", Input(name="x", datatype="FP32", shape=[2, 2], parameters=place("mine", 16)))
        assert list(again.raw_output_contents) == [values]
        code, details = refused(lambda: live.infer("ident", x, outputs=[Output(name="y", parameters=place("mine", 8))]))
        assert code is STATUS.INVALID_ARGUMENT
        assert "should be at least 16 bytes" in details
        taken = pb.SystemSharedMemoryRegisterRequest(name="mine", key=key, byte_size=8)
        assert refused(lambda: live.stub.SystemSharedMemoryRegister(taken))[0] is STATUS.ALREADY_EXISTS
        live.client.unregister_system_shared_memory("mine")
        assert not live.client.get_system_shared_memory_status().regions


@pytest.mark.one_server(reason="replicas have no shared memory with clients")
@pytest.mark.parametrize(
    ("parameters", "code", "details"),
    [
        (place("nowhere", 16), STATUS.NOT_FOUND, "Unable to find shared memory region: 'nowhere'"),
        ({"shared_memory_region": pb.InferParameter(string_param="r")}, STATUS.INVALID_ARGUMENT, "byte_size' must be"),
        ({"shared_memory_byte_size": pb.InferParameter(int64_param=1)}, STATUS.INVALID_ARGUMENT, "name of a region"),
        (place("r", -1), STATUS.INVALID_ARGUMENT, "0 or more"),
        (place("r", 1, -1), STATUS.INVALID_ARGUMENT, "0 or more"),
    ],
)
def test_wrong_place_in_shared_memory_is_named(
    live: Live, parameters: dict[str, Any], code: grpc.StatusCode, details: str
) -> None:
    x = Input(name="x", datatype="FP32", shape=[2, 2], parameters=parameters)
    got, said = refused(lambda: live.infer("ident", x))
    assert got is code
    assert details in said


# the standard services


Check = health_pb2.HealthCheckRequest
Health = health_pb2.HealthCheckResponse


@pytest.mark.parametrize(
    ("service", "status"),
    [
        ("ident", Health.SERVING),
        ("multi", Health.SERVING),
        ("broken", Health.NOT_SERVING),
        ("", Health.NOT_SERVING),  # for one model is broken
        ("inference.GRPCInferenceService", Health.NOT_SERVING),
    ],
)
def test_health_of_the_server_and_of_each_model(live: Live, service: str, status: int) -> None:
    assert live.health.Check(Check(service=service)).status == status


def test_health_of_an_unknown_service_is_not_found(live: Live) -> None:
    assert refused(lambda: live.health.Check(Check(service="nope")))[0] is STATUS.NOT_FOUND


@pytest.mark.one_server(reason="it unloads a model, and replicas refuse administration")
def test_health_is_watched(live: Live) -> None:
    unknown = live.health.Watch(Check(service="nope"), timeout=20)
    assert next(unknown).status == Health.SERVICE_UNKNOWN
    unknown.cancel()
    watch = live.health.Watch(Check(service="two"), timeout=20)
    assert next(watch).status == Health.SERVING
    live.client.unload_model("two")
    assert next(watch).status in {Health.NOT_SERVING, Health.SERVICE_UNKNOWN}
    live.client.load_model("two")
    while next(watch).status != Health.SERVING:
        pass
    watch.cancel()


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_describes_the_services(live: Live, version: str) -> None:
    call: Any = live.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="inference.GRPCInferenceService"),
    ]
    listed, described = call(iter(asked), timeout=20)
    names = {each.name for each in listed.list_services_response.service}
    assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= names
    assert len(described.file_descriptor_response.file_descriptor_proto) == 1
