"""SIGHUP: load the models anew, and take up changed keys and certificates; or end, when a terminal is closed."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final

from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.lifecycle import DORMANT
from geartrain.server.app import App
from geartrain.service.models.entry import ModelEntry

logger = logging.getLogger("geartrain.server")

_STANDARD: Final = (0, 1, 2)  # descriptors


class Reload:
    """Loads the models anew, one after the other, so that never more than one of them is in memory twice.

    A model that cannot be loaded anew goes on as it is.
    """

    def __init__(self, app: App, refresh: Callable[[], None]) -> None:
        """`refresh` takes up changed keys and certificates."""
        self._app = app
        self._refresh = refresh
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_wanted = False

    @property
    def is_running(self) -> bool:
        """True if models are being loaded anew."""
        return bool(self._tasks)

    def request(self) -> None:
        """Begin, or begin once more when the reload at hand is over."""
        self._is_wanted = True
        if not self._tasks:
            task = asyncio.ensure_future(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Begin with no further model."""
        self._is_wanted = False
        for task in self._tasks:
            task.cancel()

    async def _run(self) -> None:
        while self._is_wanted:
            self._is_wanted = False
            self._refresh()
            names = await self._names()
            logger.info("SIGHUP: reloading, one after the other: %s", ", ".join(names) or "no model")
            for name in names:
                await self._load(name)
            logger.info("the reload is over")

    async def _names(self) -> list[str]:
        """Return the models that are loaded or should be, and new ones where all of a folder are served.

        One that rests is read from disk when a request needs it.
        """
        catalogue, found = self._app.catalogue, []
        if self._app.options.load is None:
            found = await asyncio.to_thread(self._app.models.names)
        known = {name: catalogue.entry(name) for name in catalogue.names()}
        return sorted({*found, *known} - {name for name, entry in known.items() if _is_left_alone(entry)})

    async def _load(self, name: str) -> None:
        try:
            await self._app.catalogue.load(name, anew=True)
        except GeartrainError:
            pass  # the catalogue has told it
        except Exception:
            logger.exception("the model %r could not be reloaded", name)


def _is_left_alone(entry: ModelEntry) -> bool:
    return not entry.is_wanted or any(version.state in DORMANT for version in entry.versions.values())


class Terminal:
    """The terminal that the server was started on, if it was: SIGHUP then tells of its end, unless somebody sent it."""

    def __init__(self) -> None:
        self._was_there = _is_there()
        self._shown = [number for number in _STANDARD if os.isatty(number)]

    def leave(self) -> bool:
        """Return True if the terminal has gone; nothing is written to it any more if it has."""
        if not self._was_there or _is_there():
            return False
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for number in self._shown:
            os.dup2(nowhere, number)
        os.close(nowhere)
        return True


def _is_there() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
