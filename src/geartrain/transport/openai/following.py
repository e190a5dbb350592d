"""Requests with one run that is followed while it gives outputs."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable
from typing import Generic, TypeVar

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.events import Completed, Output
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.tensors.tensor import Buffer
from geartrain.service.models import inference
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment
from geartrain.service.readers import EventReader, LaggedError
from geartrain.transport.openai.api import refusal
from geartrain.transport.openai.asking import forsake_all
from geartrain.transport.records import RequestRecord
from geartrain.transport.runs import start
from geartrain.transport.wire.exchange import AnswerStream, ClientGoneError, Head, Responder

BodyT = TypeVar("BodyT")


class FollowedRun:
    """A prediction whose client waits for its outputs."""

    def __init__(self, deployment: Deployment, prediction: Prediction) -> None:
        """Make it in the call that has started the prediction, before that can change."""
        self.prediction = prediction
        self._deployment = deployment
        self._reader = EventReader(prediction)
        self._has_left = False
        self._is_over = False

    def leave(self) -> None:
        """Cancel the run: the client has disconnected."""
        self._has_left = True
        forsake_all(self._deployment, (self.prediction,))
        self._reader.wake()

    def close(self) -> None:
        """Stop reading; cancel the run if it is not over."""
        self._reader.close()
        forsake_all(self._deployment, (self.prediction,))

    async def outputs(self) -> list[Buffer] | None:
        """Wait for outputs and return all there are, which may be none; None once the run has ended well.

        Raises `GeartrainError` if it fails, and `ClientGoneError`.
        """
        if self._is_over:
            inference.check_success(self._deployment, self.prediction)
            return None
        try:
            events = await self._reader.batch()
        except LaggedError:
            if self._has_left:
                raise ClientGoneError from None
            msg = "The client reads too slowly; a part of the output was dropped."
            raise GeartrainError(Code.TOO_MANY_READERS, msg) from None
        if self._has_left:
            raise ClientGoneError
        self._is_over = bool(events) and type(events[-1]) is Completed
        return [event.chunk for event in events if type(event) is Output]


class Answering(abc.ABC):
    """The answer that is made of one run: whole, or in pieces."""

    def __init__(self, run: FollowedRun, responder: Responder) -> None:
        self.run = run
        self.responder = responder
        self.stream: AnswerStream | None = None  # once its head has been sent

    @abc.abstractmethod
    async def take(self, chunks: list[Buffer]) -> None:
        """Take outputs of the run, and write what is to be written of them. Raises `GeartrainError`."""

    @abc.abstractmethod
    async def complete(self) -> None:
        """Answer, or write the last piece: the run has ended well. Raises `GeartrainError`."""

    @abc.abstractmethod
    async def break_off(self, stream: AnswerStream, error: Exception) -> None:
        """Tell of an error in the middle of a stream."""

    async def answer(self) -> None:
        """Follow the run to its end. A run that fails before its first piece has a status of its own."""
        try:
            while (chunks := await self.run.outputs()) is not None:
                await self.take(chunks)
            await self.complete()
        except ClientGoneError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and answered
            if self.stream is None:
                self.responder.respond(refusal(error))
                return
            with contextlib.suppress(ClientGoneError):
                await self.break_off(self.stream, error)


class FollowingExchange(abc.ABC, Generic[BodyT]):
    """One request with one run. See `Exchange` and `PartsExchange`."""

    def __init__(self, catalogue: Catalogue, head: Head, responder: Responder) -> None:
        self.record: RequestRecord = responder.record  # type: ignore[assignment]
        self.catalogue = catalogue
        self.head = head
        self.responder = responder
        self.has_left = False
        self._leave: Callable[[], None] | None = None

    @abc.abstractmethod
    async def begin(self, body: BodyT) -> Answering:
        """Read the body and start the run. Raises `GeartrainError`, and `ClientGoneError`."""

    def receive(self, body: BodyT) -> None:
        """Read the body, run the model, and answer."""
        start(self._run(body))

    def abandon(self) -> None:
        """Cancel what runs: the client has disconnected."""
        self.has_left = True
        if self._leave is not None:
            self._leave()

    async def _run(self, body: BodyT) -> None:
        try:
            answering = await self.begin(body)
        except ClientGoneError:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and answered
            self.responder.respond(refusal(error))
            return
        del body
        run = answering.run
        self._leave = run.leave
        try:
            await answering.answer()
        finally:
            self._leave = None
            run.close()
