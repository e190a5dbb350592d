"""Answers of scripts: what frameworks of the web call a response, models of pydantic, and values that become JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from geartrain.authoring.requests import BINARY_TYPE, JSON_TYPE, TEXT_TYPE, Response
from geartrain.worker.loading.scripts.values import plain

_ERRORS: Final = range(400, 600)
_OWN_FIELDS: Final = frozenset({"content-length", "content-type"})


def response_of(value: Any) -> Response:
    """Return a response of Starlette as it is, a generator as a stream, and any other value as JSON."""
    if isinstance(value, Response):
        return value
    if hasattr(value, "status_code") and (hasattr(value, "body_iterator") or hasattr(value, "body")):
        content = getattr(value, "body_iterator", None)
        fields = {str(key).lower(): str(each) for key, each in value.headers.items()}
        kind = fields.get("content-type") or getattr(value, "media_type", None) or BINARY_TYPE
        headers = {key: each for key, each in fields.items() if key not in _OWN_FIELDS}
        return Response(value.body if content is None else content, kind, status=value.status_code, headers=headers)
    if hasattr(value, "__next__") or hasattr(value, "__anext__"):
        return Response(value, TEXT_TYPE)
    return Response(json_of(value), JSON_TYPE)


def json_of(value: Any) -> str:
    """Write a value as JSON."""
    if hasattr(value, "model_dump_json"):
        text: str = value.model_dump_json()
        return text
    return json.dumps(plain(value))


def http_error(error: BaseException) -> Response | None:
    """Return the answer of an exception with a status and a detail, as FastAPI gives it; None for any other one."""
    status = getattr(error, "status_code", None)
    if not hasattr(error, "detail") or not isinstance(status, int) or status not in _ERRORS:
        return None
    headers = getattr(error, "headers", None)
    return Response(
        json.dumps({"detail": plain(error.detail)}),
        JSON_TYPE,
        status=status,
        headers=headers if isinstance(headers, Mapping) else None,
    )
