"""Runs of rows: by the workers of this process, or by a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
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
from geartrain.domain.tensors.tensor import Buffer
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.rows import RowEnds, begin_rows, takes_rows

if TYPE_CHECKING:
    from geartrain.client.async_client import AsyncModel

MOST_TRIES: Final = 3  # of a row that kills its worker
_FEW: Final = 64  # rows on their way, for any model
_LEAST_SORTED: Final = 512  # for one whose rows are sorted: of so many, those of a small call differ little
_MOST_SORTED: Final = 4096  # calls of 32 texts have 8 % of padding then, and 47 % with 512 rows
_SORTED_SECONDS: Final = 30  # that the sorted rows may take: so much is run again after a cut
_PAUSE: Final = 0.02  # seconds between two looks at a worker that is started again
_LATER: Final = frozenset({Code.NOT_READY, Code.AT_CAPACITY, Code.QUEUE_FULL})
_GONE: Final = frozenset({Health.DEFUNCT, Health.SETUP_FAILED})

OnResults = Callable[[list[Result]], None]


class Runs(Protocol):
    """Runs rows; two kinds of it: here, and at a server."""

    signature: Signature
    on_fault: Callable[[Exception], None]
    """Called with whatever keeps all further rows from being run."""

    @property
    def window(self) -> int:
        """Rows that may be on their way at once, now."""

    async def begin(self, rows: Sequence[Row], on_results: OnResults) -> None:
        """Begin rows, and call `on_results` as they end, with some at a time. Waits until there is a place for them."""

    async def wait_all(self) -> None:
        """Wait until no row is on its way."""

    def cancel_waiting(self) -> None:
        """End the rows that have not begun to run; they get no result."""

    def batch_sizes(self) -> dict[int, int]:
        """Return the runs by the number of their rows; none where there are no batches, or elsewhere."""

    def busy(self, run_time: float, seconds: float) -> float | None:
        """Return the share of time in which the slots of the model ran rows, None for a model elsewhere.

        `run_time`: the sum of the runs of all rows, in so many seconds.
        """


class Window:
    """The number of rows that may be on their way at once: as many as run within some seconds, between two bounds."""

    def __init__(self, least: int, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._least = least
        self._most = most
        self._clock = clock
        self._ended = 0
        self._began: float | None = None

    def begin(self) -> None:
        """Note that rows begin."""
        if self._began is None:
            self._began = self._clock()

    def end(self, rows: int) -> None:
        """Note that so many rows have ended."""
        self._ended += rows

    @property
    def rows(self) -> int:
        """The rows, at the rate so far."""
        if self._least >= self._most or self._began is None:
            return self._least
        rate = self._ended / max(self._clock() - self._began, 1e-9)
        return int(min(max(rate * _SORTED_SECONDS, self._least), self._most))


class LocalRuns:
    """Runs rows by the workers of a model in this process, without a server in between.

    A row whose worker dies is run again, alone, so that those beside it in its batch do not suffer for it.
    """

    def __init__(self, deployment: Deployment, *, window: int = 0) -> None:
        """`window` 0: a few times what the workers run at once, and more where rows are sorted by their cost."""
        self.signature = deployment.interface.signature
        batching = deployment.interface.info.batching
        at_once = deployment.slots * (batching.policy.max_size if batching is not None else 1)
        is_sorted = batching is not None and (batching.policy.padded or batching.policy.sort > 0)
        least = window or max(_LEAST_SORTED if is_sorted else _FEW, 4 * at_once)
        self._window = Window(least, _MOST_SORTED if is_sorted and not window else least)
        self.on_fault: Callable[[Exception], None] = _ignore
        self._deployment = deployment
        self._left = 0  # rows on their way
        self._suspects: list[tuple[Row, OnResults, int]] = []  # with the number of their tries
        self._retrying: asyncio.Task[None] | None = None
        self._none_left: asyncio.Future[None] | None = None

    @property
    def window(self) -> int:
        """Rows that may be on their way at once, now."""
        return self._window.rows

    async def begin(self, rows: Sequence[Row], on_results: OnResults) -> None:
        """Begin rows; see `Runs`."""
        self._window.begin()
        if self._retrying is not None:
            await self._retrying
        await self._begin(rows, on_results, 1)

    async def wait_all(self) -> None:
        """Wait until no row is on its way."""
        await self._wait_none_left()
        while self._retrying is not None:
            await self._retrying

    def cancel_waiting(self) -> None:
        """Cancel predictions that wait for a slot, and run no row again."""
        self._suspects.clear()
        for execution in tuple(self._deployment.executions.live):
            if execution.prediction.status is Status.STARTING:
                execution.cancel()

    def batch_sizes(self) -> dict[int, int]:
        """Return the runs by the number of their rows; see `Runs`."""
        batches = self._deployment.scheduler.context.counts.batches
        return {rows: count.runs for rows, count in batches.items()}

    def busy(self, run_time: float, seconds: float) -> float:
        """Return the share of time in which slots ran rows; see `Runs`."""
        batches = self._deployment.scheduler.context.counts.batches
        if batches:
            run_time = sum(count.predict_time for count in batches.values())
        return run_time / max(seconds * self._deployment.slots, 1e-9)

    async def _begin(self, rows: Sequence[Row], on_results: OnResults, tries: int) -> None:
        ends = _Ends(self, on_results, tries)
        self._left += len(rows)
        if takes_rows(self._deployment):
            pairs = [(row, row.input) for row in rows]
            told = RowEnds(ends.on_output, ends.on_prediction, ends.on_refused)
            await self._when_ready(lambda: begin_rows(self._deployment, pairs, told, queue=2 * self.window), len(rows))
            return
        for row in rows:
            await self._when_ready(partial(self._create, row, ends), 1)

    async def _when_ready(self, begin: Callable[[], None], count: int) -> None:
        """Begin so many rows as soon as there is a worker. Raises `GeartrainError` where none will come back."""
        while True:
            try:
                begin()
            except GeartrainError as error:
                is_gone = error.code is Code.NOT_READY and self._deployment.workers.health in _GONE
                if is_gone or error.code not in _LATER:
                    self.end(count)
                    raise
                await asyncio.sleep(_PAUSE)  # a worker that has died is started again
            else:
                return

    def _create(self, row: Row, ends: _Ends) -> None:
        """Create the prediction of a row."""
        try:
            prediction = self._deployment.create(NewPrediction(input=row.input, queue=2 * self.window))
        except GeartrainError as error:
            if error.code in {Code.NOT_READY, Code.SHUTTING_DOWN}:
                raise
            ends.on_refused(row, error)
            return
        if prediction.is_terminal:
            ends.on_prediction(row, prediction)
        else:
            prediction.log.listen_for_end(partial(ends.on_prediction, row, prediction))

    def retry(self, row: Row, on_results: OnResults, tries: int) -> None:
        """Run a row again that may have killed its worker, when nothing else is on its way."""
        self._suspects.append((row, on_results, tries))
        if self._retrying is None:
            self._retrying = asyncio.ensure_future(self._run_suspects())

    def end(self, count: int) -> None:
        """Note that so many rows are on their way no more."""
        self._left -= count
        self._window.end(count)
        if not self._left and self._none_left is not None:
            self._none_left.set_result(None)
            self._none_left = None

    async def _run_suspects(self) -> None:
        """Run each row that may have killed a worker, with nothing beside it."""
        try:
            while True:
                await self._wait_none_left()
                if not self._suspects:
                    return
                row, on_results, tries = self._suspects.pop(0)
                await self._begin([row], on_results, tries)
        except GeartrainError as error:
            self.on_fault(error)
        finally:
            self._retrying = None

    async def _wait_none_left(self) -> None:
        while self._left:
            if self._none_left is None:
                self._none_left = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._none_left)  # two may wait


class _Ends:
    """Receives the ends of rows that have begun together, and passes on the results of each turn of the loop."""

    def __init__(self, runs: LocalRuns, on_results: OnResults, tries: int) -> None:
        self._runs = runs
        self._on_results = on_results
        self._tries = tries
        self._results: list[Result] = []
        self._ended = 0  # rows since results were passed on

    def on_output(self, row: Row, output: Buffer, predict_time: float) -> None:
        """Take the output of a run that gave nothing else."""
        self._results.append(Result(row.number, row.kept, output, "", predict_time))
        self._end()

    def on_prediction(self, row: Row, prediction: Prediction) -> None:
        """Take a prediction that has ended in another way; a row that may have killed its worker runs again."""
        error, run_time = prediction.error or "", prediction.predict_time or 0.0
        if error.startswith(WORKER_CRASHED) and self._tries < MOST_TRIES:
            self._runs.retry(row, self._on_results, self._tries + 1)
        elif prediction.status is Status.SUCCEEDED:
            output, metrics = prediction.output, prediction.metrics
            self._results.append(Result(row.number, row.kept, output, "", run_time, metrics))
        elif prediction.status is Status.FAILED:
            self._results.append(Result(row.number, row.kept, error=error or "The run failed.", run_time=run_time))
        self._end()

    def on_refused(self, row: Row, error: GeartrainError) -> None:
        """Take the reason why the model does not take a row."""
        sentences = [field.sentence for field in error.fields]
        self._results.append(Result(row.number, row.kept, error="; ".join(sentences) or error.message))
        self._end()

    def _end(self) -> None:
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._pass_on)
        self._ended += 1

    def _pass_on(self) -> None:
        results, self._results = self._results, []
        ended, self._ended = self._ended, 0
        if results:
            self._on_results(results)
        self._runs.end(ended)


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

    async def begin(self, rows: Sequence[Row], on_results: OnResults) -> None:
        """Begin rows; see `Runs`."""
        for row in rows:
            while len(self._tasks) >= self.window:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.ensure_future(self._run(row, on_results))
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

    def batch_sizes(self) -> dict[int, int]:
        """Return nothing: the server makes the batches."""
        return {}

    def busy(self, run_time: float, seconds: float) -> float | None:  # noqa: ARG002 - see `Runs`
        """Return None: the server has the slots."""
        return None

    async def _run(self, row: Row, on_results: OnResults) -> None:
        inputs = msgspec.json.decode(row.input)
        while not self._has_failed:
            try:
                prediction = await self._model.run(inputs)
            except BusyError as busy:
                await asyncio.sleep(busy.retry_after)
                continue
            except InvalidInputError as error:
                on_results([Result(row.number, row.kept, error="; ".join(str(error).splitlines()))])
            except ClientError as error:
                self._has_failed = True
                self.on_fault(error)
            else:
                run_time = float(prediction.metrics.get("predict_time") or 0.0)
                if prediction.status == "succeeded":
                    output = msgspec.json.encode(prediction.output, enc_hook=str)
                    on_results([Result(row.number, row.kept, output, "", run_time, prediction.metrics)])
                else:
                    on_results([Result(row.number, row.kept, error=prediction.error or "The prediction was canceled.")])
            return


def _ignore(_fault: Exception) -> None:
    """Do nothing."""
