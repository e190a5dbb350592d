"""The closed set of errors that a client can meet, independent of any protocol.

`transport/errors.py` is the one table that turns a code into an HTTP and a gRPC status.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class Code(StrEnum):
    """Codes of refused requests. A prediction that ran and failed is no error: it has the status `failed`."""

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
    RUN_CANCELED = "run_canceled"  # like RUN_FAILED, for a run that was canceled
    INTERNAL = "internal"


_MOST_FIELDS: Final = 11  # that one error lists: ten of a kind, and the number of all of that kind
MISSING: Final = "value_error.missing"
FIELD_REQUIRED: Final = "Field required"  # in Cog's prediction API, whose clients may parse it
RETRY_SOON: Final = 1  # seconds, where nothing is known of how long it will take


class FieldError(msgspec.Struct, frozen=True):
    """One wrong field: where it stands, what is wrong, and the kind of fault."""

    loc: tuple[str, ...]
    msg: str
    type: str

    @property
    def sentence(self) -> str:
        """The fault with the name of its field, for a person."""
        name = ".".join(self.loc[1:]).removeprefix("input.")
        if self.type == MISSING:
            return f'missing required input "{name}"{self.msg.removeprefix(FIELD_REQUIRED)}'
        return f"{name}: {self.msg}"


class GeartrainError(Exception):
    """A refused request: a code of the closed set, a sentence for the client, and the wrong fields if any.

    `retry_after`: seconds until the same request may be accepted, for codes that pass with time.
    """

    def __init__(
        self, code: Code, message: str, *, fields: tuple[FieldError, ...] = (), retry_after: int = RETRY_SOON
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.code = code
        self.message = message
        self.fields = fields if len(fields) <= _MOST_FIELDS else _first_of(fields)

    @property
    def reason(self) -> str:
        """The fault of each wrong field with its name, or else the sentence."""
        return "; ".join(each.sentence for each in self.fields) or self.message


def _first_of(fields: tuple[FieldError, ...]) -> tuple[FieldError, ...]:
    place = fields[0].loc[:2] if len(fields[0].loc) > 1 else fields[0].loc
    text = f"{len(fields)} faults were found, of which the first {_MOST_FIELDS} are listed"
    return (*fields[:_MOST_FIELDS], FieldError(place, text, "value_error"))
