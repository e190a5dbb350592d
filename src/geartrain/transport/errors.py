"""The one table from an error's code to the status of each protocol, and the error for what must not happen."""

from __future__ import annotations

from enum import IntEnum
from http import HTTPStatus
from typing import Final

from geartrain.domain.errors import Code, GeartrainError

BUG: Final = GeartrainError(Code.INTERNAL, "Internal server error")

HTTP_STATUS: Final[dict[Code, HTTPStatus]] = {
    Code.UNPARSABLE: HTTPStatus.BAD_REQUEST,
    Code.INVALID_INPUT: HTTPStatus.UNPROCESSABLE_ENTITY,
    Code.INVALID_TENSOR: HTTPStatus.BAD_REQUEST,
    Code.UNSUPPORTED_MEDIA_TYPE: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    Code.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Code.NO_STORAGE: HTTPStatus.INSUFFICIENT_STORAGE,
    Code.NOT_ACCEPTABLE: HTTPStatus.NOT_ACCEPTABLE,
    Code.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    Code.FORBIDDEN: HTTPStatus.FORBIDDEN,
    Code.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Code.METHOD_NOT_ALLOWED: HTTPStatus.METHOD_NOT_ALLOWED,
    Code.CONFLICT: HTTPStatus.CONFLICT,
    Code.AT_CAPACITY: HTTPStatus.CONFLICT,
    Code.QUEUE_FULL: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.TIMED_OUT: HTTPStatus.GATEWAY_TIMEOUT,
    Code.QUEUE_TIMED_OUT: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.TOO_MANY_READERS: HTTPStatus.TOO_MANY_REQUESTS,
    Code.NOT_READY: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.SHUTTING_DOWN: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.STORE_UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.OWNER_UNREACHABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.STORE_VERSION: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.LOAD_FAILED: HTTPStatus.BAD_REQUEST,
    Code.UNSUPPORTED: HTTPStatus.NOT_IMPLEMENTED,
    Code.RUN_FAILED: HTTPStatus.INTERNAL_SERVER_ERROR,
    Code.RUN_CANCELED: HTTPStatus.INTERNAL_SERVER_ERROR,
    Code.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
}


class GrpcStatus(IntEnum):
    """Status of a finished call of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


GRPC_STATUS: Final[dict[Code, GrpcStatus]] = {
    Code.UNPARSABLE: GrpcStatus.INVALID_ARGUMENT,
    Code.INVALID_INPUT: GrpcStatus.INVALID_ARGUMENT,
    Code.INVALID_TENSOR: GrpcStatus.INVALID_ARGUMENT,
    Code.UNSUPPORTED_MEDIA_TYPE: GrpcStatus.INVALID_ARGUMENT,
    Code.TOO_LARGE: GrpcStatus.RESOURCE_EXHAUSTED,
    Code.NO_STORAGE: GrpcStatus.RESOURCE_EXHAUSTED,
    Code.NOT_ACCEPTABLE: GrpcStatus.UNIMPLEMENTED,
    Code.UNAUTHENTICATED: GrpcStatus.UNAUTHENTICATED,
    Code.FORBIDDEN: GrpcStatus.PERMISSION_DENIED,
    Code.NOT_FOUND: GrpcStatus.NOT_FOUND,
    Code.METHOD_NOT_ALLOWED: GrpcStatus.UNIMPLEMENTED,
    Code.CONFLICT: GrpcStatus.ALREADY_EXISTS,
    Code.AT_CAPACITY: GrpcStatus.RESOURCE_EXHAUSTED,
    Code.QUEUE_FULL: GrpcStatus.RESOURCE_EXHAUSTED,
    Code.TIMED_OUT: GrpcStatus.DEADLINE_EXCEEDED,
    Code.QUEUE_TIMED_OUT: GrpcStatus.UNAVAILABLE,
    Code.TOO_MANY_READERS: GrpcStatus.RESOURCE_EXHAUSTED,
    Code.NOT_READY: GrpcStatus.UNAVAILABLE,
    Code.SHUTTING_DOWN: GrpcStatus.UNAVAILABLE,
    Code.STORE_UNAVAILABLE: GrpcStatus.UNAVAILABLE,
    Code.OWNER_UNREACHABLE: GrpcStatus.UNAVAILABLE,
    Code.STORE_VERSION: GrpcStatus.UNAVAILABLE,
    Code.LOAD_FAILED: GrpcStatus.INVALID_ARGUMENT,
    Code.UNSUPPORTED: GrpcStatus.UNIMPLEMENTED,
    Code.RUN_FAILED: GrpcStatus.INTERNAL,
    Code.RUN_CANCELED: GrpcStatus.CANCELLED,
    Code.INTERNAL: GrpcStatus.INTERNAL,
}

_CHALLENGE: Final = ((b"www-authenticate", b"Bearer"),)
_OVER_SOON: Final = frozenset({HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


def error_headers(status: HTTPStatus, error: GeartrainError) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers that belong to the status of an error, whatever the protocol.

    These are `Retry-After` where the answer may be another one later, and `WWW-Authenticate` where a key is missing.
    """
    if status in _OVER_SOON:
        return ((b"retry-after", b"%d" % error.retry_after),)
    return _CHALLENGE if status is HTTPStatus.UNAUTHORIZED else ()


# The Open Inference Protocol knows a client's mistakes as one status, whatever is wrong with the body.
OPEN_INFERENCE_HTTP_STATUS: Final[dict[Code, HTTPStatus]] = {
    **HTTP_STATUS,
    Code.INVALID_INPUT: HTTPStatus.BAD_REQUEST,
    Code.CONFLICT: HTTPStatus.BAD_REQUEST,
    Code.AT_CAPACITY: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.UNSUPPORTED_MEDIA_TYPE: HTTPStatus.NOT_IMPLEMENTED,
}
