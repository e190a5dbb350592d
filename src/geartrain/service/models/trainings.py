"""The trainings of a served model: predictions of a second model, whose worker starts and stops by itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.signature.types import Signature
from geartrain.service.models.entry import ModelRef
from geartrain.service.workers.pool import ModelSetupError

logger = logging.getLogger(__name__)


async def _is_loaded_elsewhere() -> None:
    """There is nothing to load when a training is asked for."""


class Trainings:
    """The model that trains, which may have to be loaded first."""

    def __init__(self, ref: ModelRef, load: Callable[[], Coroutine[Any, Any, None]] = _is_loaded_elsewhere) -> None:
        """Create it; `load` makes the model ready on first need. By default the caller has started it."""
        self.ref = ref
        self._load = load
        self._loading: asyncio.Task[None] | None = None
        self._closing = False

    async def ready(self) -> None:
        """Wait until a training can be admitted, or the model itself will say why not.

        Raises `GeartrainError`: `NOT_READY` with the reason when it cannot be loaded, now or later; `SHUTTING_DOWN`.
        """
        if self._loading is None:
            if self._closing:
                raise GeartrainError(Code.SHUTTING_DOWN, "The server is shutting down and takes no new trainings.")
            self._loading = asyncio.ensure_future(self._load())
            self._loading.add_done_callback(_report)
        await asyncio.wait((self._loading,))  # a caller that gives up must not cancel the load of others
        if self._loading.cancelled():
            raise GeartrainError(Code.SHUTTING_DOWN, "The server is shutting down and takes no new trainings.")
        if (error := self._loading.exception()) is not None:
            reason = error.reason if isinstance(error, ModelSetupError) else str(error)
            raise GeartrainError(Code.NOT_READY, f"The training cannot be loaded: {reason}") from error

    async def signature(self) -> Signature:
        """Return the inputs and the output of a training; raise `NOT_READY` while, or when, they cannot be told."""
        await self.ready()
        return self.ref.deployment.interface.signature

    def close(self) -> None:
        """Load nothing more."""
        self._closing = True

    async def stop(self) -> None:
        """Give up what is being loaded."""
        self.close()
        if self._loading is not None:
            self._loading.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._loading


def _report(loading: asyncio.Task[None]) -> None:
    error = None if loading.cancelled() else loading.exception()
    if isinstance(error, ModelSetupError):
        logger.error("the training cannot be loaded", extra={"reason": error.reason, "output": error.logs})
    elif error is not None:
        logger.error("the training cannot be loaded", exc_info=error)
