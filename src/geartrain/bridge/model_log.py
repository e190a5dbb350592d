"""What a worker prints outside of predictions, as records of the server's log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from geartrain.domain.printed.lines import PrintedLines

logger = logging.getLogger("geartrain.model")

_PATIENCE = 1.0  # seconds that a line may wait for its end


class ModelLog:
    """Logs a record for each line, of a progress bar its last state."""

    def __init__(self) -> None:
        self._lines = PrintedLines()
        self._timers: list[asyncio.TimerHandle] = []  # one while a line has no end
        self._fields: Mapping[str, object] = {}

    def add(self, text: str, **fields: object) -> None:
        """Take some text; `fields` are those of its records."""
        self._fields = fields
        self._log(self._lines.add(text))
        if self._lines.holds and not self._timers:
            self._timers.append(asyncio.get_running_loop().call_later(_PATIENCE, self.end))

    def end(self) -> None:
        """Log what has no end yet."""
        while self._timers:
            self._timers.pop().cancel()
        self._log(self._lines.end())

    def _log(self, lines: Iterable[str]) -> None:
        for line in lines:
            logger.info(line, extra=dict(self._fields))
