"""What the head of a call says, and what a status looks like in fields."""

from __future__ import annotations

import base64
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.transport.errors import GrpcStatus
from geartrain.transport.grpc.heads import (
    NO_TIMEOUT,
    PLAIN,
    CallHead,
    decode_binary,
    is_grpc,
    read_head,
    read_timeout,
)
from geartrain.transport.grpc.status import HEADERS, OK_TRAILERS, CallError, failure, percent_encode, trailers
from geartrain.transport.wire.exchange import Answer, Head
from tests.unit.transport.grpc.conftest import INFER, Zoo, head_of, outcome, request

TYPE = b"content-type"
ENCODING, ACCEPTED = b"grpc-encoding", b"grpc-accept-encoding"


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (b"application/grpc", True),
        (b"application/grpc+proto", True),
        (b"application/grpc+json", True),
        (b"application/grpc;charset=utf-8", True),
        (b"application/grpc ; x=y", True),
        (b"Application/gRPC", True),
        (b"application/grpc-web", False),
        (b"application/grpc-web+proto", False),
        (b"application/json", False),
        (b"", False),
    ],
)
def test_content_type_tells_a_call(given_: bytes, *, expected: bool) -> None:
    assert is_grpc(head_of("/s/m", (TYPE, given_))) is expected


def test_call_is_a_post_where_there_are_trailers() -> None:
    headers = ((TYPE, b"application/grpc"),)
    assert not is_grpc(Head("GET", b"/s/m", b"", headers, has_trailers=True))
    assert not is_grpc(Head("POST", b"/s/m", b"", headers))
    assert not is_grpc(Head("POST", b"/s/m", b"", (), has_trailers=True))


@pytest.mark.parametrize("kind", [b"application/grpc", b"application/grpc+proto", b"application/grpc;x=y"])
async def test_messages_are_protobuf(zoo: Zoo, kind: bytes) -> None:
    assert (await zoo.call(INFER, request("numbers"), (TYPE, kind))).status == GrpcStatus.OK


async def test_other_messages_are_not_understood(zoo: Zoo) -> None:
    found = await zoo.call(INFER, request("numbers"), (TYPE, b"application/grpc+json"))
    assert found.status == GrpcStatus.UNIMPLEMENTED
    assert "'application/grpc+json'" in found.text


@pytest.mark.parametrize("path", ["/", "/inference.GRPCInferenceService/Nope", "/nope/ModelInfer", INFER + "/"])
async def test_unknown_method_is_unimplemented(zoo: Zoo, path: str) -> None:
    found = await zoo.call(path, b"")
    assert found.status == GrpcStatus.UNIMPLEMENTED
    assert f"'{path}'" in found.text


# timeouts


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"2H", 7200.0),
        (b"3M", 180.0),
        (b"1S", 1.0),
        (b"250m", 0.25),
        (b"5u", 5e-6),
        (b"99999999n", 0.099999999),
        (b"0S", 0.0),
    ],
)
def test_timeout_in_seconds(value: bytes, seconds: float) -> None:
    assert read_timeout(value) == pytest.approx(seconds)
    assert read_head(head_of("/s/m", (b"grpc-timeout", value))).timeout == read_timeout(value)


@pytest.mark.parametrize(
    "value", [b"", b"S", b"1", b"1s", b"-1S", b"1.5S", b"123456789S", b" 1S", b"1S ", "²S".encode()]
)
async def test_malformed_timeout_is_an_error(zoo: Zoo, value: bytes) -> None:
    with pytest.raises(CallError, match="grpc-timeout"):
        read_timeout(value)
    found = await zoo.call(INFER, request("numbers"), (b"grpc-timeout", value))
    assert found.status == GrpcStatus.INTERNAL


# metadata


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=3), st.booleans())
def test_binary_metadata_is_decoded_padded_or_not(values: list[bytes], padded: bool) -> None:
    texts = [base64.b64encode(value) for value in values]
    sent = b",".join(text if padded else text.rstrip(b"=") for text in texts)
    assert decode_binary(b"x-bin", sent) == tuple(values)


@pytest.mark.parametrize("value", [b"a", b"*", b"YQ==YQ==", b"Y Q"])
async def test_binary_metadata_that_is_none(zoo: Zoo, value: bytes) -> None:
    found = await zoo.call(INFER, request("numbers"), (b"trace-bin", value))
    assert found.status == GrpcStatus.INTERNAL
    assert "'trace-bin' is not base64" in found.text


def test_plain_heads_are_one_object() -> None:
    assert read_head(head_of("/s/m", (b"user-agent", b"x"), (ACCEPTED, b"identity, deflate, gzip"))) is PLAIN
    assert CallHead() == PLAIN
    assert PLAIN.timeout == NO_TIMEOUT


@pytest.mark.parametrize(
    ("encoding", "accepted", "expected"),
    [
        (b"gzip", b"identity, deflate, gzip", ("gzip", True)),
        (b"gzip", b"identity,deflate", ("gzip", False)),
        (b"deflate", b"gzip", ("deflate", False)),
        (b"identity", b"gzip", (None, False)),
        (b"GZIP", b"gzip", ("gzip", True)),
    ],
)
def test_encoding_of_messages(encoding: bytes, accepted: bytes, expected: tuple[str | None, bool]) -> None:
    head = read_head(head_of("/s/m", (ENCODING, encoding), (ACCEPTED, accepted)))
    assert (head.encoding, head.mirrors) == expected


async def test_unknown_encoding_is_refused_with_those_that_are_known(zoo: Zoo) -> None:
    refused = zoo.begin(INFER, (ENCODING, b"snappy"))
    assert isinstance(refused, Answer)
    found = outcome(refused)
    assert found.status == GrpcStatus.UNIMPLEMENTED
    assert found.headers[ACCEPTED] == b"identity,gzip,deflate"


# statuses


@given(st.text(max_size=200))
def test_text_of_a_status_is_printable_and_comes_back(text: str) -> None:
    encoded = percent_encode(text)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert encoded.strip() == encoded
    assert unquote_to_bytes(encoded) == text.encode(errors="replace")


def test_text_is_encoded_no_more_than_it_has_to_be() -> None:
    assert percent_encode("it's 100 %: é\n") == b"it's 100 %25: %C3%A9%0A"
    assert percent_encode("  ") == b"%20%20"


def test_status_is_in_the_trailers_or_in_the_only_head() -> None:
    assert trailers(GrpcStatus.OK, "never seen") is OK_TRAILERS
    assert trailers(GrpcStatus.NOT_FOUND, "no") == ((b"grpc-status", b"5"), (b"grpc-message", b"no"))
    answer = failure(GrpcStatus.NOT_FOUND, "no", (b"x", b"y"))
    assert answer.parts == ()
    assert answer.headers == (*HEADERS, (b"grpc-status", b"5"), (b"grpc-message", b"no"), (b"x", b"y"))
