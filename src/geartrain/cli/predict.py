"""One prediction without a server: start the worker, ask, show the answer as it comes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from geartrain.bridge.borrowing import Lender
from geartrain.cli import values
from geartrain.cli.answer import AnswerWriter, OutputFileError, write_json
from geartrain.cli.failure import FAILURE, INTERRUPTED, NO_READER, complain, silence_stdout
from geartrain.cli.startup import RunObserver
from geartrain.cli.values import Request
from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.events import Completed, Log, Output, Start
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.principal import ANYONE
from geartrain.project.repository import Together
from geartrain.project.source import ModelSource
from geartrain.server import NO_LIMIT, DebugOptions, ServeOptions, build
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.residency import ResidencyPolicy
from geartrain.service.readers import EventReader
from geartrain.service.workers.pool import ModelSetupError

_EXIT_CODES: Final = {Status.SUCCEEDED: 0, Status.FAILED: FAILURE, Status.CANCELED: INTERRUPTED}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan of a command."""

    source: ModelSource
    request: Request
    others: Path | None = None  # the folder of the models that it may call
    setup_timeout: float | None
    debugging: DebugOptions


async def predict(plan: Plan, observer: RunObserver) -> int:
    """Run the plan and return the exit code; what is wrong has been said on stderr."""
    alone = msgspec.structs.replace(plan.source, replicas=1, warmup=(), examples=())  # for one prediction
    options = ServeOptions(
        source=alone if plan.others is None else Together(alone, plan.others),
        load=None if plan.others is None else frozenset({alone.name}),
        residency=ResidencyPolicy(on_demand=plan.others is not None),
        setup_timeout=plan.setup_timeout,
        max_download_bytes=NO_LIMIT,  # a person's own files need no guard
        allow_private_urls=True,  # the person at the terminal can reach them anyway
        on_progress=observer,
        on_download=observer.add_bytes,
        debugging=plan.debugging,
    )
    asked: list[NewPrediction] = []

    app = build(options)

    def check(deployment: Deployment) -> None:
        _check_others(deployment, app.catalogue.names())
        asked.append(_ask(deployment, plan))

    with _Interrupts(plan.debugging.lender) as interrupts:
        try:
            app.spawn()
            observer.begin()
            await app.start()
            deployment = await app.ready(check, name=alone.name)
            prediction = deployment.create(asked.pop())
            return await _answer(deployment, prediction, plan, observer=observer, interrupts=interrupts)
        except ModelSetupError as error:
            observer.end()
            complain(error.reason)
        except GeartrainError as error:
            observer.end()
            for sentence in values.describe(error.fields) or [error.message]:
                complain(sentence)
        except values.InputError as error:
            observer.end()
            for sentence in error.sentences:
                complain(sentence)
        except OutputFileError as error:
            observer.end()
            complain(str(error))
        except BrokenPipeError:
            silence_stdout()
            return NO_READER
        except asyncio.CancelledError:
            observer.end()
            return INTERRUPTED
        finally:
            interrupts.close_terminal()
            observer.end()
            await app.stop()
    return FAILURE


def _check_others(deployment: Deployment, names: Collection[str]) -> None:
    """Raise `InputError` if the model declares that it calls others, and one of them is not here."""
    called = [name.partition("@")[0] for name in deployment.interface.info.calls]
    missing = sorted({name for name in called if name not in names})
    if missing:
        listed = ", ".join(missing)
        raise values.InputError(f"the model calls {listed}; `--with FOLDER` names the folder that holds them")


def _ask(deployment: Deployment, plan: Plan) -> NewPrediction:
    """Make the prediction's request; raise `InputError` or `GeartrainError` if it does not fit the signature."""
    document = plan.request.document
    if document is None:
        try:
            document = values.build_input(deployment.interface.signature, plan.request.texts)
        except values.WrongInputsError as error:
            raise values.InputError(*error.sentences, *_further(deployment, error)) from error
    new = NewPrediction(input=values.encode_input(document))
    deployment.admission.check(new)
    return new


