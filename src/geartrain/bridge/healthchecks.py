"""The healthchecks that a worker has been asked to run."""

from __future__ import annotations

import asyncio

from geartrain.bridge.control import ControlChannel
from geartrain.domain.predictions.calls import HealthVerdict
from geartrain.ipc.messages import Healthcheck, HealthcheckResult


class HealthChecks:
    """Sends the question, and gives each asker its answer."""

    def __init__(self, control: ControlChannel) -> None:
        self._control = control
        self._asked: dict[int, asyncio.Future[HealthVerdict]] = {}
        self._last = 0

    async def ask(self) -> HealthVerdict:
        """Have the author's healthcheck run; wait for it as long as it takes."""
        self._last += 1
        check: asyncio.Future[HealthVerdict] = asyncio.get_running_loop().create_future()
        self._asked[self._last] = check
        self._control.send(Healthcheck(self._last))
        return await check

    def on_result(self, message: HealthcheckResult) -> None:
        """Answer the waiting healthchecks."""
        check = self._asked.pop(message.id, None)
        if check is not None and not check.done():
            check.set_result(HealthVerdict(healthy=message.status == "healthy", error=message.error))

    def fail(self, reason: str) -> None:
        """Answer everybody: the worker is gone."""
        asked, self._asked = self._asked, {}
        for check in asked.values():
            if not check.done():
                check.set_result(gone(reason))


def gone(reason: str) -> HealthVerdict:
    """Return the verdict on a worker that is gone."""
    return HealthVerdict(healthy=False, error=f"Healthcheck error: {reason}")
