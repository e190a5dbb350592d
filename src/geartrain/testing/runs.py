"""Runs of a model in the test's own process."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from geartrain.bridge.payloads import parts_of, predict_of
from geartrain.domain.predictions.calls import CallInput, ItemInput
from geartrain.ipc.messages import Inline
from geartrain.testing.calls import LocalCall, LocalChannel, Prints
from geartrain.testing.errors import CanceledError, RequestFailedError
from geartrain.testing.fakes import Fake, other_models
from geartrain.testing.inputs import InputReader
from geartrain.testing.models import LoadedModel, loaded
from geartrain.testing.steps import Drive, Steps, make_steps
from geartrain.worker.calls.call import CallTools, tools_of_model
from geartrain.worker.channels.cancellation import CancelRegion
from geartrain.worker.channels.slot import OpenedMemory, Slot
from geartrain.worker.loading.finding import Mode
from geartrain.worker.loading.setup import arguments_of_setup
from geartrain.worker.values.call_files import CallFiles
from geartrain.worker.values.faults import note_run
from geartrain.worker.values.output_check import contract_of
from geartrain.worker.values.outputs import OutputEncoder


@contextmanager
def open_run(
    model: Any,
    *,
    mode: Mode,
    weights: str | None,
    context: Mapping[str, str] | None,
    parameters: Mapping[str, str | int | float | bool] | None,
    models: Mapping[str, Fake] | None,
) -> Iterator[Run]:
    """Load a model and set it up, for a `with` block."""
    with ExitStack() as stack:
        stack.enter_context(other_models(models))
        found = stack.enter_context(loaded(model, mode))
        folder = Path(tempfile.mkdtemp(prefix="geartrain-test-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        drive = Drive()
        stack.callback(drive.close)
        region = stack.enter_context(_cancel_region())
        with found.at_home():
            _set_up(found, weights, drive)
        yield Run(found, folder, drive=drive, region=region, context=dict(context or {}), parameters=parameters or {})


class Run:
    """A model that has been set up: `run(text="hello")` runs it, as often as you like.

    `instance` is the object of the model's class, None for a model that is a function.
    """

    def __init__(
        self,
        model: LoadedModel,
        folder: Path,
        *,
        drive: Drive,
        region: CancelRegion,
        context: dict[str, str],
        parameters: Mapping[str, str | int | float | bool],
    ) -> None:
        self.instance: Any = model.runner.instance
        self._model = model
        self._runner = runner = model.runner
        self._folder = folder
        self._drive = drive
        self._region = region
        self._of_request = {"context": context or None, "parameters": dict(parameters) or None}
        self._reader = InputReader(runner, self._new_folder)
        self._serial = 0
        self._prints = Prints(model.at_home)
        self._steps: Steps | None = None

    def __call__(self, /, **inputs: Any) -> Any:
        """Run the model and return what `run()` has returned; a list of what it has yielded.

        Raises `InvalidInputError`, `OutputError`, `CanceledError`, and whatever `run()` raises.
        """
        call, steps = self._begin([inputs])
        for _ in steps:
            pass
        return _result(call)

    def stream(self, /, **inputs: Any) -> Stream:
        """Run a model that yields, one value after the other, as they are asked for."""
        return Stream(*self._begin([inputs]))

    def batch(self, requests: Iterable[Mapping[str, Any]], /) -> list[Any]:
        """Run a model with `@batched` once for several requests; return the part of each.

        A request that has failed by itself has its exception in the list. Raises what has failed all of them.
        """
        given = list(requests)
        if self._runner.batching is None:
            raise TypeError("run() takes one request at a time: it has no decorator @batched")
        if not given:
            return []
        call, steps = self._begin(given)
        for _ in steps:
            pass
        return _results(call, len(given))

    def cancel(self) -> None:
        """Cancel the run that goes on, from another thread, as a client's cancel does. A run raises `CanceledError`."""
        if self._steps is not None:
            self._steps.cancel_from_outside()

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics that the latest run has recorded, by their names."""
        scope = None if self._steps is None else self._steps.scope
        return {} if scope is None else dict(scope.metrics)

    @property
    def logs(self) -> str:
        """Printed text of the latest run."""
        return "".join(self._prints.logs)

    def _begin(self, requests: list[Mapping[str, Any]]) -> tuple[LocalCall, Steps]:
        items = [self._drive(self._reader.read(request)) for request in requests]
        self._reader.check_together(items)
        self._serial += 1
        self._prints = prints = Prints(self._model.at_home)
        channel = LocalChannel(prints, self._region.shield)
        call = LocalCall(
            self._message(items),
            Slot(channel, CallFiles(), OpenedMemory()),
            self._tools(prints, channel),
            channel=channel,
        )
        self._steps = make_steps(call, self._runner, prints, drive=self._drive, region=self._region)
        return call, self._steps

    def _message(self, items: list[ItemInput]) -> Any:
        own = [
            msgspec.structs.replace(item, id=f"test-{self._serial}-{index}", **self._of_request)
            for index, item in enumerate(items)
        ]
        call = CallInput(f"test-{self._serial}", tuple(own))
        payload = Inline(b"".join(parts_of(call)))
        return predict_of(call, (0, self._serial), payload, output_dir=str(self._new_folder()))

    def _tools(self, prints: Prints, channel: LocalChannel) -> CallTools:
        runner = self._runner
        note_run(runner.run)
        contract = contract_of(runner.returns, for_cog=runner.for_cog, warn=channel.warn)
        return tools_of_model(
            runner.parameters,
            runner.signature,
            runner.batching,
            encoder=OutputEncoder(runner.signature.output, contract),
            router=prints.router,
            control=channel,
        )

    def _new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._folder))


class Stream(Iterator[Any]):
    """The values of one run, in their order. The run stands still until the next one is asked for."""

    def __init__(self, call: LocalCall, steps: Steps) -> None:
        self._call = call
        self._steps = steps
        self._is_over = False

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        try:
            return next(self._steps)
        except StopIteration:
            self._is_over = True
            if not self._call.is_stream and self._call.values:
                raise TypeError("run() has returned one value and yielded none; call the run itself") from None
            _result(self._call)
            raise

    def cancel(self) -> None:
        """Cancel the run where it stands, at its `yield`, as a client's cancel does. The stream is over then.

        Raises what the run has raised meanwhile.
        """
        self._is_over = True
        self._steps.cancel()
        if self._call.error is not None:
            raise self._call.error

    def close(self) -> None:
        """End the run, if it is not over: the rest is dropped."""
        if not self._is_over:
            self.cancel()

    def __del__(self) -> None:
        if not self._is_over:
            self._steps.abandon()


def _result(call: LocalCall) -> Any:
    """Return the result of a call of one request, or raise its failure."""
    if call.is_canceled:
        raise CanceledError("the run was canceled") from call.error
    error = call.raised.get(0) or call.error
    if error is not None:
        raise error
    value = call.chunks[0] if call.is_stream else call.values.get(0)
    if 0 in call.failures:
        raise value if isinstance(value, BaseException) else RequestFailedError(call.failures[0])
    return value


def _results(call: LocalCall, count: int) -> list[Any]:
    """Return the results of a call's requests."""
    if call.is_canceled:
        raise CanceledError("the run was canceled") from call.error
    if call.error is not None and len(call.failures) == count:
        raise call.error
    given = call.chunks if call.is_stream else call.values
    return [_part(call, item, given.get(item)) for item in range(count)]


def _part(call: LocalCall, item: int, value: Any) -> Any:
    if item not in call.failures:
        return value
    known = value if isinstance(value, BaseException) else call.raised.get(item)
    return known if known is not None else RequestFailedError(call.failures[item])


@contextmanager
def _cancel_region() -> Iterator[CancelRegion]:
    """Make what cancels a sync `run()`. That takes a signal, and so the main thread."""
    region = CancelRegion()
    if threading.current_thread() is not threading.main_thread():
        yield region
        return
    region.install()
    try:
        yield region
    finally:
        region.uninstall()


def _set_up(found: LoadedModel, weights: str | None, drive: Callable[..., Any]) -> None:
    setup = found.runner.setup
    if setup is None:
        return
    result = setup(**arguments_of_setup(found.runner.setup_takes, weights or found.weights))
    if hasattr(result, "__await__"):
        drive(_awaited(result))


async def _awaited(awaitable: Any) -> Any:
    return await awaitable
