"""A store that is open: an engine in its thread, and what is asked of it."""

from __future__ import annotations

import asyncio

from geartrain.store import sql
from geartrain.store.files import Folder, PartFiles
from geartrain.store.groups import Groups
from geartrain.store.ledger import Ledger
from geartrain.store.operations import Engine, Operation, Statement, Steps
from geartrain.store.outbox import Outbox
from geartrain.store.replicas import Replicas
from geartrain.store.sealing import Sealer


class Store:
    """A store of predictions, as the service's `StorePort` describes it."""

    def __init__(self, engine: Engine, *, sealer: Sealer, files: PartFiles, answer_within: float) -> None:
        """`answer_within`: seconds after which a call has failed if it has no answer."""
        self._groups = Groups(engine, answer_within=answer_within)
        self._files = files
        self.ledger = Ledger(self._groups, sealer=sealer, files=files)
        self.outbox = Outbox(self._groups, sealer=sealer)
        self.replicas = Replicas(self._groups)

    async def open(self) -> None:
        await self._groups.open()

    async def remove_lost_files(self, folder: Folder) -> None:
        """Remove the files that no row names. No other server may be writing any."""

        def steps() -> Steps[frozenset[str]]:
            [found] = yield [Statement(sql.ALL_FILES, {})]
            return frozenset(file for (file,) in found)

        names = await self._groups.run(Operation(steps, only_reads=True))
        await asyncio.to_thread(folder.remove_others, names)

    async def check(self) -> None:
        def steps() -> Steps[None]:
            yield [Statement(sql.READ_VERSION, {})]

        await self._groups.run(Operation(steps, only_reads=True))

    async def close(self) -> None:
        await self._groups.close()
