"""One request whose body goes to a model as it came, or is read for it, and whose answer is the model's own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from geartrain.apis import bodies
from geartrain.apis.bodies import BodyForm, Inputs, Outcome, Wanted, Whole
from geartrain.authoring.requests import FRAMING, has_body
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.events import Completed, Event, Output
from geartrain.domain.predictions.prediction import NO_PREDICTION, Prediction
from geartrain.outbound.concurrency import for_each
from geartrain.service.models import inference
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment
from geartrain.service.readers import EventReader, LaggedError, completion
from geartrain.transport.large_bodies import read_aside
from geartrain.transport.routing import Api, Begin, Params
from geartrain.transport.runs import DIRECT_LIMIT, RunExchange, size_refusal, start
from geartrain.transport.wire.exchange import Accepted, Answer, AnswerStream, Body, ClientGoneError, Head, Responder

logger = logging.getLogger(__name__)

Find = Callable[[Head, Params], Deployment]

_PRIVATE: Final = FRAMING | {"authorization", "proxy-authorization", "cookie", "host", "content-type", "accept"}
_TOGETHER: Final = 64  # runs of one request
_OK: Final = HTTPStatus.OK


class Contract(msgspec.Struct, frozen=True):
    """A protocol's endpoint: its refusals, its bodies for models that take no whole requests, and the model asked."""

    api: Api
    form: BodyForm
    find: Find
    status: int = 200  # of answers that have none of their own


def whole_of(head: Head) -> Whole:
    """Return a head as a model receives it: without keys, cookies and the fields of the connection."""
    found: dict[str, str] = {}
    content_type = accept = ""
    for raw, value in head.headers:
        name, text = raw.decode("latin-1"), value.decode("latin-1")
        if name == "content-type":
            content_type = text
        elif name == "accept":
            accept = f"{accept}, {text}" if accept else text
        elif name not in _PRIVATE:
            found[name] = f"{found[name]}, {text}" if name in found else text
    query, path = head.query.decode("latin-1"), head.path.decode("latin-1")
    return Whole(content_type, accept, found, query, head.method, path)


