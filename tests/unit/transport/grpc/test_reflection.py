"""Server reflection, without a socket."""

from __future__ import annotations

from types import ModuleType

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2 as v1alpha

from geartrain.transport.errors import GrpcStatus
from geartrain.transport.grpc import reflection_pb2 as v1
from geartrain.transport.grpc.services import REFLECTION_METHODS
from tests.unit.transport.grpc.conftest import Zoo

PROTOS = "geartrain/transport/grpc/"


@pytest.mark.parametrize("number", [0, 1])
async def test_services_are_listed_and_files_found(zoo: Zoo, number: int) -> None:
    pb: ModuleType = (v1, v1alpha)[number]
    asked = [
        pb.ServerReflectionRequest(host="h", list_services="*"),
        *(
            pb.ServerReflectionRequest(file_containing_symbol=symbol)
            for symbol in (
                "inference.GRPCInferenceService",
                "inference.GRPCInferenceService.ModelInfer",
                "inference.ModelInferRequest",
                "inference.ModelInferRequest.InferInputTensor",
                "grpc.health.v1.Health",
                "grpc.health.v1.HealthCheckResponse.ServingStatus",
                "grpc.health.v1.HealthCheckResponse.SERVING",
                "inference.InferParameter.bool_param",
                "inference.TYPE_FP32",
                "grpc.reflection.v1.ServerReflection",
                "grpc.reflection.v1alpha.ServerReflection",
            )
        ),
        pb.ServerReflectionRequest(file_by_filename=PROTOS + "health.proto"),
        pb.ServerReflectionRequest(all_extension_numbers_of_type="inference.ModelInferRequest"),
    ]
    call = zoo.converse(REFLECTION_METHODS[number])
    call.send(*asked)
    call.reader.end()
    assert (await call.responder.outcome()).status == GrpcStatus.OK
    answers = [await call.message(index, pb.ServerReflectionResponse) for index in range(len(asked))]
    assert [each.original_request for each in answers] == asked
    assert answers[0].valid_host == "h"
    assert [each.name for each in answers[0].list_services_response.service] == [
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ]
    files = [
        [FileDescriptorProto.FromString(file).name for file in each.file_descriptor_response.file_descriptor_proto]
        for each in answers[1:-1]
    ]
    names = (
        ["open_inference"] * 4
        + ["health"] * 3
        + ["open_inference"] * 2
        + ["reflection", "reflection_v1alpha", "health"]
    )
    assert files == [[f"{PROTOS}{name}.proto"] for name in names]
    assert answers[-1].all_extension_numbers_response.base_type_name == "inference.ModelInferRequest"


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (v1.ServerReflectionRequest(), GrpcStatus.INVALID_ARGUMENT),
        (v1.ServerReflectionRequest(file_by_filename="nope.proto"), GrpcStatus.NOT_FOUND),
        (v1.ServerReflectionRequest(file_containing_symbol="inference.Nope"), GrpcStatus.NOT_FOUND),
        (v1.ServerReflectionRequest(file_containing_symbol=""), GrpcStatus.NOT_FOUND),
        (v1.ServerReflectionRequest(all_extension_numbers_of_type="inference.Nope"), GrpcStatus.NOT_FOUND),
        (
            v1.ServerReflectionRequest(
                file_containing_extension=v1.ExtensionRequest(
                    containing_type="inference.ModelInferRequest", extension_number=5
                )
            ),
            GrpcStatus.NOT_FOUND,
        ),
        (
            v1.ServerReflectionRequest(
                file_containing_extension=v1.ExtensionRequest(containing_type="inference.Nope", extension_number=5)
            ),
            GrpcStatus.NOT_FOUND,
        ),
    ],
)
async def test_question_without_an_answer_leaves_the_call_usable(
    zoo: Zoo, asked: v1.ServerReflectionRequest, status: int
) -> None:
    call = zoo.converse(REFLECTION_METHODS[0])
    call.send(asked, v1.ServerReflectionRequest(list_services=""))
    error = (await call.message(0, v1.ServerReflectionResponse)).error_response
    assert error.error_code == status
    assert error.error_message
    assert (await call.message(1, v1.ServerReflectionResponse)).list_services_response.service
    zoo.handler.close()
    assert (await call.responder.outcome()).status == GrpcStatus.UNAVAILABLE


async def test_question_that_is_none_ends_the_call(zoo: Zoo) -> None:
    call = zoo.converse(REFLECTION_METHODS[0])
    call.send(b"\xff")
    assert (await call.responder.outcome()).status == GrpcStatus.INVALID_ARGUMENT
