"""Rows of the database as records, and what may be written into one."""

from __future__ import annotations

from typing import Any, Final

from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.predictions.ledger import Key, Ownership, Row, RowState
from geartrain.domain.predictions.lifecycle import Status

_STATES: Final = {state.value: state for state in RowState}
_STATUSES: Final = {status.value: status for status in Status}


def read_row(columns: tuple[Any, ...]) -> Row:
    """Return the record of a row with the columns of `geartrain.store.sql`."""
    (
        model,
        prediction_id,
        owner,
        epoch,
        state,
        status,
        version,
        created_at,
        echo,
        attempts,
        is_cancel_requested,
        started_at,
        completed_at,
        error,
        principal,
        address,
        is_alive,
    ) = columns
    return Row(
        Ownership(Key(model, prediction_id), owner, epoch),
        _STATES[state],
        _STATUSES[status],
        version,
        float(created_at),
        echo,
        attempts,
        is_cancel_requested == 1,
        started_at,
        completed_at,
        error,
        address,
        is_alive == 1,
        principal,
    )


def read_state(value: str) -> RowState:
    """Return the state of a row by its name."""
    return _STATES[value]


def check_key(key: Key) -> None:
    """Raise `INVALID_INPUT` for an id that is no text to every database."""
    if not _is_text(key.id):
        fault = FieldError(("body", "id"), "holds a character that no id may have", "value_error")
        raise GeartrainError(Code.INVALID_INPUT, "The input does not fit the model's signature.", fields=(fault,))


def is_storable(key: Key) -> bool:
    """True if there may be a row of a key at all."""
    return _is_text(key.id) and _is_text(key.model)


def clean(text: str) -> str:
    """Return a text without what a database does not take: the character 0, and halves of characters."""
    return text if _is_text(text) else text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def _is_text(text: str) -> bool:
    if text.isascii():
        return "\x00" not in text
    return "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
