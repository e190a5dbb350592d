"""Runs of rows: by the workers of this process, or by a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from geartrain.client.errors import BusyError, ClientError, InvalidInputError
from geartrain.dataset.columns import Row
from geartrain.dataset.results import Result
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.calls import WORKER_CRASHED
from geartrain.domain.predictions.lifecycle import Health, Status
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.signature.types import Signature
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment

if TYPE_CHECKING:
    from geartrain.client.async_client import AsyncModel

MOST_TRIES: Final = 3  # of a row that kills its worker
_PAUSE: Final = 0.02  # seconds between two looks at a worker that is started again
_GONE: Final = frozenset({Health.DEFUNCT, Health.SETUP_FAILED})

OnResult = Callable[[Result], None]


class Runs(Protocol):
    """Runs rows; two kinds of it: here, and at a server."""

    signature: Signature
    window: int
    """Rows that may be on their way at once."""
    on_fault: Callable[[Exception], None]
    """Called with whatever keeps all further rows from being run."""

    async def begin(self, row: Row, on_result: OnResult) -> None:
        """Begin a row, and call `on_result` at its end. Waits until there is a place for it."""

    async def wait_all(self) -> None:
        """Wait until no row is on its way."""

    def cancel_waiting(self) -> None:
        """End the rows that have not begun to run; they get no result."""


class LocalRuns:
    """Runs rows by the workers of a model in this process, without a server in between.

    A row whose worker dies is run again, alone, so that those beside it in its batch do not suffer for it.
    """

    def __init__(self, deployment: Deployment, *, window: int = 0) -> None:
        """`window` 0: a few times what the workers run at once."""
        self.signature = deployment.interface.signature
        batching = deployment.interface.info.batching
        at_once = deployment.slots * (batching.policy.max_size if batching is not None else 1)
        self.window = window or max(64, 4 * at_once)
        self.on_fault: Callable[[Exception], None] = _ignore
        self._deployment = deployment
        self._live: set[Prediction] = set()
        self._suspects: list[tuple[Row, OnResult, int]] = []  # with the number of their tries
        self._retrying: asyncio.Task[None] | None = None
        self._none_left: asyncio.Future[None] | None = None

    async def begin(self, row: Row, on_result: OnResult) -> None:
        """Begin a row; see `Runs`."""
        if self._retrying is not None:
            await self._retrying
        await self._begin(row, on_result, 1)

    async def wait_all(self) -> None:
        """Wait until no row is on its way."""
        await self._wait_live()
        while self._retrying is not None:
            await self._retrying

    def cancel_waiting(self) -> None:
        """Cancel predictions that wait for a slot, and run no row again."""
        self._suspects.clear()
        for prediction in tuple(self._live):
            if prediction.status is Status.STARTING:
                execution = self._deployment.predictions.live.get(prediction.id)
                if execution is not None:
                    execution.cancel()

    def batch_sizes(self) -> dict[int, int]:
        """Return the runs by the number of their rows; none of a model that takes no batches."""
        batches = self._deployment.scheduler.context.counts.batches
        return {rows: count.runs for rows, count in batches.items()}

    async def _begin(self, row: Row, on_result: OnResult, tries: int) -> None:
        prediction = await self._create(row, on_result)
        if prediction is None:
            return
        self._live.add(prediction)

        def on_end() -> None:
            self._live.discard(prediction)
            self._on_end(row, prediction, on_result, tries=tries)
            if not self._live and self._none_left is not None:
                self._none_left.set_result(None)
                self._none_left = None

        if prediction.is_terminal:
            on_end()
        else:
            prediction.log.listen_for_end(on_end)

    async def _create(self, row: Row, on_result: OnResult) -> Prediction | None:
        """Create the prediction of a row, None for one that the model does not take.

        Raises `GeartrainError` where no worker will come back.
        """
        while True:
            try:
                return self._deployment.create(NewPrediction(input=row.input, queue=2 * self.window))
            except GeartrainError as error:
                if error.code is Code.NOT_READY and self._deployment.workers.health not in _GONE:
                    await asyncio.sleep(_PAUSE)  # a worker that has died is started again
                    continue
                if error.code in {Code.NOT_READY, Code.SHUTTING_DOWN}:
                    raise
                sentences = [field.sentence for field in error.fields]
                on_result(Result(row.number, row.kept, error="; ".join(sentences) or error.message))
                return None

    def _on_end(self, row: Row, prediction: Prediction, on_result: OnResult, *, tries: int) -> None:
        error = prediction.error or ""
        if error.startswith(WORKER_CRASHED) and tries < MOST_TRIES:
            self._suspects.append((row, on_result, tries + 1))
            if self._retrying is None:
                self._retrying = asyncio.ensure_future(self._run_suspects())
            return
        run_time = prediction.predict_time or 0.0
        if prediction.status is Status.SUCCEEDED:
            on_result(Result(row.number, row.kept, prediction.output, "", run_time, prediction.metrics))
        elif prediction.status is Status.FAILED:
            on_result(Result(row.number, row.kept, error=error or "The run failed.", run_time=run_time))

    async def _run_suspects(self) -> None:
        """Run each row that may have killed a worker, with nothing beside it."""
        try:
            while True:
                await self._wait_live()
                if not self._suspects:
                    return
                await self._begin(*self._suspects.pop(0))
        except GeartrainError as error:
            self.on_fault(error)
        finally:
            self._retrying = None

    async def _wait_live(self) -> None:
        while self._live:
            if self._none_left is None:
                self._none_left = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._none_left)  # two may wait


class RemoteRuns:
    """Runs rows by a server. A server that is busy is asked again until it has a place."""

    def __init__(self, model: AsyncModel[Any], signature: Signature, *, window: int = 64) -> None:
        """`window`: requests at once."""
        self.signature = signature
        self.window = window
        self._model = model
        self.on_fault: Callable[[Exception], None] = _ignore
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_failed = False

    async def begin(self, row: Row, on_result: OnResult) -> None:
        """Begin a row; see `Runs`."""
        while len(self._tasks) >= self.window:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.ensure_future(self._run(row, on_result))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait_all(self) -> None:
        """Wait until no row is on its way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def cancel_waiting(self) -> None:
        """Cancel all requests: a client cannot tell which of them wait."""
        for task in self._tasks:
            task.cancel()

    async def _run(self, row: Row, on_result: OnResult) -> None:
        inputs = msgspec.json.decode(row.input)
        while not self._has_failed:
            try:
                prediction = await self._model.run(inputs)
            except BusyError as busy:
                await asyncio.sleep(busy.retry_after)
                continue
            except InvalidInputError as error:
                on_result(Result(row.number, row.kept, error="; ".join(str(error).splitlines())))
            except ClientError as error:
                self._has_failed = True
                self.on_fault(error)
            else:
                run_time = float(prediction.metrics.get("predict_time") or 0.0)
                if prediction.status == "succeeded":
                    output = msgspec.json.encode(prediction.output, enc_hook=str)
                    on_result(Result(row.number, row.kept, output, "", run_time, prediction.metrics))
                else:
                    on_result(Result(row.number, row.kept, error=prediction.error or "The prediction was canceled."))
            return


def _ignore(_fault: Exception) -> None:
    """Do nothing."""
