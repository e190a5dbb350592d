"""The closed set of errors that a client can meet, independent of any protocol.

`transport/errors.py` is the one table that turns a code into an HTTP and a gRPC status.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class Code(StrEnum):
    """Why a request was refused. A prediction that ran and failed is no error: it has the status `failed`."""

    UNPARSABLE = "unparsable"  # the body is not the text it claims to be
    INVALID_INPUT = "invalid_input"  # the body is well-formed, its fields are not
    INVALID_TENSOR = "invalid_tensor"  # a tensor, or a request for one, does not fit the model
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    TOO_LARGE = "too_large"
    NO_STORAGE = "no_storage"  # the disk has no room for what the request needs to be kept
    NOT_ACCEPTABLE = "not_acceptable"  # no answer in the form the client accepts
    UNAUTHENTICATED = "unauthenticated"  # no key, or none that is valid
    FORBIDDEN = "forbidden"  # the key is for something else, or the request comes from a page of another site
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    CONFLICT = "conflict"  # the id is taken by a running prediction
    AT_CAPACITY = "at_capacity"  # every slot is in use
    QUEUE_FULL = "queue_full"  # too many requests wait for a slot
    TIMED_OUT = "timed_out"  # its time was up while it waited or ran
    QUEUE_TIMED_OUT = "queue_timed_out"  # it has waited as long as the policy of the queue allows
    TOO_MANY_READERS = "too_many_readers"  # of one prediction
    NOT_READY = "not_ready"  # setup has not finished, or failed, or the worker is gone
    SHUTTING_DOWN = "shutting_down"
    STORE_UNAVAILABLE = "store_unavailable"  # the store of predictions gives no answer
    OWNER_UNREACHABLE = "owner_unreachable"  # another server has the prediction, and gives no answer
    STORE_VERSION = "store_version"  # the store of predictions is that of another version of geartrain
    LOAD_FAILED = "load_failed"  # a model that was to be loaded could not be made ready
    UNSUPPORTED = "unsupported"  # a well-formed request for what this server or model does not do
    RUN_FAILED = "run_failed"  # the model raised, or its worker died; only where an answer has no place for a status
    RUN_CANCELED = "run_canceled"  # as RUN_FAILED, for a run that was canceled
    INTERNAL = "internal"


RETRY_SOON: Final = 1  # seconds, where nothing is known of how long it will take


class FieldError(msgspec.Struct, frozen=True):
    """One wrong field: where it stands, what is wrong, and the kind of fault."""

    loc: tuple[str, ...]
    msg: str
    type: str


class GeartrainError(Exception):
    """A refused request: a code of the closed set, a sentence for the client, and the wrong fields if any.

    `retry_after`: in how many seconds the same request may be taken, for codes of which time is the cure.
    """

    def __init__(
        self, code: Code, message: str, *, fields: tuple[FieldError, ...] = (), retry_after: int = RETRY_SOON
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.code = code
        self.message = message
        self.fields = fields
