"""The gRPC protocol's description, what was made of it, and whether it is what others speak."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from tritonclient.grpc import service_pb2

from geartrain.transport.grpc import open_inference_pb2 as pb

ROOT = pathlib.Path(__file__).parents[2]
SERVICE = "GRPCInferenceService"
UNKNOWN_TO_TRITON = {"inference.ModelMetadataResponse.properties", "inference.ModelMetadataResponse.PropertiesEntry"}
# The messages and fields that the document defines, with their numbers; written down from its text. `properties` is
# from the description in the protocol's repository, which is newer than the document and than Triton's client.
DOCUMENT = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live=1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready=1",
    "ModelReadyRequest": "name=1 version=2",
    "ModelReadyResponse": "ready=1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name=1 version=2 extensions=3",
    "ModelMetadataRequest": "name=1 version=2",
    "ModelMetadataResponse": "name=1 versions=2 platform=3 inputs=4 outputs=5 properties=6",
    "ModelMetadataResponse.TensorMetadata": "name=1 datatype=2 shape=3",
    "ModelInferRequest": "model_name=1 model_version=2 id=3 parameters=4 inputs=5 outputs=6 raw_input_contents=7",
    "ModelInferRequest.InferInputTensor": "name=1 datatype=2 shape=3 parameters=4 contents=5",
    "ModelInferRequest.InferRequestedOutputTensor": "name=1 parameters=2",
    "ModelInferResponse": "model_name=1 model_version=2 id=3 parameters=4 outputs=5 raw_output_contents=6",
    "ModelInferResponse.InferOutputTensor": "name=1 datatype=2 shape=3 parameters=4 contents=5",
    "InferParameter": "bool_param=1 int64_param=2 string_param=3",
    "InferTensorContents": (
        "bool_contents=1 int_contents=2 int64_contents=3 uint_contents=4 uint64_contents=5 "
        "fp32_contents=6 fp64_contents=7 bytes_contents=8"
    ),
}


def make_proto() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_proto", ROOT / "tools" / "make_proto.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_code_is_what_the_description_gives() -> None:
    module = make_proto()
    for path, text in module.render().items():
        assert (module.SOURCE / path).read_text() == text, f"{path} is out of date: make proto"


@pytest.mark.parametrize(("name", "fields"), DOCUMENT.items())
def test_message_is_that_of_the_document(name: str, fields: str) -> None:
    message = find(pb.DESCRIPTOR, name)
    numbers = {field.name: field.number for field in message.fields}
    expected = dict(pair.split("=") for pair in fields.split())
    assert {each: str(numbers[each]) for each in expected} == expected


def find(file: FileDescriptor, name: str) -> Descriptor:
    first, *rest = name.split(".")
    message = file.message_types_by_name[first]
    for each in rest:
        message = message.nested_types_by_name[each]
    return message


def shape_of(field: FieldDescriptor) -> tuple[Any, ...]:
    """All that matters on the wire."""
    inner = field.message_type.full_name if field.message_type else None
    values = None
    if field.enum_type:
        values = {value.name: value.number for value in field.enum_type.values}
    oneof = field.containing_oneof.name if field.containing_oneof else None
    return field.number, field.type, field.is_repeated, inner, values, oneof


def messages(parent: Any) -> list[Descriptor]:
    nested = parent.message_types_by_name if isinstance(parent, FileDescriptor) else parent.nested_types_by_name
    return [each for message in nested.values() for each in (message, *messages(message))]


@pytest.mark.parametrize(
    "message",
    [each for each in messages(pb.DESCRIPTOR) if each.full_name not in UNKNOWN_TO_TRITON],
    ids=lambda message: message.full_name,
)
def test_every_field_is_as_tritons_client_has_it(message: Descriptor) -> None:
    theirs = service_pb2.DESCRIPTOR.pool.FindMessageTypeByName(message.full_name)
    known = {field.name: shape_of(field) for field in theirs.fields}
    for field in message.fields:
        if field.full_name not in UNKNOWN_TO_TRITON:
            assert shape_of(field) == known[field.name], field.full_name


def test_o6_older_client_reads_metadata_with_properties() -> None:
    sent = pb.ModelMetadataResponse(name="m", platform="python", properties={"streaming": "true"}).SerializeToString()
    field = pb.ModelMetadataResponse.DESCRIPTOR.fields_by_name["properties"]
    assert (field.number, field.is_repeated) == (6, True)
    older = service_pb2.ModelMetadataResponse.FromString(sent)
    assert (older.name, older.platform) == ("m", "python")
    assert older.SerializeToString() == sent  # it passes on what it does not know


def test_every_method_is_as_tritons_client_has_it() -> None:
    theirs = service_pb2.DESCRIPTOR.services_by_name[SERVICE].methods_by_name
    ours = pb.DESCRIPTOR.services_by_name[SERVICE].methods
    assert len(ours) == 15
    for method in ours:
        other = theirs[method.name]
        assert method.full_name == other.full_name
        assert method.input_type.full_name == other.input_type.full_name
        assert method.output_type.full_name == other.output_type.full_name
        assert method.client_streaming == other.client_streaming
        assert method.server_streaming == other.server_streaming


@pytest.mark.parametrize("order", [("ours", "theirs"), ("theirs", "ours")])
def test_can_be_imported_beside_a_client_with_the_same_names(order: tuple[str, str]) -> None:
    statements = {
        "ours": "from geartrain.transport.grpc import handler, open_inference_pb2 as ours",
        "theirs": "import tritonclient.grpc; from tritonclient.grpc import service_pb2 as theirs",
    }
    script = "\n".join(
        (
            *(statements[each] for each in order),
            "sent = theirs.ModelInferRequest(model_name='m', raw_input_contents=[b'x']).SerializeToString()",
            "assert ours.ModelInferRequest.FromString(sent).raw_input_contents[0] == b'x'",
            "assert ours.DESCRIPTOR.pool is not theirs.DESCRIPTOR.pool",
        )
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=200)
