"""The servers that share a store, as the service's `ReplicasPort` describes them."""

from __future__ import annotations

from geartrain.domain.predictions.ledger import Replica, WantedModel
from geartrain.store import sql
from geartrain.store.groups import Groups
from geartrain.store.operations import Operation, RowLock, Statement, Steps, Table


class Replicas:
    """The replicas of one store."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    async def renew(self, owner: str, *, address: str, seconds: float) -> bool:
        def steps() -> Steps[bool]:
            alive, _ = yield [
                Statement(sql.IS_ALIVE, {"owner": owner}),
                Statement(sql.RENEW, {"owner": owner, "address": address, "seconds": seconds}),
            ]
            return bool(alive)

        return await self._groups.run(Operation(steps, lock=RowLock(Table.REPLICAS, id=owner)))

    async def leave(self, owner: str) -> None:
        def steps() -> Steps[None]:
            yield [Statement(sql.LEAVE, {"owner": owner})]

        await self._groups.run(Operation(steps, lock=RowLock(Table.REPLICAS, id=owner)))

    async def alive(self) -> tuple[Replica, ...]:
        def steps() -> Steps[tuple[Replica, ...]]:
            [found] = yield [Statement(sql.REPLICAS, {})]
            return tuple(Replica(*columns) for columns in found)

        return await self._groups.run(Operation(steps, only_reads=True))

    async def want(self, model: str, *, is_wanted: bool) -> WantedModel:
        def steps() -> Steps[WantedModel]:
            [[(name, wanted, revision)]] = yield [Statement(sql.WANT, {"model": model, "is_wanted": int(is_wanted)})]
            return WantedModel(name, wanted == 1, revision)

        return await self._groups.run(Operation(steps, lock=RowLock(Table.WANTED, model)))

    async def wanted(self) -> tuple[WantedModel, ...]:
        def steps() -> Steps[tuple[WantedModel, ...]]:
            [found] = yield [Statement(sql.WANTED, {})]
            return tuple(WantedModel(name, wanted == 1, revision) for name, wanted, revision in found)

        return await self._groups.run(Operation(steps, only_reads=True))
