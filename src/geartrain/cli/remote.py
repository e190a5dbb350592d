"""One prediction of a server: ask, and show the answer as it comes."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import Any

from geartrain.cli import values
from geartrain.cli.answer import AnswerWriter, OutputFileError, write_json
from geartrain.cli.failure import FAILURE, INTERRUPTED, NO_READER, complain, silence_stdout
from geartrain.cli.startup import RunObserver
from geartrain.cli.values import Request
from geartrain.client import Client, ClientError, InvalidInputError, Model, NotFoundError, Prediction
from geartrain.domain.errors import FieldError

_EXIT_CODES = {"succeeded": 0, "failed": FAILURE, "canceled": INTERRUPTED}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan of a command. `verify`: see `Client`; `model` None: the server's only one."""

    url: str
    request: Request
    model: str | None
    timeout: float | None
    key: str | None
    verify: bool | str


def predict(plan: Plan) -> int:
    """Run the plan and return the exit code; what is wrong has been said on stderr."""
    observer = RunObserver(plan.url)
    try:
        with Client(plan.url, key=plan.key, verify=plan.verify, timeout=plan.timeout) as client:
            observer.begin(f"Asking {plan.url}")
            try:
                return _answer(client.model(plan.model), plan.request, observer)
            except NotFoundError as error:
                raise ClientError(f"{str(error).rstrip('.')}{offer(client, plan.model)}") from error
    except InvalidInputError as error:
        observer.end()
        for sentence in values.describe(map(_fault, error.detail)):
            complain(sentence)
    except (ClientError, values.InputError, OutputFileError, OSError) as error:
        observer.end()
        if isinstance(error, BrokenPipeError):
            silence_stdout()
            return NO_READER
        for sentence in error.sentences if isinstance(error, values.InputError) else (str(error),):
            complain(sentence)
    except KeyboardInterrupt:  # the prediction ends with the connection
        observer.end()
        complain("the prediction was canceled")
        return INTERRUPTED
    finally:
        observer.end()
    return FAILURE


def _answer(model: Model[Any], request: Request, observer: RunObserver) -> int:
    """Show a prediction as it goes on, and return the exit code."""
    signature = model.signature()
    document = request.document
    inputs = values.build_input(signature, request.texts) if document is None else document
    writer = AnswerWriter(signature.output, request.output, before_text=observer.leave_stdout)
    observer.step("Running the model")
    try:
        if signature.streaming:
            prediction = _follow(model, inputs, observer, writer=writer if document is None else None)
        else:
            prediction = model.run(inputs)
            observer.add_text(prediction.logs)
            if document is None and signature.output.mode != "value":
                _add_all(writer, prediction.output)
        observer.end()
        if document is not None:
            write_json(_summary(prediction), signature.output, request.output)
        elif prediction.status == "succeeded":
            writer.finish(json.dumps(prediction.output).encode())
    finally:
        writer.close()
    if prediction.status != "succeeded":
        complain(prediction.error or "the prediction was canceled")
    return _EXIT_CODES[prediction.status]


def offer(client: Client, model: str | None) -> str:
    """Say which model may have been meant."""
    names = client.models()
    close = difflib.get_close_matches(model or "", names, n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(names)}: name one with --model"


def _follow(
    model: Model[Any], inputs: dict[str, Any], observer: RunObserver, *, writer: AnswerWriter | None
) -> Prediction[Any]:
    with model.stream(**inputs) as stream:
        for event in stream.events():
            if event.name == "log":
                observer.add_text(event.data["data"])
            elif event.name == "output" and writer is not None:
                writer.add_chunk(json.dumps(event.data["chunk"]).encode())
        if stream.prediction is None:
            raise ClientError("the stream has ended without a prediction")
        return stream.prediction


def _add_all(writer: AnswerWriter, output: Any) -> None:
    for chunk in output if isinstance(output, list) else ():
        writer.add_chunk(json.dumps(chunk).encode())


def _summary(prediction: Prediction[Any]) -> dict[str, Any]:
    return {
        "status": prediction.status,
        "output": prediction.output,
        **({} if prediction.error is None else {"error": prediction.error}),
        "logs": prediction.logs,
        "metrics": prediction.metrics,
    }


def _fault(fault: dict[str, Any]) -> FieldError:
    return FieldError(tuple(fault["loc"]), fault["msg"], fault["type"])
