"""Lists of predictions as clients see them. Cog has none; the names are those of its prediction."""

from __future__ import annotations

from typing import Final

import msgspec

from geartrain.domain.predictions.ledger import Page, Row
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.timestamps import timestamp

_encode: Final = msgspec.json.Encoder().encode


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One prediction of a list, without its output and logs, and without a long input; what is unset is left out."""

    id: str
    status: Status
    version: str
    created_at: str
    started_at: str = ""
    completed_at: str = ""
    error: str = ""
    attempts: int = 1
    cancel_requested: bool = False
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Body(msgspec.Struct, frozen=True):
    """`next` is the cursor that asks for the following page, null on the last one."""

    results: list[_Entry]
    next: str | None


def encode_page(page: Page) -> bytes:
    """Return a page of a list as JSON."""
    return _encode(_Body([_entry(row) for row in page.rows], page.cursor or None))


def _entry(row: Row) -> _Entry:
    return _Entry(
        id=row.ownership.key.id,
        status=row.status,
        version=row.version,
        created_at=timestamp(row.created_at),
        started_at="" if row.started_at is None else timestamp(row.started_at),
        completed_at="" if row.completed_at is None else timestamp(row.completed_at),
        error=row.error,
        attempts=row.attempts,
        cancel_requested=row.is_cancel_requested,
        input=msgspec.Raw(row.echo) if row.echo else msgspec.UNSET,
    )
