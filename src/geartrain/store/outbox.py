"""The webhooks that have not arrived, as the service's `OutboxPort` describes them.

A large body lies in pieces, each in a row of its own: to bind or fetch a value holds the interpreter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from geartrain.domain.predictions.ledger import LONGEST_PAUSE, Delivery, End, Key, OutboxEntry
from geartrain.domain.predictions.prediction import Webhook
from geartrain.store import sql
from geartrain.store.groups import Groups
from geartrain.store.operations import Operation, RowLock, Rows, Statement, Steps, Table
from geartrain.store.sealing import Keys, context_of

PIECE: Final = 1_048_576  # bytes

_decode_webhook: Final = msgspec.msgpack.Decoder(Webhook).decode


class Outbox:
    """The outbox of one store."""

    def __init__(self, groups: Groups, *, sealer: Keys) -> None:
        self._groups = groups
        self._sealer = sealer

    async def lease(self, owner: str, *, limit: int, seconds: float) -> tuple[OutboxEntry, ...]:
        def steps() -> Steps[tuple[OutboxEntry, ...]]:
            selection = {"owner": owner, "seconds": seconds, "limit": limit, "key_ids": self._sealer.key_ids}
            selection["longest"] = LONGEST_PAUSE + seconds  # due later still: the clock was set back meanwhile
            [leased] = yield [Statement(sql.LEASE_DELIVERIES, selection)]
            entries = []
            for *columns, whole, attempts, pieces in sorted(leased):
                number = columns[0]
                body = (yield from _read_pieces(number, pieces)) if pieces else whole
                entries.append(self._entry(columns, body, attempts))
            return tuple(entries)

        return await self._groups.run(Operation(steps))

    def _entry(self, columns: Sequence[Any], body: bytes, attempts: int) -> OutboxEntry:
        number, model, name, webhook, key_id = columns
        key = Key(model, name)
        opened = self._sealer.open(webhook, key_id, context_of(key))
        return OutboxEntry(number, key, Delivery(_decode_webhook(opened), body), attempts)

    async def remove(self, numbers: Sequence[int]) -> None:
        await asyncio.gather(*(self._change(number, sql.REMOVE_DELIVERY, sql.REMOVE_PIECES) for number in numbers))

    async def retry_later(self, number: int, seconds: float) -> None:
        await self._change(number, sql.POSTPONE_DELIVERY, seconds=seconds)

    def _change(self, number: int, *templates: str, **parameters: Any) -> asyncio.Future[None]:
        def steps() -> Steps[None]:
            yield [Statement(template, {"number": number, **parameters}) for template in templates]

        # Of an entry whose loan is over, another server may be doing the same.
        return self._groups.submit(Operation(steps, lock=RowLock(Table.OUTBOX, number=number)))


def deliveries(key: Key, end: End, sealer: Keys) -> list[Statement]:
    """Make the statements that add the webhooks of an end. `add_pieces` adds their large bodies."""
    statements = []
    for delivery in end.deliveries:
        webhook, key_id = sealer.seal(msgspec.msgpack.encode(delivery.webhook), context_of(key))
        pieces = _pieces_of(delivery.body)
        values: dict[str, Any] = {"model": key.model, "id": key.id, "webhook": webhook, "key_id": key_id}
        values |= {"body": b"" if pieces else delivery.body, "pieces": pieces}
        statements.append(Statement(sql.ADD_DELIVERY, values))
    return statements


def add_pieces(end: End, added: Sequence[Rows]) -> Steps[None]:
    """Add the pieces of large bodies, given what the statements of `deliveries` have returned."""
    for delivery, [(number,)] in zip(end.deliveries, added, strict=True):
        for piece in range(_pieces_of(delivery.body)):
            part = delivery.body[piece * PIECE : (piece + 1) * PIECE]
            yield [Statement(sql.ADD_PIECE, {"number": number, "piece": piece, "body": part})]


def _pieces_of(body: bytes) -> int:
    """Return in how many pieces a body lies; 0 for one that lies in its row."""
    return -(-len(body) // PIECE) if len(body) > PIECE else 0


def _read_pieces(number: int, count: int) -> Steps[bytes]:
    found = []
    for piece in range(count):
        [[(body,)]] = yield [Statement(sql.READ_PIECE, {"number": number, "piece": piece})]
        found.append(body)
    return b"".join(found)