class BodyExchange(RunExchange):
    """One request of such an endpoint."""

    __slots__ = ("_contract", "_deployment", "_head", "_inputs", "_members", "_params", "_reader", "_stream", "_whole")

    def __init__(self, contract: Contract, head: Head, params: Params, *, whole: Whole, responder: Responder) -> None:
        super().__init__(responder)
        self._contract = contract
        self._head = head
        self._params = params
        self._whole = whole
        self._deployment: Deployment | None = None
        self._reader: EventReader | None = None
        self._stream: AnswerStream | None = None
        self._members: list[Prediction] = []
        self._inputs = Inputs(())

    # steps

    def read(self, body: Body) -> Any:
        """Return the inputs of a small body; a whole request goes as it is."""
        deployment = self._find()
        signature = deployment.interface.signature
        if signature.takes_request:
            return body
        return self._contract.form.read(bytes(body), self._whole.content_type, signature)

    async def prepare(self, body: Body) -> Any:
        """Read a large body in a thread."""
        deployment = self._find()
        if deployment.interface.signature.takes_request:
            return body
        return await read_aside(self.read, body)

    def admit(self, body: Any) -> Prediction:
        """Start the prediction, or the first of several."""
        deployment = self._find()
        if not isinstance(body, Inputs):
            return self._create(deployment, bodies.request_json(self._whole), body=body)
        self._inputs = body
        if not body.is_many:
            return self._create(deployment, body.values[0])
        if not body.values:
            raise GeartrainError(Code.INVALID_INPUT, "The body has no instance.")
        self._deployment = deployment
        self._members = [self._create(deployment, body.values[0])]
        start(self._respond_many(deployment, body.values))
        return self._members[0]

    def follow(self, prediction: Prediction) -> None:
        """Answer when the prediction has ended, or with its pieces as they come."""
        if self._members:  # another task answers
            self._on_leave = self._forsake_all
            return
        deployment = self._deployment
        if deployment is None or not deployment.interface.signature.gives_response:
            super().follow(prediction)
            return
        self._prediction = prediction
        self._reader = EventReader(prediction)
        self._on_leave = self._leave
        if prediction.is_terminal:
            self._decide()
        else:
            prediction.log.listen(self._on_event)

    def answer(self) -> Answer:
        """Return the output as a body."""
        deployment, prediction = self._find(), self._prediction
        inference.check_success(deployment, prediction)
        output = prediction.output
        return self._plain_answer((bytes(output) if output is not None else b"null",))

    def is_answered_aside(self) -> bool:
        """True if the output is large."""
        output = self._prediction.output
        return output is not None and len(output) > DIRECT_LIMIT

    async def answer_aside(self) -> Answer:
        """Return the output as a body, made in a thread."""
        return await read_aside(self.answer)

    def refuse(self, error: GeartrainError) -> Answer:
        """Return the answer to a request that failed."""
        return self._contract.api.refuse(error)

    def forsake(self, prediction: Prediction) -> None:
        """Cancel the prediction: its client has disconnected."""
        if self._deployment is not None:
            self._deployment.predictions.abandon(prediction)

    # helpers

    def _find(self) -> Deployment:
        if self._deployment is None:
            deployment = self._contract.find(self._head, self._params)
            deployment.workers.check_ready()
            self._deployment = deployment
        return self._deployment

    def _create(self, deployment: Deployment, values: bytes, *, body: Body | None = None) -> Prediction:
        signature = deployment.interface.signature
        gives_response = signature.gives_response
        tensors = (bodies.body_tensor(body),) if body is not None else () if gives_response else None
        prediction = deployment.create(
            NewPrediction(
                input=values,
                tensors=tensors if gives_response or body is not None else None,
                queue=deployment.settings.inference_queue,
                request=self.record.context,
                inline=True,
                pieces=gives_response,
                principal=self._head.notes.principal,
            )
        )
        if self.record.prediction is NO_PREDICTION:
            self.record.prediction = prediction.record
        return prediction

    def _plain_answer(self, outputs: Sequence[bytes]) -> Answer:
        signature = self._find().interface.signature
        wanted = Wanted(self._whole.accept, self._inputs)
        body, content_type = self._contract.form.write(outputs, wanted, signature)
        return Answer(HTTPStatus(self._contract.status), (body,), ((b"content-type", content_type.encode()),))

    # whole responses

    def _on_event(self, event: Event) -> None:
        """Look at the first event that counts; that of the end follows an output at once if there is no other one."""
        if type(event) in {Output, Completed}:
            self._prediction.log.unlisten(self._on_event)
            asyncio.get_running_loop().call_soon(self._decide)

    def _decide(self) -> None:
        if self._has_left:
            return
        if self._prediction.is_terminal and len(self._prediction.chunks) <= 1:
            self._close()
            try:
                answer = self._whole_answer()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and answered
                answer = self._refusal(error)
            self._responder.respond(answer)
            return
        start(self._write_stream())

    def _whole_answer(self) -> Answer:
        prediction = self._prediction
        if self._deployment is None:
            raise GeartrainError(Code.INTERNAL, "Internal server error")
        inference.check_success(self._deployment, prediction)
        chunks = prediction.chunks
        outcome = bodies.outcome_of(chunks[0]) if chunks else Outcome(204, "", (), b"")
        status = outcome.status or _OK
        return Answer(_status(status), (outcome.body if has_body(status) else b"",), _headers(outcome))

    async def _write_stream(self) -> None:
        try:
            with contextlib.suppress(ClientGoneError):
                await self._write_pieces()
        except LaggedError:
            self._break_off(GeartrainError(Code.TOO_MANY_READERS, "The client reads too slowly."))
        except GeartrainError as error:
            self._break_off(error)
        except Exception:
            logger.exception("an endpoint failed")
            self._break_off(GeartrainError(Code.INTERNAL, "Internal server error"))
        finally:
            self._close()
            self.forsake(self._prediction)

    async def _write_pieces(self) -> None:
        reader = self._reader
        while reader is not None and not self._has_left:
            for event in await reader.batch():
                if type(event) is Output:
                    outcome = bodies.outcome_of(event.chunk)
                    if self._stream is None:
                        status = _status(outcome.status or _OK)
                        self._stream = self._responder.open_stream(status, _headers(outcome))
                    if len(outcome.body):
                        await self._stream.write(bytes(outcome.body))
                elif type(event) is Completed:
                    if self._deployment is not None:
                        inference.check_success(self._deployment, self._prediction)
                    if self._stream is None:
                        self._stream = self._responder.open_stream(_OK, ())
                    self._stream.end()
                    return

    def _break_off(self, error: GeartrainError) -> None:
        """Answer with an error, or end a response in its midst, so that its client sees that it is not whole."""
        if self._stream is None:
            if not self._has_left:
                self._responder.respond(self.refuse(error))
        else:
            self.record.error = error.reason
            self._stream.abort()

    def _leave(self) -> None:
        self.forsake(self._prediction)
        self._close()

    def _close(self) -> None:
        self._on_leave = None  # without the cycle, the exchange is freed at once
        self._prediction.log.unlisten(self._on_event)
        if self._reader is not None:
            self._reader.close()
            self._reader.wake()

    # several inputs

    async def _respond_many(self, deployment: Deployment, values: Sequence[bytes]) -> None:
        try:
            answer = await self._many(deployment, values)
        except ClientGoneError:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and answered
            answer = self._refusal(error)
        finally:
            self._forsake_all()
            self._on_leave = None
        self._responder.respond(answer)

    async def _many(self, deployment: Deployment, values: Sequence[bytes]) -> Answer:
        found: dict[int, Prediction] = {0: self._members[0]}

        async def run(given: tuple[int, bytes]) -> None:
            number, one = given
            if self._has_left:
                raise ClientGoneError
            prediction = found.get(number)
            if prediction is None:
                prediction = found[number] = self._create(deployment, one)
                self._members.append(prediction)
            await completion(prediction)
            inference.check_success(deployment, prediction)

        at_once = (
            min(_TOGETHER, len(values), max(1, deployment.slots))
            if deployment.interface.info.batching is None
            else _TOGETHER
        )
        await for_each(enumerate(values), run, at_once=at_once)
        outputs = [bytes(found[number].output or b"null") for number in range(len(values))]
        return self._plain_answer(outputs)

    def _forsake_all(self) -> None:
        for prediction in self._members:
            if not prediction.is_terminal:
                self.forsake(prediction)


def _status(status: int) -> HTTPStatus:
    """Return a status as the wire takes it; one without a name is that of its class."""
    try:
        return HTTPStatus(status)
    except ValueError:
        return HTTPStatus(status // 100 * 100)


def _headers(outcome: Outcome) -> tuple[tuple[bytes, bytes], ...]:
    typed = ((b"content-type", outcome.content_type.encode("latin-1")),) if outcome.content_type else ()
    return (*typed, *((name.encode(), value.encode("latin-1")) for name, value in outcome.headers))


def by_body(contract: Contract, max_body: int) -> Begin:
    """Create the handler of an endpoint; heads are read once for all requests that have the same."""
    refuse_size = size_refusal(contract.api)

    def begin(head: Head, params: Params) -> Accepted:
        whole = whole_of(head)

        def new_exchange(responder: Responder) -> BodyExchange:
            return BodyExchange(contract, head, params, whole=whole, responder=responder)

        return Accepted(new_exchange, max_body, refuse_size)

    return begin
