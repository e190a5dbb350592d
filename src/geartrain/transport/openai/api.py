"""Answers of OpenAI's API that every endpoint gives: refusals, and the header about what was passed over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Final

from geartrain.apis.openai import errors
from geartrain.domain.errors import Code, GeartrainError
from geartrain.transport.errors import BUG, HTTP_STATUS, error_headers
from geartrain.transport.wire.exchange import JSON, Answer

Encode = Callable[[GeartrainError], bytes]

logger = logging.getLogger(__name__)

OPENAI_HTTP_STATUS: Final[dict[Code, HTTPStatus]] = {
    **HTTP_STATUS,
    Code.INVALID_INPUT: HTTPStatus.BAD_REQUEST,
    Code.AT_CAPACITY: HTTPStatus.TOO_MANY_REQUESTS,
    Code.QUEUE_FULL: HTTPStatus.TOO_MANY_REQUESTS,
}
# The official clients try twice again after any status of 500 and more, unless they are told not to.
_ONCE: Final = frozenset({Code.RUN_FAILED, Code.RUN_CANCELED, Code.INTERNAL, Code.TIMED_OUT})
_NO_RETRY: Final = ((b"x-should-retry", b"false"),)
_LONGEST: Final = 1024  # characters of that header
EVENT_STREAM: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
)
_BAD: Final = "invalid_request_error"
_NO_PATH: Final = errors.encode_fault("There is no such path.", _BAD, param=None, code="unknown_url")
_NOT_FOUND: Final = Answer(HTTPStatus.NOT_FOUND, (_NO_PATH,))


def refuse(error: GeartrainError, encode: Encode = errors.encode_error) -> Answer:
    """Return the answer to a request that failed, in the form that `encode` gives it."""
    status = OPENAI_HTTP_STATUS[error.code]
    headers = (*JSON, *error_headers(status, error), *(_NO_RETRY if error.code in _ONCE or _is_quota(error) else ()))
    return Answer(status, (encode(error),), headers, error=error.reason)


def _is_quota(error: GeartrainError) -> bool:
    return isinstance(error, errors.OpenAIError) and error.kind == "insufficient_quota"


def refusal(error: Exception, encode: Encode = errors.encode_error) -> Answer:
    """Return the answer to a request that failed; log an error that is none of its client's."""
    if isinstance(error, GeartrainError):
        return refuse(error, encode)
    logger.error("an endpoint failed", exc_info=error)
    return refuse(BUG, encode)


def fault_event(error: Exception) -> bytes:
    """Return the event of a failure in the middle of a stream; log an error that is none of the client's."""
    if not isinstance(error, GeartrainError):
        logger.error("an endpoint failed", exc_info=error)
        error = BUG
    return b"data: %b\n\n" % errors.encode_error(error)


def ignored(names: Iterable[str]) -> tuple[tuple[bytes, bytes], ...]:
    """Return the header that names the parameters which were passed over."""
    told = ", ".join(name for name in names if name.isascii() and name.isprintable())
    return ((b"x-geartrain-ignored", told[:_LONGEST].encode()),) if told else ()


def not_found() -> Answer:
    """Return the answer where there is no such path."""
    return _NOT_FOUND


def wrong_method(allowed: str) -> Answer:
    """Return the answer to another method than those `allowed`."""
    text = f"Method not allowed: use {allowed}."
    body = errors.encode_fault(text, _BAD, param=None, code="method_not_allowed")
    return Answer(HTTPStatus.METHOD_NOT_ALLOWED, (body,), (*JSON, (b"allow", allowed.encode())))
