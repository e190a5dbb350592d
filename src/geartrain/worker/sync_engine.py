"""Runs a sync `run()`: one slot, on the main thread, stopped by a signal."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from geartrain.authoring import CancelationException
from geartrain.bridge.messages import Predict, PredictBatch, decode_slot_to_worker
from geartrain.worker.cancellation import CancelRegion
from geartrain.worker.channel import Channel
from geartrain.worker.control import run_async
from geartrain.worker.forks import end_fork
from geartrain.worker.job import JobTools, Runnable
from geartrain.worker.jobs import first_call

_STREAMS = (types.GeneratorType, map, filter, zip)


class SyncEngine:
    """The loop of a worker whose `run()` is a plain function or a generator."""

    def __init__(self, run: Callable[..., Any], channel: Channel, region: CancelRegion, *, streams: bool) -> None:
        """`streams`: the output is declared as an iterator, so whatever comes back is given chunk by chunk."""
        self._run = run
        self._channel = channel
        self._region = region
        self._streams = streams
        self._stopping = False

    def serve(self, tools: JobTools, flush_c: Callable[[], None]) -> None:
        """Run job after job until the parent closes the slot. `flush_c` empties the C library's own buffer."""
        receive = self._channel.receive
        while not self._stopping:
            payload = receive()
            if payload is None:
                return
            self._serve_one(decode_slot_to_worker(payload), tools, flush_c)

    def cancel(self, _slot: int, serial: int) -> None:
        """Stop the job, now or as soon as it begins."""
        self._region.request(serial)

    def shut_down(self) -> None:
        """End after the running job."""
        self._stopping = True

    def call_async(self, function: Callable[[], Any]) -> Any:
        """Run an async healthcheck: this worker has no loop, so it gets one of its own."""
        return run_async(function)

    def _serve_one(self, message: Predict | PredictBatch, tools: JobTools, flush_c: Callable[[], None]) -> None:
        job: Runnable | None = first_call(message, self._channel, tools)
        while job is not None:
            try:
                with job:
                    report = self._call(job)
                    end_fork()
                    flush_c()
                report()
            except BaseException as error:  # noqa: BLE001 - e.g. an output that is no JSON
                job.fail(error)
            job = job.follow_up()

    def _call(self, job: Runnable) -> Callable[[], None]:
        """Run the author's code; return the report that ends the job."""
        region = self._region
        report: Callable[[], None]
        try:
            try:
                arguments = job.arguments()
                if not region.enter(job.serial):
                    return job.cancelled
                value = self._run(**arguments)
                if self._streams or isinstance(value, _STREAMS):
                    self._give(value, job)
                    report = job.succeed_stream
                else:
                    report = partial(job.succeed, value)  # encoded outside the cancelable region
            finally:
                region.leave()
        except CancelationException as error:
            region.leave()
            return job.cancelled if region.was_requested(job.serial) else _failure(job, error)
        except BaseException as error:  # noqa: BLE001 - the author's code may raise anything, also SystemExit
            return job.cancelled if region.was_requested(job.serial) else _failure(job, error)
        # A model that swallows its cancel and returns has been canceled all the same.
        return job.cancelled if region.was_requested(job.serial) else report

    @staticmethod
    def _give(values: object, job: Runnable) -> None:
        if not isinstance(values, Iterable) or isinstance(values, str | bytes | dict):
            job.send_chunk(values)
            return
        for value in values:
            try:
                job.send_chunk(value, may_wait=True)
            except CancelationException as error:
                # It came while the generator was waiting at its yield: that is where the author expects it.
                if isinstance(values, types.GeneratorType):
                    values.throw(error)
                raise
            except Exception:  # what was given is no output, or nobody waits for more
                if isinstance(values, types.GeneratorType):
                    values.close()
                raise


def _failure(job: Runnable, error: BaseException) -> Callable[[], None]:
    return lambda: job.fail(error)
