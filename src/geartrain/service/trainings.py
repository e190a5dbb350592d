"""The trainings of a served model: predictions of a second model, with a life of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.signature import Signature
from geartrain.service.model import ModelSetupError
from geartrain.service.predictions import PredictionService

logger = logging.getLogger(__name__)


class Trainings:
    """A service of trainings, whose model may have to be loaded first."""

    def __init__(self, service: PredictionService, load: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """`load` makes the model ready, when it is first needed; None: whoever started it does, at once."""
        self.service = service
        self._load = load
        self._loading: asyncio.Task[None] | None = None
        self._closing = False

    async def ready(self) -> None:
        """Wait until a training can be admitted, or the service itself will say why not.

        Raises `GeartrainError`: `NOT_READY` with the reason when it cannot be loaded, now and for ever;
        `SHUTTING_DOWN`.
        """
        if self._load is None:
            return
        if self._loading is None:
            if self._closing:
                raise GeartrainError(Code.SHUTTING_DOWN, "The server is shutting down and takes no new trainings.")
            self._loading = asyncio.ensure_future(self._load())
            self._loading.add_done_callback(_report)
        await asyncio.wait((self._loading,))  # whoever else waits must not suffer from a caller that gives up
        if self._loading.cancelled():
            raise GeartrainError(Code.SHUTTING_DOWN, "The server is shutting down and takes no new trainings.")
        if (error := self._loading.exception()) is not None:
            reason = error.reason if isinstance(error, ModelSetupError) else str(error)
            raise GeartrainError(Code.NOT_READY, f"The training cannot be loaded: {reason}") from error

    async def signature(self) -> Signature:
        """Return the inputs and the output of a training; raise `NOT_READY` while, or when, they cannot be told."""
        await self.ready()
        return self.service.model.signature

    def close(self) -> None:
        """Admit nothing more."""
        self._closing = True
        self.service.close()

    async def stop(self, grace: float) -> None:
        """End its worker within `grace` seconds."""
        if self._loading is not None:
            self._loading.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._loading
        await self.service.model.stop(grace)


def _report(loading: asyncio.Task[None]) -> None:
    error = None if loading.cancelled() else loading.exception()
    if isinstance(error, ModelSetupError):
        logger.error("the training cannot be loaded", extra={"reason": error.reason, "output": error.logs})
    elif error is not None:
        logger.error("the training cannot be loaded", exc_info=error)
