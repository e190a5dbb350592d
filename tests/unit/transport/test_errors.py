"""Every code of the closed set through both tables."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
import pytest

from geartrain.apis import cog
from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.transport.errors import GRPC_STATUS, HTTP_STATUS, OPEN_INFERENCE_HTTP_STATUS, error_headers

# grpc.StatusCode, by name.
GRPC_NAMES = {
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
}
EXPECTED = {
    Code.UNPARSABLE: (400, "INVALID_ARGUMENT"),
    Code.INVALID_INPUT: (422, "INVALID_ARGUMENT"),
    Code.INVALID_TENSOR: (400, "INVALID_ARGUMENT"),
    Code.QUEUE_FULL: (503, "RESOURCE_EXHAUSTED"),
    Code.QUEUE_TIMED_OUT: (503, "UNAVAILABLE"),
    Code.TIMED_OUT: (504, "DEADLINE_EXCEEDED"),
    Code.STORE_UNAVAILABLE: (503, "UNAVAILABLE"),
    Code.OWNER_UNREACHABLE: (503, "UNAVAILABLE"),
    Code.STORE_VERSION: (503, "UNAVAILABLE"),
    Code.LOAD_FAILED: (400, "INVALID_ARGUMENT"),
    Code.UNSUPPORTED: (501, "UNIMPLEMENTED"),
    Code.RUN_FAILED: (500, "INTERNAL"),
    Code.RUN_CANCELED: (500, "CANCELLED"),
    Code.UNSUPPORTED_MEDIA_TYPE: (415, "INVALID_ARGUMENT"),
    Code.TOO_LARGE: (413, "RESOURCE_EXHAUSTED"),
    Code.NO_STORAGE: (507, "RESOURCE_EXHAUSTED"),
    Code.NOT_ACCEPTABLE: (406, "UNIMPLEMENTED"),
    Code.UNAUTHENTICATED: (401, "UNAUTHENTICATED"),
    Code.FORBIDDEN: (403, "PERMISSION_DENIED"),
    Code.NOT_FOUND: (404, "NOT_FOUND"),
    Code.METHOD_NOT_ALLOWED: (405, "UNIMPLEMENTED"),
    Code.CONFLICT: (409, "ALREADY_EXISTS"),
    Code.AT_CAPACITY: (409, "RESOURCE_EXHAUSTED"),
    Code.TOO_MANY_READERS: (429, "RESOURCE_EXHAUSTED"),
    Code.NOT_READY: (503, "UNAVAILABLE"),
    Code.SHUTTING_DOWN: (503, "UNAVAILABLE"),
    Code.INTERNAL: (500, "INTERNAL"),
}


@pytest.mark.parametrize("code", Code)
def test_every_code_has_a_status_of_each_protocol(code: Code) -> None:
    assert (HTTP_STATUS[code].value, GRPC_STATUS[code].name) == EXPECTED[code]


def test_tables_have_no_other_lines() -> None:
    assert set(HTTP_STATUS) == set(GRPC_STATUS) == set(Code)


@pytest.mark.parametrize("code", Code)
def test_every_status_is_one_of_an_error(code: Code) -> None:
    assert isinstance(HTTP_STATUS[code], HTTPStatus)
    assert HTTP_STATUS[code] >= HTTPStatus.BAD_REQUEST
    assert GRPC_STATUS[code].name in GRPC_NAMES - {"OK"}


@pytest.mark.parametrize("code", Code)
def test_protocols_agree_on_whose_fault_it_is(code: Code) -> None:
    """A server that is not ready must not reach a gRPC client as the client's fault, nor the other way round."""
    is_servers_by_http = HTTP_STATUS[code] >= HTTPStatus.INTERNAL_SERVER_ERROR
    is_servers_by_grpc = GRPC_STATUS[code].name in {"UNAVAILABLE", "INTERNAL", "UNKNOWN", "DATA_LOSS"}
    blames_nobody = GRPC_STATUS[code].name in {"RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "CANCELLED"}
    assert blames_nobody or is_servers_by_http == is_servers_by_grpc


@pytest.mark.parametrize("code", Code)
def test_every_code_has_a_body_in_cogs_api(code: Code) -> None:
    body = cog.encode_error(GeartrainError(code, "what is wrong"))
    status = {} if code is Code.NOT_ACCEPTABLE else {"status": "failed"}  # observed Cog, sections 14 and 20
    assert msgspec.json.decode(body) == {"error": "what is wrong", **status}


def test_errors_have_the_headers_of_their_status() -> None:
    error = GeartrainError(Code.QUEUE_FULL, "later", retry_after=7)
    assert error_headers(HTTPStatus.SERVICE_UNAVAILABLE, error) == ((b"retry-after", b"7"),)
    for table in (HTTP_STATUS, OPEN_INFERENCE_HTTP_STATUS):
        assert error_headers(table[Code.UNAUTHENTICATED], error) == ((b"www-authenticate", b"Bearer"),)
        assert error_headers(table[Code.FORBIDDEN], error) == ()


def test_wrong_fields_are_the_body() -> None:
    error = GeartrainError(Code.INVALID_INPUT, "no", fields=(FieldError(("body", "x"), "is wrong", "value_error"),))
    expected = {"detail": [{"loc": ["body", "x"], "msg": "is wrong", "type": "value_error"}]}
    assert msgspec.json.decode(cog.encode_error(error)) == expected
