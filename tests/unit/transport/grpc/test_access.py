"""Which gRPC call needs what of a key."""

from __future__ import annotations

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.transport.access.guard import EVERYTHING, BearerAuthorizer, Everybody, Grant
from geartrain.transport.grpc import open_inference_pb2 as pb
from geartrain.transport.grpc.context import NEEDS, CallAccess, check_message
from geartrain.transport.grpc.heads import CallHead, read_head
from geartrain.transport.wire.exchange import Head

ALL = frozenset({"predict", "read", "admin"})
GRANTS = {
    "all": Grant("key 'ada'", ALL),
    "some": Grant("key 'bob'", ALL, ("ec*",)),
    "reader": Grant("key 'eve'", frozenset({"read"})),
}


class Keys:
    def find(self, token: str) -> Grant | None:
        return GRANTS.get(token)


def given(*metadata: tuple[bytes, bytes]) -> CallHead:
    """What the head of a call with metadata says."""
    return read_head(Head("POST", b"/s/m", b"", ((b"content-type", b"application/grpc"), *metadata)))


def bearer(key: str) -> CallHead:
    return given((b"user-agent", b"x"), (b"authorization", f"Bearer {key}".encode()))


ACCESS = CallAccess(BearerAuthorizer([Keys()]))


def outcome(call: str, key: str, message: object) -> Code | None:
    try:
        check_message(ACCESS.grant(bearer(key), NEEDS[call].scope), NEEDS[call], message)
    except GeartrainError as error:
        return error.code
    return None


@pytest.mark.parametrize(
    ("call", "message", "refused"),  # those keys of `GRANTS` that may not; `nobody` is no key
    [
        ("ServerLive", pb.ServerLiveRequest(), set()),
        ("ServerReady", pb.ServerReadyRequest(), set()),
        ("ModelReady", pb.ModelReadyRequest(name="pets"), set()),
        ("ServerMetadata", pb.ServerMetadataRequest(), {"nobody"}),
        ("ModelMetadata", pb.ModelMetadataRequest(name="ecg"), {"nobody"}),
        ("ModelMetadata", pb.ModelMetadataRequest(name="pets"), {"nobody", "some"}),
        ("ModelConfig", pb.ModelConfigRequest(name="pets"), {"nobody", "some"}),
        ("ModelStatistics", pb.ModelStatisticsRequest(name="ecg"), {"nobody"}),
        ("ModelStatistics", pb.ModelStatisticsRequest(), {"nobody", "some"}),
        ("RepositoryIndex", pb.RepositoryIndexRequest(), {"nobody", "some"}),
        ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="ecg"), {"nobody", "reader"}),
        ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="pets"), {"nobody", "reader", "some"}),
        ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="pets"), {"nobody", "reader", "some"}),
        ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name="ecg"), {"nobody", "reader", "some"}),
        ("SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(), {"nobody", "reader", "some"}),
        ("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(), {"nobody", "reader", "some"}),
    ],
)
def test_scope_and_model_decide(call: str, message: object, refused: set[str]) -> None:
    expected = {
        key: None if key not in refused else Code.UNAUTHENTICATED if key == "nobody" else Code.FORBIDDEN
        for key in ("nobody", *GRANTS)
    }
    assert {key: outcome(call, key, message) for key in expected} == expected


def test_every_call_has_a_need_and_names_a_field_that_there_is() -> None:
    methods = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    inference = {"ModelInfer", "ModelStreamInfer"}  # they have their own check
    assert set(NEEDS) == set(methods) - inference
    for name, need in NEEDS.items():
        assert not need.field or need.field in methods[name].input_type.fields_by_name
        assert (need.subject == "model") == bool(need.field), name


def test_metadata_is_that_of_one_key() -> None:
    assert ACCESS.grant(bearer("all"), "predict") is GRANTS["all"]
    for none in (
        given(),
        given((b"authorization-bin", b"QmVhcmVyIGFsbA")),
        given(*[(b"authorization", b"Bearer all")] * 2),
    ):
        with pytest.raises(GeartrainError, match=r"requires a key|Send one header"):
            ACCESS.grant(none, "predict")
    with pytest.raises(GeartrainError, match="does not have the scope 'predict'"):
        ACCESS.grant(bearer("reader"), "predict")


def test_server_without_keys_does_not_look_at_metadata() -> None:
    assert CallAccess(Everybody()).grant(given(), "predict") is EVERYTHING


def test_open_call_needs_no_key() -> None:
    assert ACCESS.grant(given(), "open") is EVERYTHING