def _further(deployment: Deployment, error: values.WrongInputsError) -> list[str]:
    """Check the values of the other inputs; return their faults."""
    try:
        deployment.admission.check(NewPrediction(input=values.encode_input(error.values)))
    except GeartrainError as fault:
        return values.describe(each for each in fault.fields if error.names.isdisjoint(each.loc))
    return []


async def _answer(
    deployment: Deployment,
    prediction: Prediction,
    plan: Plan,
    *,
    observer: RunObserver,
    interrupts: _Interrupts,
) -> int:
    """Show a prediction as it goes on, and return the exit code."""

    def cancel() -> None:
        observer.step("Canceling; Ctrl-C again ends it at once")
        deployment.predictions.cancel(prediction.id, ANYONE)

    interrupts.ask_first(cancel)
    if prediction.status is Status.STARTING:
        observer.step("Fetching the input")
    if plan.request.document is not None:
        await _follow(prediction, observer, lambda _chunk: None)
        observer.end()
        write_json(_summary(prediction), deployment.interface.signature.output, plan.request.output)
    else:
        writer = AnswerWriter(
            deployment.interface.signature.output,
            plan.request.output,
            before_text=observer.leave_stdout,
            file_first=plan.source.mode == "train",
        )
        await _follow(prediction, observer, writer.add_chunk)
        observer.end()
        if prediction.status is Status.SUCCEEDED:
            writer.finish(None if prediction.output is None else bytes(prediction.output))
        else:
            writer.close()
    if prediction.error is not None:
        complain(prediction.error)
    elif prediction.status is Status.CANCELED:
        complain(f"the {deployment.settings.noun} was canceled")
    return _EXIT_CODES[prediction.status]


async def _follow(prediction: Prediction, observer: RunObserver, on_chunk: Callable[[bytes], None]) -> None:
    """Show logs and chunks in the order of the run, the chunks by `on_chunk`, until its end."""
    reader = EventReader(prediction, backlog=sys.maxsize)
    while True:
        for event in await reader.batch():
            if isinstance(event, Start):
                observer.step("Running the model")
            elif isinstance(event, Log):
                observer.add_text(event.data)
            elif isinstance(event, Output):
                on_chunk(bytes(event.chunk))
            elif isinstance(event, Completed):
                return


def _summary(prediction: Prediction) -> dict[str, Any]:
    output = prediction.output
    if output is None and prediction.chunks:
        output = b"[" + b",".join(prediction.chunks) + b"]"
    return {
        "status": prediction.status,
        "output": json.loads(bytes(output or b"null")),
        **({} if prediction.error is None else {"error": prediction.error}),
        "logs": prediction.logs,
        "metrics": {**prediction.metrics, "predict_time": prediction.predict_time},
    }


class _Interrupts:
    """Ctrl-C and SIGTERM: the first asks the prediction to stop, once there is one; the next one ends all."""

    def __init__(self, lender: Lender | None) -> None:
        """`lender`: Ctrl-C is for the debugger that has the terminal, if one has it."""
        self._lender = lender
        self._ask: Callable[[], object] | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._loop.add_signal_handler(signal.SIGINT, self._on_interrupt)
        self._loop.add_signal_handler(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.remove_signal_handler(number)

    def ask_first(self, ask: Callable[[], object]) -> None:
        """From now on the first signal calls `ask`."""
        self._ask = ask

    def close_terminal(self) -> None:
        """Refuse the terminal to debuggers from now on: the command is about to end."""
        if self._lender is not None:
            self._lender.close()

    def _on_interrupt(self) -> None:
        if self._lender is None or not self._lender.interrupt():
            self._on_signal()

    def _on_signal(self) -> None:
        ask, self._ask = self._ask, None
        if ask is not None:
            ask()
        elif self._task is not None:
            self._task.cancel()
