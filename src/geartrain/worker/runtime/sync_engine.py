"""Runs a sync `run()`: one slot, on the main thread, stopped by a signal."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from geartrain.authoring import CancelationException
from geartrain.ipc.messages import ModelAnswer, Predict, Withdraw, decode_call
from geartrain.worker.calls.call import Call, CallTools
from geartrain.worker.channels import forks
from geartrain.worker.channels.cancellation import CancelRegion
from geartrain.worker.channels.slot import Slot
from geartrain.worker.runtime.control import run_async
from geartrain.worker.runtime.model_calls import ModelCalls
from geartrain.worker.values.faults import note_yield

STREAMS: Final = (types.GeneratorType, map, filter, zip)
"""Types of results that are sent chunk by chunk, whatever the annotation says."""


class SyncEngine:
    """The loop of a worker whose `run()` is a plain function or a generator."""

    def __init__(
        self,
        run: Callable[..., Any],
        slot: Slot,
        region: CancelRegion,
        *,
        models: ModelCalls,
        streams: bool,
        new_call: type[Call] = Call,
    ) -> None:
        """`streams`: the output is declared as an iterator, so whatever comes back is given chunk by chunk."""
        self._run = run
        self._slot = slot
        self._region = region
        self._models = models
        self._streams = streams
        self._new_call = new_call
        self._stopping = False
        self._ahead = models.others  # received while the slot was looked at for a `Withdraw`, or a model was called

    def serve(self, tools: CallTools, flush_c: Callable[[], None]) -> None:
        """Run call after call until the parent closes the slot. `flush_c` empties the C library's own buffer."""
        receive, ahead = self._slot.channel.receive, self._ahead
        served = 0  # calls since the last look at the socket
        while not self._stopping:
            if ahead:
                message = ahead.popleft()
            else:
                # Several calls that came together are of a busy parent: a wait awake would slow down its clients.
                payload = receive(asleep=served > 1)
                served = 0
                if payload is None:
                    return
                message = decode_call(payload)
            if type(message) is not Predict:  # the withdrawal of a call that has ended, or a late answer
                if type(message) is ModelAnswer:
                    self._models.on_answer(message)
                continue
            served += 1
            if message.prefetched:
                self._look_ahead()
            self._models.begin_run(message)
            self._serve_one(message, tools, flush_c)
            self._models.end_run()

    def _look_ahead(self) -> None:
        """Note which of the calls that have come, or are about to begin, have been withdrawn."""
        for payload in self._slot.channel.receive_ready() or ():
            message = decode_call(payload)
            self._ahead.append(message)
            if type(message) is Withdraw:
                self._region.withdraw(message.serial)

    def cancel(self, _slot: int, serial: int) -> None:
        """Stop the call, now or as soon as it begins."""
        self._region.request(serial)

    def shut_down(self) -> None:
        """End after the running call."""
        self._stopping = True

    def call_async(self, function: Callable[[], Any]) -> Any:
        """Run an async healthcheck: this worker has no loop, so it gets one of its own."""
        return run_async(function)

    def _serve_one(self, message: Predict, tools: CallTools, flush_c: Callable[[], None]) -> None:
        call = self._new_call(message, self._slot, tools)
        while True:
            try:
                with call:
                    report = self._invoke(call)
                    if forks.in_fork:
                        forks.end_fork()
                    flush_c()
                report()
            except BaseException as error:  # noqa: BLE001 - e.g. an output that is no JSON
                call.fail(error)
            if not call.waiting:
                return

    def _invoke(self, call: Call) -> Callable[[], None]:
        """Run the author's code; return what reports the end of this invocation."""
        region = self._region
        report: Callable[[], None]
        try:
            try:
                arguments = call.arguments()
                if not region.enter(call.serial):
                    return call.cancelled
                value = self._run(**arguments)
                if self._streams or isinstance(value, STREAMS):
                    self._give(value, call)
                    report = call.succeed_stream
                else:
                    report = partial(call.succeed, value)  # encoded outside the cancelable region
            finally:
                region.leave()
        except CancelationException as error:
            region.leave()
            return call.cancelled if region.was_requested(call.serial) else call.failure(error)
        except BaseException as error:  # noqa: BLE001 - the author's code may raise anything, also SystemExit
            return call.cancelled if region.was_requested(call.serial) else call.failure(error)
        # A model that swallows its cancel and returns has been canceled all the same.
        return call.cancelled if region.was_requested(call.serial) else report

    @staticmethod
    def _give(values: object, call: Call) -> None:
        if not isinstance(values, Iterable) or isinstance(values, str | bytes | dict):
            call.send_chunk(values)
            return
        for value in values:
            try:
                call.send_chunk(value, may_wait=True)
            except CancelationException as error:
                # It came while the generator was waiting at its yield: that is where the author expects it.
                if isinstance(values, types.GeneratorType):
                    values.throw(error)
                raise
            except Exception as error:  # an output is none, or no item is left
                if isinstance(values, types.GeneratorType):
                    note_yield(error, values.gi_frame)
                    values.close()
                raise
