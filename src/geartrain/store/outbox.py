"""The webhooks that have not arrived, as the service's `OutboxPort` describes them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from geartrain.domain.predictions.ledger import LONGEST_PAUSE, Delivery, Key, OutboxEntry
from geartrain.domain.predictions.webhook import Webhook
from geartrain.store import sql
from geartrain.store.groups import Groups
from geartrain.store.ledger import context_of
from geartrain.store.operations import Operation, RowLock, Statement, Steps, Table
from geartrain.store.sealing import Sealer

_decode_webhook: Final = msgspec.msgpack.Decoder(Webhook).decode


class Outbox:
    """The outbox of one store."""

    def __init__(self, groups: Groups, *, sealer: Sealer) -> None:
        self._groups = groups
        self._sealer = sealer

    async def lease(self, owner: str, *, limit: int, seconds: float) -> tuple[OutboxEntry, ...]:
        def steps() -> Steps[tuple[OutboxEntry, ...]]:
            selection = {"owner": owner, "seconds": seconds, "limit": limit, "key_ids": self._sealer.key_ids}
            selection["longest"] = LONGEST_PAUSE + seconds  # due later still: the clock was set back meanwhile
            [leased] = yield [Statement(sql.LEASE_DELIVERIES, selection)]
            return tuple(sorted((self._read(columns) for columns in leased), key=lambda entry: entry.number))

        return await self._groups.run(Operation(steps))

    def _read(self, columns: tuple[Any, ...]) -> OutboxEntry:
        number, model, name, webhook, key_id, body, attempts = columns
        key = Key(model, name)
        opened = self._sealer.open(webhook, key_id, context_of(key))
        return OutboxEntry(number, key, Delivery(_decode_webhook(opened), body), attempts)

    async def remove(self, numbers: Sequence[int]) -> None:
        await asyncio.gather(*(self._change(number, sql.REMOVE_DELIVERY, {}) for number in numbers))

    async def retry_later(self, number: int, seconds: float) -> None:
        await self._change(number, sql.POSTPONE_DELIVERY, {"seconds": seconds})

    def _change(self, number: int, template: str, parameters: dict[str, Any]) -> asyncio.Future[None]:
        def steps() -> Steps[None]:
            yield [Statement(template, {"number": number, **parameters})]

        # Of an entry whose loan is over, another server may be doing the same.
        return self._groups.submit(Operation(steps, lock=RowLock(Table.OUTBOX, number=number)))
