"""The one table from an error's code to the status of each protocol, and the error for what must not happen."""

from __future__ import annotations

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

# By name, so that this table needs no gRPC package.
GRPC_STATUS: Final[dict[Code, str]] = {
    Code.UNPARSABLE: "INVALID_ARGUMENT",
    Code.INVALID_INPUT: "INVALID_ARGUMENT",
    Code.INVALID_TENSOR: "INVALID_ARGUMENT",
    Code.UNSUPPORTED_MEDIA_TYPE: "INVALID_ARGUMENT",
    Code.TOO_LARGE: "RESOURCE_EXHAUSTED",
    Code.NO_STORAGE: "RESOURCE_EXHAUSTED",
    Code.NOT_ACCEPTABLE: "UNIMPLEMENTED",
    Code.UNAUTHENTICATED: "UNAUTHENTICATED",
    Code.FORBIDDEN: "PERMISSION_DENIED",
    Code.NOT_FOUND: "NOT_FOUND",
    Code.METHOD_NOT_ALLOWED: "UNIMPLEMENTED",
    Code.CONFLICT: "ALREADY_EXISTS",
    Code.AT_CAPACITY: "RESOURCE_EXHAUSTED",
    Code.QUEUE_FULL: "RESOURCE_EXHAUSTED",
    Code.TIMED_OUT: "DEADLINE_EXCEEDED",
    Code.QUEUE_TIMED_OUT: "UNAVAILABLE",
    Code.TOO_MANY_READERS: "RESOURCE_EXHAUSTED",
    Code.NOT_READY: "UNAVAILABLE",
    Code.SHUTTING_DOWN: "UNAVAILABLE",
    Code.STORE_UNAVAILABLE: "UNAVAILABLE",
    Code.OWNER_UNREACHABLE: "UNAVAILABLE",
    Code.STORE_VERSION: "UNAVAILABLE",
    Code.LOAD_FAILED: "INVALID_ARGUMENT",
    Code.UNSUPPORTED: "UNIMPLEMENTED",
    Code.RUN_FAILED: "INTERNAL",
    Code.RUN_CANCELED: "CANCELLED",
    Code.INTERNAL: "INTERNAL",
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
