"""Errors of OpenAI's API: a message, a type, the parameter that is wrong, and a code."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from geartrain.domain.errors import MISSING, Code, FieldError, GeartrainError
from geartrain.domain.rendering import clip

_TYPES: Final = {
    Code.UNAUTHENTICATED: "authentication_error",
    Code.FORBIDDEN: "permission_error",
    Code.AT_CAPACITY: "rate_limit_error",
    Code.QUEUE_FULL: "rate_limit_error",
    Code.TOO_MANY_READERS: "rate_limit_error",
    Code.NOT_READY: "server_error",
    Code.SHUTTING_DOWN: "server_error",
    Code.TIMED_OUT: "server_error",
    Code.QUEUE_TIMED_OUT: "server_error",
    Code.STORE_UNAVAILABLE: "server_error",
    Code.OWNER_UNREACHABLE: "server_error",
    Code.STORE_VERSION: "server_error",
    Code.RUN_FAILED: "server_error",
    Code.RUN_CANCELED: "server_error",
    Code.INTERNAL: "server_error",
}
_CODES: Final = {
    Code.UNAUTHENTICATED: "invalid_api_key",
    Code.AT_CAPACITY: "queue_full",
    Code.TIMED_OUT: "timeout",
}
_MOST_FIELDS: Final = 10  # fields in a message

_encode = msgspec.json.Encoder().encode


class OpenAIError(GeartrainError):
    """A refused request, with the parameter that is wrong, and a code of OpenAI's where it has one."""

    def __init__(self, code: Code, message: str, *, param: str | None = None, kind: str | None = None) -> None:
        super().__init__(code, message)
        self.param = param
        self.kind = kind


def invalid(message: str, param: str | None = None, kind: str | None = None) -> OpenAIError:
    """Return the error of a request whose parameter is wrong."""
    return OpenAIError(Code.INVALID_INPUT, message, param=param, kind=kind)


def unsupported(param: str, why: str) -> OpenAIError:
    """Return the error of a parameter that neither the model nor the server supports."""
    return invalid(f"'{param}' is not supported: {why}", param, "unsupported_parameter")


def unknown_model(name: str) -> OpenAIError:
    """Return the error of a model that is not there, or that the client may not see."""
    message = f"The model '{clip(name)}' does not exist or you do not have access to it."
    return OpenAIError(Code.NOT_FOUND, message, param="model", kind="model_not_found")


def encode_error(error: GeartrainError) -> bytes:
    """Return the body of an answer to a request that failed; clients show nothing but its message."""
    param, kind = _place(error.fields), _CODES.get(error.code, str(error.code))
    if isinstance(error, OpenAIError):
        param, kind = error.param, error.kind or kind
    return encode_fault(text_of(error), _TYPES.get(error.code, "invalid_request_error"), param=param, code=kind)


def encode_fault(message: str, kind: str, *, param: str | None, code: str | None) -> bytes:
    """Return an error as OpenAI writes it; all four members are required."""
    body: dict[str, Any] = {"message": message, "type": kind, "param": param, "code": code}
    return _encode({"error": body})


def rename(error: GeartrainError, names: dict[str, str]) -> GeartrainError:
    """Return an error about inputs as one about the parameters that filled them: `names` has these by input."""
    if not error.fields:
        return error
    fields = tuple(
        FieldError((*field.loc[:-1], _parameter(field.loc[-1], names)), field.msg, field.type) if field.loc else field
        for field in error.fields
    )
    return GeartrainError(error.code, error.message, fields=fields, retry_after=error.retry_after)


def _parameter(name: str, names: dict[str, str]) -> str:
    """Return the parameter that has filled an input, or one file of its list, such as `images/0`."""
    base = name.partition("/")[0]
    return names.get(name) or names.get(base) or name


def _place(fields: tuple[FieldError, ...]) -> str | None:
    return fields[0].loc[-1] if fields and fields[0].loc else None


def text_of(error: GeartrainError) -> str:
    """Return the text about an error for a client: the faults of its fields, or else its message."""
    if not error.fields:
        return error.message
    told = [_fault(each) for each in error.fields[:_MOST_FIELDS]]
    left = len(error.fields) - len(told)
    return "; ".join([*told, f"and {left} more"] if left else told)


def _fault(field: FieldError) -> str:
    if not field.loc:
        return field.msg
    name = clip(field.loc[-1])
    return f"'{name}' is missing" if field.type == MISSING else f"{name}: {field.msg}"
