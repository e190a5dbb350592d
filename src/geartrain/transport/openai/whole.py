"""Requests that are answered when their runs have ended."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from geartrain.apis.openai.parameters import Members
from geartrain.domain.predictions.prediction import Prediction
from geartrain.outbound.concurrency import for_each
from geartrain.service.models import inference
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment
from geartrain.service.readers import completion
from geartrain.transport.openai.api import refusal
from geartrain.transport.openai.asking import Asked, Given, begin, forsake_all
from geartrain.transport.records import RequestRecord
from geartrain.transport.runs import start
from geartrain.transport.wire.exchange import Answer, ClientGoneError, Head, Responder

_TOGETHER: Final = 64  # runs of one request: the others do not wait in the queue

Begin = Callable[[int, Members], Prediction]
G = TypeVar("G")


class WholeExchange:
    """One request and its runs. A subclass has `receive`; see `Exchange` and `PartsExchange`."""

    def __init__(self, catalogue: Catalogue, head: Head, responder: Responder) -> None:
        self.record: RequestRecord = responder.record  # type: ignore[assignment]
        self.catalogue = catalogue
        self.head = head
        self._responder = responder
        self._predictions: dict[int, Prediction] = {}  # by the number of the input
        self._deployment: Deployment | None = None
        self._has_left = False

    def abandon(self) -> None:
        """Cancel what runs: the client has disconnected."""
        self._has_left = True
        if self._deployment is not None:
            forsake_all(self._deployment, self._predictions.values())

    def respond(self, answering: Coroutine[Any, Any, Answer]) -> None:
        """Answer with what a coroutine returns, or refuse with what it raises."""
        start(self._respond(answering))

    async def complete(
        self, asked: Asked, inputs: Sequence[G], begin_one: Callable[[int, G], Prediction]
    ) -> list[Prediction]:
        """Run the model, for each input once, some at a time. The first run that fails ends the others.

        `begin_one` starts the prediction of an input, given its number. Raises `GeartrainError`, and `ClientGoneError`.
        """

        async def run(given: tuple[int, G]) -> None:
            if self._has_left:
                raise ClientGoneError
            number, values = given
            prediction = self._predictions[number] = begin_one(number, values)
            await completion(prediction)
            inference.check_success(asked.deployment, prediction)

        self._deployment = asked.deployment
        await for_each(enumerate(inputs), run, at_once=min(_TOGETHER, len(inputs)))
        return [self._predictions[number] for number in range(len(inputs))]

    def plainly(self, asked: Asked, names: dict[str, str]) -> Callable[[int, Given], Prediction]:
        """Create the starter of predictions without files; see `begin`."""
        return lambda _, values: begin(asked, values, names=names, record=self.record)

    async def _respond(self, answering: Coroutine[Any, Any, Answer]) -> None:
        try:
            answer = await answering
        except ClientGoneError:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and answered
            answer = refusal(error)
        finally:
            self.abandon()
        self._responder.respond(answer)
