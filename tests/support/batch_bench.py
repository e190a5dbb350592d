"""A model that tells its runs and waits at a gate, and the store of the servers whose batches it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from geartrain.server.options import StoreOptions
from geartrain.service.models.deployment import Limits
from tests.support.servers import PATIENCE, Serve, write_model


class Bench:
    """The model adds a line to `runs` in its folder for each run, and may wait for the file `gate` there."""

    def __init__(self, serve: Serve, folder: Path, model: str) -> None:
        self._serve = serve
        self.folder = write_model(folder / "model", model)
        self.url = f"sqlite:///{folder}/store.db"

    def serve(self, **options: Any) -> Any:
        """Serve the model with the store."""
        store = StoreOptions(url=self.url, lease=3.0)
        return self._serve(self.folder, **{"store": store, "limits": Limits(queue=10), **options})

    def runs(self) -> list[str]:
        """Return what was run, in its order."""
        path = self.folder / "runs"
        return path.read_text().splitlines() if path.exists() else []

    def open_gate(self) -> None:
        """Let the runs go on that wait."""
        (self.folder / "gate").touch()

    async def has_run(self, said: str) -> None:
        """Wait until this has begun to run."""
        async with asyncio.timeout(PATIENCE):
            while said not in self.runs():  # noqa: ASYNC110 - the model tells nobody
                await asyncio.sleep(0.01)
