"""The child's side of the control channel: a thread, so that it answers while the author's code runs."""

from __future__ import annotations

import inspect
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, Protocol

from geartrain.ipc.messages import (
    Cancel,
    Healthcheck,
    HealthcheckResult,
    Shutdown,
    ShuttingDown,
    TerminalLent,
    TerminalRefused,
    decode_control_to_worker,
)
from geartrain.worker.channels.channel import Channel
from geartrain.worker.errors import describe_error


class Engine(Protocol):
    """Engine of the predictions, for the control thread."""

    def cancel(self, slot: int, serial: int, /) -> None:
        """Stop a call. Called on the control thread."""

    def shut_down(self) -> None:
        """End when the running calls have ended. Called on the control thread."""

    def call_async(self, function: Callable[[], Any]) -> Any:
        """Run an async function of the author where its other async code runs, and return its result."""


class ControlThread:
    """Reads the control channel until the parent closes it, or dies: then this process ends as well."""

    def __init__(self, channel: Channel, on_terminal: Callable[[TerminalLent | TerminalRefused], None]) -> None:
        """`on_terminal` takes the parent's answers to those who want the terminal."""
        self._channel = channel
        self._on_terminal = on_terminal
        self._engine: Engine | None = None
        self._healthcheck: Callable[[], Any] | None = None

    def start(self) -> None:
        """Begin to read."""
        threading.Thread(target=self._read, name="geartrain-control", daemon=True).start()

    def serve(self, engine: Engine, healthcheck: Callable[[], Any] | None) -> None:
        """Take the engine that runs the predictions."""
        self._healthcheck = healthcheck
        self._engine = engine

    def _read(self) -> None:
        while (payload := self._channel.receive()) is not None:
            match decode_control_to_worker(payload):
                case Cancel(slot, serial):
                    if self._engine is not None:
                        self._engine.cancel(slot, serial)
                case Healthcheck(check_id):
                    self._start_check(check_id)
                case TerminalLent() | TerminalRefused() as answer:
                    self._on_terminal(answer)
                case Shutdown():
                    self._channel.send(ShuttingDown())
                    if self._engine is not None:
                        self._engine.shut_down()
                case _:
                    pass
        _end_process_group()

    def _start_check(self, check_id: int) -> None:
        """Run the check on a thread of its own: a slow one must not hold up a cancel.

        The parent asks again only when it has been answered, so a check that hangs is the last one.
        """
        threading.Thread(target=self._check, args=(check_id,), name="geartrain-healthcheck", daemon=True).start()

    def _check(self, check_id: int) -> None:
        error = self._verdict()
        self._channel.send(HealthcheckResult(check_id, "healthy" if error is None else "unhealthy", error))

    def _verdict(self) -> str | None:
        if self._healthcheck is None or self._engine is None:
            return None
        try:
            if inspect.iscoroutinefunction(self._healthcheck):
                verdict = self._engine.call_async(self._healthcheck)
            else:
                verdict = self._healthcheck()
        except BaseException as error:  # noqa: BLE001 - the author's code; also SystemExit
            return f"Healthcheck failed: {describe_error(error)}"
        if verdict is False:
            return "Healthcheck failed: user-defined healthcheck returned False"
        return None


def run_async(function: Callable[[], Any]) -> Any:
    """Run an async function to its end on a loop of its own."""
    import asyncio  # no other sync model needs it, and to load it takes a sixth of a worker's start

    return asyncio.run(function())


def _end_process_group() -> None:
    """End this process and everything that the model has started: the parent is gone."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
