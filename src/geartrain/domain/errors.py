"""The closed set of errors that a client can meet, without a word of any protocol.

`transport/errors.py` is the one table that turns a code into an HTTP and a gRPC status.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Code(StrEnum):
    """Why a request was refused. A prediction that ran and failed is no error: it has the status `failed`."""

    UNPARSABLE = "unparsable"  # the body is not the text it claims to be
    INVALID_INPUT = "invalid_input"  # the body is well-formed, its fields are not
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    TOO_LARGE = "too_large"
    NOT_ACCEPTABLE = "not_acceptable"  # no answer in the form the client accepts
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    CONFLICT = "conflict"  # the id is taken by a running prediction
    AT_CAPACITY = "at_capacity"  # every slot is in use
    TOO_MANY_READERS = "too_many_readers"  # of one prediction
    NOT_READY = "not_ready"  # setup has not finished, or failed, or the worker is gone
    SHUTTING_DOWN = "shutting_down"
    INTERNAL = "internal"


class FieldError(msgspec.Struct, frozen=True):
    """One wrong field: where it stands, what is wrong, and the kind of fault."""

    loc: tuple[str, ...]
    msg: str
    type: str


class GeartrainError(Exception):
    """A refused request: a code of the closed set, a sentence for the client, and the wrong fields if any."""

    def __init__(self, code: Code, message: str, *, fields: tuple[FieldError, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.fields = fields
