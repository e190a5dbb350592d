"""Makes responses of the answers of scripts: those of web frameworks, models of pydantic, and values of JSON."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final

from geartrain.authoring.requests import BINARY_TYPE, JSON_TYPE, TEXT_TYPE, Response

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


def answers_errors(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a `run()` so that an exception with a status and a detail is its answer."""
    if inspect.iscoroutinefunction(run):

        @wraps(run)
        async def run_async(*arguments: Any, **named: Any) -> Any:
            try:
                return await run(*arguments, **named)
            except Exception as error:
                answer = http_error(error)
                if answer is None:
                    raise
                return answer

        return run_async

    @wraps(run)
    def run_sync(*arguments: Any, **named: Any) -> Any:
        try:
            return run(*arguments, **named)
        except Exception as error:
            answer = http_error(error)
            if answer is None:
                raise
            return answer

    return run_sync


def plain(value: Any) -> Any:
    """Return arrays, tensors, data frames and what holds them as lists, numbers and dicts."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "detach"):
        return value.detach().cpu().tolist()
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        return value.to_dict(orient="records")
    return value.tolist() if hasattr(value, "tolist") else value
