"""Requests for text, whole or as it comes, in the form of any API."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final, TypeVar

import msgspec

from geartrain.apis.generate import GenerateView
from geartrain.apis.openai.errors import invalid
from geartrain.apis.openai.growth import Growth, TextAnswer
from geartrain.apis.openai.parameters import Members
from geartrain.apis.openai.text_requests import TextRequest
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.events import Completed, Event, Metric, Output
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.signature.openai_view import OpenAIView
from geartrain.domain.signature.types import Signature
from geartrain.domain.tensors.tensor import Buffer
from geartrain.outbound.concurrency import for_each
from geartrain.service.models import inference
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.readers import EventReader, LaggedError
from geartrain.transport.errors import BUG
from geartrain.transport.large_bodies import LargeBodies
from geartrain.transport.openai.api import EVENT_STREAM, ignored
from geartrain.transport.openai.asking import (
    Asked,
    begin_all,
    check_ignored,
    check_served,
    forsake_all,
    read_asked,
    read_inputs,
)
from geartrain.transport.openai.measuring import describe_answer, describe_request, measure_texts
from geartrain.transport.records import RequestRecord
from geartrain.transport.runs import start
from geartrain.transport.wire.exchange import JSON, Answer, AnswerStream, Body, ClientGoneError, Head, Responder

logger = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode

T = TypeVar("T")
Headers = tuple[tuple[bytes, bytes], ...]

_OK: Final = HTTPStatus.OK
_LARGE: Final = 262_144  # bytes that are copied in a thread


class Form(msgspec.Struct, frozen=True):
    """The form that an API gives to requests for text.

    Attributes:
        read: reads the members of a body, but for the model. Raises `GeartrainError`.
        begin: returns the answer to a request, for the runs of it and the name of the model.
        refuse: returns the answer to a request that fails before its answer has begun.
        id_header: the name of a header that has the id of the request; empty for none.
        endpoint: its name in settings.
        operation: its name in traces; empty for requests without texts, which no metric counts.
    """

    read: Callable[[Members, Signature, OpenAIView], TextRequest]
    begin: Callable[[TextRequest, list[Prediction], str], TextAnswer]
    refuse: Callable[[Exception], Answer]
    endpoint: str
    id_header: bytes = b""
    operation: str = "chat"


class TextExchange:
    """One request for text. See `Exchange`."""

    __slots__ = ("_bodies", "_catalogue", "_form", "_has_left", "_head", "_leave", "_responder", "record")

    def __init__(
        self, catalogue: Catalogue, head: Head, responder: Responder, *, bodies: LargeBodies, form: Form
    ) -> None:
        self._bodies = bodies
        self.record: RequestRecord = responder.record  # type: ignore[assignment]
        self._catalogue = catalogue
        self._head = head
        self._responder = responder
        self._form = form
        self._has_left = False
        self._leave: Callable[[], None] | None = None

    def receive(self, body: Body) -> None:
        """Read the body, run the model, and answer."""
        start(self._run(body))

    def abandon(self) -> None:
        """Cancel what runs: the client has disconnected."""
        self._has_left = True
        if self._leave is not None:
            self._leave()

    async def _run(self, body: Body) -> None:
        try:
            asked = await read_asked(self._catalogue, self._head, body, bodies=self._bodies, may_hold=True)
            del body
            check_served(asked.deployment, self._form.endpoint)
            request, inputs = await read_inputs(asked, self._form.read, bodies=self._bodies)
            if self._form.operation:
                describe_request(self.record, asked, self._form.operation)
            asked = msgspec.structs.replace(asked, members={}, held=None)  # a run may take long
            check_ignored(asked.deployment, request.ignored)
            if request.shape is not None and request.shape.is_heavy:
                await self._bodies.check_shape(request.shape)
            if self._has_left:
                return
            predictions = begin_all(
                asked, inputs, names=request.names, record=self.record, chat=request.chat, count=request.count
            )
            run = self._begin(asked, request, predictions)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and answered
            self._responder.respond(_with(self._form.refuse(error), _ids(self._form, self._responder)))
            return
        self._leave = run.leave
        try:
            await run.answer()
        finally:
            self._leave = None

    def _begin(self, asked: Asked, request: TextRequest, predictions: list[Prediction]) -> _Run:
        try:
            return _Run(asked, request, predictions, responder=self._responder, bodies=self._bodies, form=self._form)
        except BaseException:
            forsake_all(asked.deployment, predictions)
            raise


class _Run:
    """The predictions of one request, and the answer that is made of them."""

    def __init__(
        self,
        asked: Asked,
        request: TextRequest,
        predictions: list[Prediction],
        *,
        responder: Responder,
        bodies: LargeBodies,
        form: Form,
    ) -> None:
        self._ids = _ids(form, responder)
        self._headers = (*self._ids, *ignored(request.ignored))
        self._bodies = bodies
        self._asked = asked
        self._deployment = asked.deployment
        self._record: RequestRecord = responder.record  # type: ignore[assignment]
        self._is_measured = not form.operation
        self._request = request
        self._predictions = predictions
        self._responder = responder
        self._refuse = form.refuse
        self._answer = form.begin(request, predictions, asked.model)
        self._choices = self._answer.choices
        interface = asked.deployment.interface
        self._view = GenerateView(interface.signature, interface.view) if interface.view.gives_tensors else None
        self._readers = [EventReader(prediction) for prediction in predictions]  # before these can change
        self._stream: AnswerStream | None = None
        # The runs of several choices take turns; one alone does without, which saves 1 µs of a chunk.
        self._writing = asyncio.Lock() if len(predictions) > 1 else None
        self._has_left = False

    def leave(self) -> None:
        """Cancel all that runs and write nothing more: the client has disconnected."""
        self._has_left = True
        self._measure()
        forsake_all(self._deployment, self._predictions)
        for reader in self._readers:
            reader.wake()

    async def answer(self) -> None:
        """Follow all predictions to their ends, and answer."""
        try:
            with contextlib.suppress(ClientGoneError):
                await self._make()
        finally:
            for reader in self._readers:
                reader.close()
            forsake_all(self._deployment, self._predictions)

    async def _make(self) -> None:
        try:
            await self._follow_all()
            await self._complete()
        except ClientGoneError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and answered
            await self._tell(error)

    async def _follow_all(self) -> None:
        """Follow each choice to its end. The first one that fails ends the others."""
        if len(self._readers) == 1:
            await self._follow(0)
            return
        await for_each(range(len(self._readers)), self._follow, at_once=len(self._readers))

    async def _follow(self, index: int) -> None:
        reader, choice, prediction = self._readers[index], self._choices[index], self._predictions[index]
        while True:
            try:
                events = await reader.batch()
            except LaggedError:
                if self._has_left:  # which is why it did not read
                    raise ClientGoneError from None
                raise GeartrainError(
                    Code.TOO_MANY_READERS, "The client reads too slowly; a part of the text was dropped."
                ) from None
            if self._has_left:
                raise ClientGoneError
            taken = await self._take(events, choice)
            is_over = bool(events) and type(events[-1]) is Completed
            if choice.is_over:
                forsake_all(self._deployment, (prediction,))
            elif is_over:
                await self._check_success(prediction, taken)
            is_over = is_over or choice.is_over
            end = await self._aside(choice.end, prediction.metrics) if is_over else b""
            if self._request.is_stream:
                await self._write(taken, end)
            if is_over:
                await self._check(choice)
                return

    async def _take(self, events: Sequence[Event], choice: Growth) -> bytes:
        """Take what a run has given; return the chunks for it. A large output is copied in a thread."""
        if max([len(event.chunk) for event in events if type(event) is Output], default=0) > _LARGE:
            return await asyncio.to_thread(self._take_here, events, choice)
        return self._take_here(events, choice)

    async def _aside(self, make: Callable[[T], bytes], metrics: T) -> bytes:
        """Make the end of a choice or of the answer; in a thread if it repeats a large text."""
        if self._request.is_stream and sum([choice.repeats for choice in self._choices]) > _LARGE:
            return await asyncio.to_thread(make, metrics)
        return make(metrics)

    def _take_here(self, events: Sequence[Event], choice: Growth) -> bytes:
        """Do what `_take` does. The metric `logprobs` is that of a token."""
        pieces = []
        for event in events:
            if type(event) is Output:
                pieces.append(choice.take(self._text(event.chunk)))
            elif type(event) is Metric and event.name == "logprobs":
                pieces.append(choice.take(_encode({"logprobs": [event.value]})))
        return b"".join(pieces)

    async def _check_success(self, prediction: Prediction, taken: bytes) -> None:
        """Raise `GeartrainError` unless the run ended well; a stream that has begun gets what was `taken` before."""
        try:
            inference.check_success(self._deployment, prediction)
        except GeartrainError as error:
            if self._stream is not None:
                await self._write(taken)
            if error.code is Code.INVALID_INPUT:
                raise invalid(error.message, next(iter(self._request.names.values()))) from None
            raise

    def _text(self, chunk: Buffer) -> Buffer:
        """Return the JSON text of what one output gives, where that is packed with tensors."""
        if self._view is None:
            return chunk
        return bytes(next(iter(self._view.one(chunk).values())))

    async def _check(self, choice: Growth) -> None:
        choice.check_calls()
        shape = self._request.shape
        if shape is None or choice.reason == "length":
            return
        if shape.is_heavy_for(choice.text):
            await self._bodies.check_shape(shape, choice.text)
        else:
            shape.check(choice.text)

    def _measure(self) -> None:
        """Tell of the texts, once, before the end of the answer."""
        if self._is_measured:
            return
        self._is_measured = True
        predictions, choices = self._predictions, self._choices
        tokens = measure_texts(self._record, self._asked, predictions, choices=choices, count=self._request.count)
        describe_answer(
            self._record,
            answer_id=self._answer.id,
            model=self._asked.model,
            tokens=tokens,
            reasons=[choice.reason for choice in choices if choice.reason],
            first=predictions[0].record.first_output if self._request.is_stream else 0.0,
        )

    async def _complete(self) -> None:
        self._measure()
        metrics = [prediction.metrics for prediction in self._predictions]
        if self._request.is_stream:
            await self._write(await self._aside(self._answer.last, metrics))
            self._open().end()
            return
        parts = self._answer.whole(metrics)
        self._responder.respond(Answer(_OK, parts, (*JSON, *self._headers)))

    async def _write(self, *parts: bytes) -> None:
        if self._writing is None:
            await self._write_parts(parts)
            return
        async with self._writing:
            await self._write_parts(parts)

    async def _write_parts(self, parts: Sequence[bytes]) -> None:
        """Write parts: small ones together, large ones without a copy."""
        for data in (b"".join(parts),) if sum(map(len, parts)) <= _LARGE else parts:
            if data:
                await self._open().write(data)

    async def _tell(self, error: Exception) -> None:
        """Tell of an error: as an answer of its own, or as the last event once there has been one."""
        self._measure()
        if self._stream is None:
            self._responder.respond(_with(self._refuse(error), self._ids))
            return
        known = error if isinstance(error, GeartrainError) else BUG
        if known is BUG:
            logger.error("an endpoint failed", exc_info=error)
        await self._write(self._answer.fault(known))
        self._stream.end()

    def _open(self) -> AnswerStream:
        """Return the stream, whose head is sent with the first piece: a run that fails at once has its own status."""
        if self._stream is None:
            self._stream = self._responder.open_stream(_OK, (*EVENT_STREAM, *self._headers))
        return self._stream


def _ids(form: Form, responder: Responder) -> Headers:
    """Return the headers of every answer."""
    record: RequestRecord = responder.record  # type: ignore[assignment]
    return ((form.id_header, record.context.request_id.encode()),) if form.id_header else ()


def _with(answer: Answer, headers: Headers) -> Answer:
    return msgspec.structs.replace(answer, headers=(*answer.headers, *headers)) if headers else answer
