"""One live prediction between the service and its worker: from its permit to the permit's return."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.events import LogSource, MetricMode
from geartrain.domain.prediction import Prediction
from geartrain.domain.work import Canceled, Failed, FileRef, Job, Outcome, Succeeded
from geartrain.service.deliveries import Deliveries
from geartrain.service.permits import Permit
from geartrain.service.ports import FolderPort, WorkerPort
from geartrain.service.statistics import Fault

if TYPE_CHECKING:
    from geartrain.service.predictions import PredictionService

Step = Callable[[], Coroutine[Any, Any, None] | None]


class Execution:
    """Hears the worker (`JobListener`) and writes the prediction's log.

    A report with files takes time: they become URLs first. What comes after it waits behind it, so the log keeps the
    order of the run, and the permit stays with it, so no later run overwrites a file before it was read. Without files
    nothing waits, and there is no task.
    """

    __slots__ = (
        "_began_at",
        "_behind",
        "_canceled",
        "_cut",
        "_deliveries",
        "_delivery_error",
        "_ended_at",
        "_folder",
        "_is_fetching",
        "_is_over",
        "_job",
        "_killed",
        "_overdue",
        "_patience",
        "_permit",
        "_preparation",
        "_refusal",
        "_service",
        "_task",
        "_values",
        "_worker",
        "admitted_at",
        "is_kept",
        "output_prefix",
        "prediction",
    )

    def __init__(
        self, service: PredictionService, prediction: Prediction, job: Job, *, values: dict[str, Any] | None
    ) -> None:
        """`values`: the decoded input, if it has files to fetch."""
        self.prediction = prediction
        self.is_kept = False
        self.admitted_at = 0.0  # as all moments here, on the service's clock
        self.output_prefix: str | None = None  # where its client wants its output files
        self._service = service
        self._job = job
        self._values = values
        self._permit: Permit | None = None  # once it may run
        self._began_at = 0.0  # when that was
        self._worker: WorkerPort | None = None  # once it runs there
        self._task: asyncio.Task[None] | None = None  # works off what waits
        self._behind: deque[Step] | None = None  # what waits behind a delivery
        self._deliveries: Deliveries | None = None
        self._delivery_error: str | None = None
        self._ended_at = 0.0  # when it ended, where that is known already
        self._is_over = False  # the run; what it gave may still be on its way
        self._cut = False  # a cancel has stopped what was on its way
        self._folder: FolderPort | None = None
        self._preparation: asyncio.Task[None] | None = None  # fetches inputs
        self._is_fetching = False
        self._canceled = False  # before it ran
        self._overdue: asyncio.TimerHandle | None = None  # ends a worker that does not heed a cancel
        self._killed = False
        self._patience: asyncio.TimerHandle | None = None  # ends its waiting for a slot
        self._refusal: Code | None = None

    @property
    def batch_rows(self) -> int | None:
        """Its rows, if it is a part of a batch."""
        return None

    def is_of(self, service: PredictionService) -> bool:
        """Whether it belongs to that service; see `PredictionService.make_way`."""
        return self._service is service

    # its beginning

    def wait(self, patience: float | None) -> None:
        """It has a place in the queue, for so many seconds."""
        if patience is not None:
            self._patience = asyncio.get_running_loop().call_later(patience, self._give_up)

    def _give_up(self) -> None:
        if self._worker is None and self._permit is None and not self._is_over:
            self._service.leave_queue(self)
            self.refuse(GeartrainError(Code.TIMED_OUT, "Request timeout expired"))

    def begin(self, permit: Permit, at: float) -> None:
        """Take a permit, and run on its worker or prepare to."""
        worker = permit.worker
        if worker is None:
            msg = "the permit is of no worker"
            raise RuntimeError(msg)
        self._permit = permit
        self._began_at = at
        if self._patience is not None:
            self._patience.cancel()
        if self._values is None:
            self._launch(permit, worker, self._job, at=at)
        else:
            self._prepare(self._values, lambda job: self._launch(permit, worker, job, at=self._service.clock()))

    def _launch(self, permit: Permit, worker: WorkerPort, job: Job, *, at: float) -> None:
        self._worker = worker
        self.prediction.start(at)
        worker.run(permit.slot, job, self)

    def _prepare(self, values: dict[str, Any], then: Callable[[Job], None]) -> None:
        """Fetch the files of the input, and give the job with local paths to `then`."""
        folder = self._folder = self._service.new_folder()
        self._preparation = asyncio.ensure_future(self._fetch(values, folder, then))
        self._values = None  # they may be large

    async def _fetch(self, values: dict[str, Any], folder: FolderPort, then: Callable[[Job], None]) -> None:
        self._is_fetching = True
        try:
            if self._canceled:
                raise asyncio.CancelledError
            local = await self._service.input_files.fetch(values, folder.path)
            self._is_fetching = False
            job = msgspec.structs.replace(self._job, input=msgspec.json.encode(local))
        except asyncio.CancelledError:
            self.on_end(Canceled(), (), idle=True)
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the client hears of it and the slot returns
            self.on_end(Failed(str(error)), (), idle=True)
        else:
            then(job)

    def refuse(self, reason: GeartrainError) -> None:
        """End it before it began: it was waiting, and there is nothing to wait for any more."""
        self._refusal = reason.code
        self._finish(Failed(reason.message), idle=False)

    def cancel(self) -> None:
        """Ask for its end."""
        if self._permit is None:
            self._service.leave_queue(self)
            self._finish(Canceled(), idle=False)
        elif self._worker is not None:
            if self._deliveries is not None and self._deliveries.cut():
                self._cut = True
            if not self._is_over:
                self._stop_run(self._permit, self._worker)
        else:
            self._stop_preparation()

    def _stop_preparation(self) -> None:
        if not self._canceled:
            self._canceled = True  # a task that is canceled before its first step would never say so
            if self._is_fetching and self._preparation is not None:
                self._preparation.cancel()

    def _stop_run(self, permit: Permit, worker: WorkerPort) -> None:
        worker.cancel(permit.slot, self.prediction.id)
        grace = self._service.cancel_grace
        if self._overdue is None and grace is not None:
            self._overdue = asyncio.get_running_loop().call_later(grace, self._kill, grace)

    def _kill(self, grace: float) -> None:
        if self._worker is not None:
            self._killed = True
            self._worker.kill(f"killed, because a canceled prediction had not ended after {grace:g} seconds")

    # the worker's reports

    def on_output(self, chunk: bytes, files: tuple[FileRef, ...]) -> None:
        """See `JobListener`."""
        if files:
            delivery = self._begin_delivery(chunk, files)
            self._wait(lambda: self._give_chunk(delivery))
        elif self._behind is None:
            self.prediction.add_output(chunk)
        else:
            self._behind.append(lambda: self.prediction.add_output(chunk))

    def on_log(self, source: LogSource, data: str) -> None:
        """See `JobListener`."""
        if self._behind is None:
            self.prediction.add_log(source, data)
        else:
            self._behind.append(lambda: self.prediction.add_log(source, data))

    def on_metric(self, name: str, value: Any, mode: MetricMode) -> None:
        """See `JobListener`."""
        if self._behind is None:
            self.prediction.add_metric(name, value, mode)
        else:
            self._behind.append(lambda: self.prediction.add_metric(name, value, mode))

    def on_end(self, outcome: Outcome, files: tuple[FileRef, ...], *, idle: bool) -> None:
        """See `JobListener`."""
        self._is_over = True
        if idle:
            self._stop_clock()
        delivery = None
        if files and isinstance(outcome, Succeeded) and outcome.output is not None:
            delivery = self._begin_delivery(outcome.output, files)
        elif files and self._worker is not None:
            self._worker.discard(files)
        if delivery is not None or self._folder is not None:
            self._wait(lambda: self._give_end(outcome, delivery, idle=idle))
        elif self._behind is not None:
            self._behind.append(lambda: self._finish(outcome, idle=idle))
        else:
            self._finish(outcome, idle=idle)

    def on_idle(self) -> None:
        """See `JobListener`."""
        self._stop_clock()
        if self._permit is not None:
            self._service.give_back(self._permit)

    def _stop_clock(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()

    # what takes time

    def _wait(self, step: Step) -> None:
        if self._behind is None:
            self._behind = deque((step,))
            self._task = asyncio.ensure_future(self._work_off(self._behind))
        else:
            self._behind.append(step)

    async def _work_off(self, behind: deque[Step]) -> None:
        while behind:
            pending = behind.popleft()()
            if pending is not None:
                await pending
        self._behind = None

    def _begin_delivery(self, output: bytes, files: tuple[FileRef, ...]) -> asyncio.Task[bytes]:
        if self._worker is None:
            msg = "there is no run to deliver files of"
            raise RuntimeError(msg)
        if self._deliveries is None:
            outputs = self._service.outputs.of(self.prediction.id, self.output_prefix)
            self._deliveries = Deliveries(outputs, self._worker, packed=self._is_packed())
        delivery = self._deliveries.begin(output, files)
        if self._cut or self._delivery_error is not None:
            delivery.cancel()  # it has nowhere to go
        return delivery

    def _is_packed(self) -> bool:
        """Whether its outputs are JSON and tensors in one piece."""
        return self._job.tensors is not None and self._service.model.view.gives_tensors

    async def _give_chunk(self, delivery: asyncio.Task[bytes]) -> None:
        output = await self._delivered(delivery)
        if output is not None:
            self.prediction.add_output(output)

    async def _give_end(self, outcome: Outcome, delivery: asyncio.Task[bytes] | None, *, idle: bool) -> None:
        output = None if delivery is None else await self._delivered(delivery)
        if output is not None and isinstance(outcome, Succeeded):
            outcome = Succeeded(output, outcome.predict_time)
        if self._folder is not None:
            await self._folder.remove()
        self._finish(outcome, idle=idle)

    async def _delivered(self, delivery: asyncio.Task[bytes]) -> bytes | None:
        await asyncio.wait((delivery,))  # unlike awaiting itself, this tells its cancellation from our own
        if delivery.cancelled():
            return None
        error = delivery.exception()
        if error is None:
            return delivery.result()
        if self._delivery_error is None:
            self._delivery_error = str(error)
            self.cancel()  # what the run still makes has nowhere to go
        return None

    # its end

    def _finish(self, outcome: Outcome, *, idle: bool) -> None:
        service = self._service
        self._is_over = True
        service.forget(self)
        if idle and self._permit is not None:
            # Before the log says so: whoever reads of the end may use the slot at once.
            self._stop_clock()
            service.give_back(self._permit)
        at = self._ended_at or service.clock()
        if self._delivery_error is not None:
            outcome = Failed(self._delivery_error)
        elif self._killed or self._cut:
            outcome = Canceled()
        match outcome:
            case Succeeded(output, predict_time):
                began = self._began_at
                started = self.prediction.started_at or began
                service.counts.add_success(
                    self.admitted_at, began, started, ended=at, predict_time=predict_time, rows=self.batch_rows
                )
                self.prediction.succeed(output, at=at, predict_time=predict_time, packed=self._is_packed())
            case Failed(error):
                self._count_fault(at, outcome)
                self.prediction.fail(error, at=at, code=self._refusal)
            case Canceled():
                self._count_fault(at, outcome)
                self.prediction.cancel(at=at)

    def _count_fault(self, at: float, outcome: Outcome) -> None:
        ran = self._worker is not None
        fault: Fault = "BACKEND" if ran and self._delivery_error is None else "OTHER"
        if isinstance(outcome, Canceled):
            fault = "CANCELED"
        elif self._refusal is not None:
            fault = "REJECTED"
        took = at - self.admitted_at
        in_batch = self.batch_rows is not None
        self._service.counts.add_fault(fault, took, ran_until=at if ran else None, in_batch=in_batch)
