"""`POST /predictions`, `PUT` and `GET /predictions/{id}`, its calls of models, `POST /predictions/{id}/cancel`.

Training endpoints are those of predictions, for another model (observed Cog, section 20).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from geartrain.apis import cog
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.prediction import Prediction, Webhook
from geartrain.domain.predictions.request_context import RequestContext
from geartrain.domain.tensors.tensor import Buffer
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.entry import ModelRef
from geartrain.service.models.predictions import Holder, Predictions
from geartrain.service.models.trainings import Trainings
from geartrain.service.models.waking import when_loaded
from geartrain.service.readers import completion
from geartrain.service.scheduling.failures import log_end
from geartrain.transport.cog.api import COG, CogOptions, PredictionHeaders, json_answer, read_headers
from geartrain.transport.cog.forms import Form, FormExchange, may_be_input, wrong_type
from geartrain.transport.cog.streams import EventStream, EventStreams
from geartrain.transport.errors import BUG
from geartrain.transport.large_bodies import LargeBodies, is_light, read_aside
from geartrain.transport.routing import Params
from geartrain.transport.runs import DIRECT_LIMIT, RunExchange, by_task, size_refusal, start
from geartrain.transport.wire.exchange import (
    JSON,
    NO_BODY,
    UNKNOWN_LENGTH,
    Accepted,
    AcceptedInParts,
    Answer,
    Body,
    Decision,
    Fields,
    Head,
    Responder,
)

if TYPE_CHECKING:
    from geartrain.transport.cog.durable import StoredPredictions

logger = logging.getLogger(__name__)

_OK: Final = HTTPStatus.OK  # to read it from its class takes several times as long
_NO_STREAMS: Final = (
    "This model does not support streaming responses. Add @streaming to run() to enable SSE, "
    "or leave text/event-stream out of the Accept header."
)
_UNKNOWN_ID: Final = b'{"error":"No such %b: it never was, or it has been over for longer than --keep."}'
_NO_TRAINING_STREAMS: Final = "Training endpoints do not support streaming responses."
_NO_URL_ID: Final = ""
_INPUT: Final = b'"input"'
_LONGEST_STRAY: Final = 4_194_304  # bytes of a large body that is looked at for inputs outside of `input`
_NAMED: Final = 5  # inputs in a hint

FindModel = Callable[[Params], ModelRef]


class PredictionWish(msgspec.Struct, frozen=True):
    """A requested prediction, by the head of its request.

    Attributes:
        model: the one to run.
        headers: the header fields.
        url_id: the id in the path, empty if there is none.
        head: itself.
    """

    model: ModelRef
    headers: PredictionHeaders
    url_id: str
    head: Head


class Found(NamedTuple):
    """A prediction that this server knows; `place` is its place in the queue, 0 if it does not wait there."""

    prediction: Prediction
    place: int = 0


class PredictionEndpoints:
    """Handles the requests for predictions of a model that the path names, or that is at the root."""

    noun = "prediction"

    def __init__(
        self, find: FindModel, options: CogOptions, bodies: LargeBodies, *, stored: StoredPredictions | None = None
    ) -> None:
        """Create the endpoints.

        Args:
            find: returns the model of a path; it may raise `GeartrainError`.
            options: of Cog's API.
            bodies: reads large ones.
            stored: the predictions that a store knows, on a server with a store.
        """
        self.find = find
        self.stored = stored
        self.bodies = bodies
        self.max_body = options.max_body
        self._refuse_size = size_refusal(COG)
        self.logs_ends = options.logs_ends
        self.streams = EventStreams(quiet=options.quiet, grace=options.stream_grace)

    def create(self, head: Head, params: Params) -> Decision:
        """Make a prediction; not idempotent. With `id` in the path: make it, or tell how the live one stands."""
        model = self.find(params)
        headers = read_headers(head.headers)
        wish = PredictionWish(model, headers, params.get("id", _NO_URL_ID), head)
        if not headers.has_json:
            if may_be_input(headers.media_type):
                return self._create_from_form(head, params, wish)
            if head.length not in {NO_BODY, UNKNOWN_LENGTH} or headers.media_type:
                return COG.refuse(wrong_type(headers.media_type))
        return Accepted(self._exchange(wish), self.max_body, self._refuse_size)

    def cancel(self, head: Head, params: Params) -> Decision:
        """Ask for the end of a live prediction, wherever it runs: 200, 404 if there is none."""
        head.notes.prediction_id = params["id"]
        tables = self._tables(params)
        if self.stored is not None and (tables or head.notes.is_relayed):
            key = self.stored.key(self.find(params), params["id"])
            return self._aside(partial(self.stored.cancel, head, key, tables), head, params)
        found = any(predictions.cancel(params["id"], head.notes.principal) for predictions in tables)
        return json_answer(b"{}", HTTPStatus.OK if found else HTTPStatus.NOT_FOUND)

    def show(self, head: Head, params: Params) -> Decision:
        """Tell how a prediction stands: live or recently over, or as the store has it; 404 if there is none.

        Of one that waits for a slot, a header field says its place in the queue.
        """
        head.notes.prediction_id = params["id"]
        found = None if head.notes.is_relayed else self._find_here(head, params)
        if found is not None:
            if cog.takes_long(found.prediction):
                return self._aside(partial(shown_aside, *found), head, params)
            return shown(*found)
        if self.stored is not None and (head.notes.is_relayed or self._tables(params)):
            key = self.stored.key(self.find(params), params["id"])
            return self._aside(partial(self.stored.show, head, key), head, params)
        return json_answer(_UNKNOWN_ID % self.noun.encode(), HTTPStatus.NOT_FOUND)

    def show_calls(self, head: Head, params: Params) -> Decision:
        """Tell the calls of other models by a prediction that runs, or is recently over; 404 if there is none."""
        head.notes.prediction_id = params["id"]
        found = None if head.notes.is_relayed else self._find_here(head, params)
        if found is not None:
            return json_answer(cog.encode_calls(found.prediction))
        if self.stored is not None and (head.notes.is_relayed or self._tables(params)):
            key = self.stored.key(self.find(params), params["id"])
            return self._aside(partial(self.stored.show_calls, head, key), head, params)
        return json_answer(_UNKNOWN_ID % self.noun.encode(), HTTPStatus.NOT_FOUND)

    def _find_here(self, head: Head, params: Params) -> Found | None:
        """Find a prediction that this server knows; None for one whose row is not written yet."""
        principal = head.notes.principal
        for predictions in self._tables(params):
            if self.stored is not None:
                run = self.stored.run(self.stored.key(self.find(params), params["id"]), principal)
                if run is not None:
                    return Found(run.prediction, run.execution.place) if run.is_known else None
            prediction = predictions.look_up(params["id"], principal)
            if prediction is not None:
                return Found(prediction, predictions.place_of(prediction.id))
        return None

    def _aside(self, answer: Callable[[], Awaitable[Answer]], head: Head, params: Params) -> Decision:
        """Answer a request with what takes long to make."""
        return by_task(lambda _request: answer(), COG, self.max_body)(head, params)

    def _create_from_form(self, head: Head, params: Params, wish: PredictionWish) -> Decision:
        """Read inputs that are a form or a file; of a prediction that is live already, tell how it stands."""
        predictions = wish.model.predictions
        known = predictions.find_retried(wish.url_id, head.notes.principal) if wish.url_id else None
        if known is not None:
            head.notes.prediction_id = wish.url_id
            predictions.holders.join(known)
            if cog.takes_long(known):
                return self._aside(partial(repeated_aside, known, wish.headers), head, params)
            return repeated(known, wish.headers)

        def new_exchange(responder: Responder) -> FormExchange:
            exchange = self._exchange(wish)(responder)
            return FormExchange(
                wish.headers.media_type,
                exchange.find,
                complete=exchange.complete,
                on_admitted=exchange.go_on,
                on_refused=exchange.give_up,
                on_abandoned=exchange.abandon,
            )

        return AcceptedInParts(new_exchange, self.max_body, self._refuse_size)

    def _exchange(self, wish: PredictionWish) -> Callable[[Responder], PredictionExchange]:
        return partial(PredictionExchange, self, wish) if self.stored is None else self.stored.exchange(self, wish)

    def _tables(self, params: Params) -> tuple[Predictions, ...]:
        """Return the predictions of the model; none where there is no such model any more."""
        model = self.find(params)
        try:
            return (model.predictions,)
        except GeartrainError:
            return ()


class PredictionExchange(RunExchange):
    """One request for a prediction."""

    __slots__ = ("_endpoints", "_is_joined", "_predictions", "_strays", "_stream", "_wish")

    def __init__(self, endpoints: PredictionEndpoints, wish: PredictionWish, responder: Responder) -> None:
        super().__init__(responder)
        self._endpoints = endpoints
        self._wish = wish
        self._is_joined = False  # to a prediction that another request has made
        self._strays: tuple[
            str, ...
        ] = ()  # members of a body without `input`; names of inputs alone once it is admitted
        self._predictions: Predictions
        self._stream: EventStream

    def _find_abandoned(self) -> Prediction | None:
        try:
            return self._wish.model.predictions.find_abandoned(self._wish.url_id, self._wish.head.notes.principal)
        except GeartrainError:  # there is no such model: answered where it is asked to run
            return None

    async def _wait_until_free(self) -> None:
        """Wait for the end of an abandoned prediction here with the id in the path."""
        while (abandoned := self._find_abandoned()) is not None:
            await completion(abandoned)

    async def _wait_for_abandoned(self) -> None:
        """Wait for the end of an abandoned prediction with the id in the path, wherever that is known."""
        await self._wait_until_free()

    def read(self, body: Body) -> NewPrediction:
        """Read body and head."""
        headers = self._wish.headers
        if headers.has_json:
            request = cog.read_request(body)
            if request.input is cog.NO_INPUT:
                self._strays = cog.stray_names(body)
        elif body:
            raise wrong_type(headers.media_type)
        else:
            request = cog.NO_REQUEST
        return _new(request, self._wish, noun=self._endpoints.noun, origin=self.record.context)

    def is_large(self, body: Body) -> bool:
        """True if the body has to be read aside, or an abandoned prediction has the id in the path."""
        return (len(body) > DIRECT_LIMIT and not is_light(body)) or (
            bool(self._wish.url_id) and self._find_abandoned() is not None
        )

    async def prepare(self, body: Body) -> NewPrediction:
        """Read a large body, once an abandoned prediction with the id in the path has ended."""
        if self._wish.url_id:
            await self._wait_until_free()
        if not self._wish.headers.has_json or len(body) <= DIRECT_LIMIT or is_light(body):
            return self.read(body)
        interface = self._wish.model.deployment.interface
        if len(body) <= _LONGEST_STRAY and _INPUT not in body:
            self._strays = cog.stray_names(body)
        read = await self._endpoints.bodies.read_cog(body, interface)
        new = _new(read.request, self._wish, noun=self._endpoints.noun, origin=self.record.context)
        return msgspec.structs.replace(new, input=read.input, checked=read.checked)

    def admit(self, body: NewPrediction) -> Prediction:
        """Make the prediction that is asked for, or find the one that has the id in the path."""
        wish = self._wish
        deployment = wish.model.deployment
        if wish.headers.event_stream:
            self._check(deployment)
        self._predictions = deployment.predictions
        if wish.url_id:
            known = self._predictions.find_retried(wish.url_id, wish.head.notes.principal)
            if known is not None:
                self._is_joined = True
                return known
        return self._create_with_advice(deployment, body) if self._strays else deployment.create(body)

    def _create_with_advice(self, deployment: Deployment, body: NewPrediction) -> Prediction:
        """Make the prediction, whose client has sent inputs outside of `input`, where Cog passes them over."""
        names = {field.name for field in deployment.interface.signature.inputs}
        self._strays = tuple(name for name in self._strays if name in names)
        try:
            prediction = deployment.create(body)
        except GeartrainError as error:
            raise cog.with_advice(error, self._strays) from error
        if self._strays:
            ids = {"prediction_id": prediction.id, "request_id": self.record.context.request_id}
            logger.info("%s", _advice(self._strays), extra=ids)
        return prediction

    async def find(self) -> Deployment:
        """Return the deployment for inputs from a form or a file; raise `GeartrainError` if none may run."""
        if self._wish.url_id:
            await self._wait_for_abandoned()
        return self._check(await when_loaded(lambda: self._wish.model.deployment))

    def _check(self, deployment: Deployment) -> Deployment:
        """Raise `GeartrainError` if a stream is wanted of a model that has none."""
        if self._wish.headers.event_stream and not deployment.interface.signature.streaming:
            deployment.workers.check_ready()
            raise GeartrainError(Code.NOT_ACCEPTABLE, _NO_STREAMS)
        self._predictions = deployment.predictions
        return deployment

    def complete(self, form: Form) -> NewPrediction:
        """Add what the head says to a form."""
        headers, url_id = self._wish.headers, self._wish.url_id
        return NewPrediction(
            input=form.input,
            attachments=form.attachments,
            id=url_id or None,
            keep=bool(url_id) or headers.respond_async,
            background=headers.respond_async or headers.event_stream,
            request=self.record.context,
            principal=self._wish.head.notes.principal,
        )

    def go_on(self, prediction: Prediction) -> None:
        """Answer for a prediction that has been admitted elsewhere."""
        self.record.prediction = prediction.record
        try:
            self.follow(prediction)
        except GeartrainError as error:
            self._responder.respond(self.refuse(error))

    def give_up(self, error: GeartrainError) -> None:
        """Answer for a prediction that could not be admitted.

        Another request may have made the one with the id in the path while the form came: join that.
        """
        known = None
        if error.code is Code.CONFLICT and self._wish.url_id:
            known = self._predictions.find_retried(self._wish.url_id, self._wish.head.notes.principal)
        if known is None:
            self._responder.respond(self.refuse(error))
            return
        self._is_joined = True
        self.record.prediction = known.record
        self.follow(known)

    def follow(self, prediction: Prediction) -> None:
        """Answer as the header fields ask for: with events, at once, or at the end."""
        if self._wish.headers.event_stream:
            self._stream = self._endpoints.streams.open(
                prediction,
                self._responder,
                holders=self._predictions.holders,
                holder=_holder_of(self._wish, is_joined=self._is_joined),
                created=not self._is_joined,
            )
            self.hand_over(self._stream.leave)
            start(self._stream.run(() if self._is_joined else _hints(self._strays)))
        elif self._is_joined:
            self._predictions.holders.join(prediction)
            if cog.takes_long(prediction):
                start(_repeat_aside(prediction, self._wish.headers, self._responder))
            else:
                self._responder.respond(repeated(prediction, self._wish.headers))
        elif self._wish.headers.respond_async:
            accepted = json_answer(cog.encode_accepted(prediction), HTTPStatus.ACCEPTED)
            self._responder.respond(self._advised(accepted))
            if self._endpoints.logs_ends:
                log_end(prediction)
        else:
            RunExchange.follow(self, prediction)

    def answer(self) -> Answer:
        """Return the prediction, which is over."""
        answer = Answer(_OK, cog.encode_in_parts(self._prediction))
        return self._advised(answer) if self._strays else answer

    def _advised(self, answer: Answer) -> Answer:
        """Return an answer with a header about inputs that were passed over."""
        return msgspec.structs.replace(answer, headers=(*answer.headers, *_hints(self._strays)))

    def is_answered_aside(self) -> bool:
        """True if the output has many pieces, which are joined."""
        return len(self._prediction.chunks) > cog.MANY

    async def answer_aside(self) -> Answer:
        """Make the answer in a thread."""
        return await read_aside(self.answer)

    def refuse(self, error: GeartrainError) -> Answer:
        """Create the answer for a refused prediction."""
        return COG.refuse(error)

    def forsake(self, prediction: Prediction) -> None:
        """Apply the rule of this client to the prediction that it leaves."""
        holder = _holder_of(self._wish, is_joined=self._is_joined)
        self._predictions.holders.leave(prediction, holder, self._endpoints.streams.grace)


class TrainingEndpoints(PredictionEndpoints):
    """`POST /trainings`, `PUT` and `GET /trainings/{id}`, `POST /trainings/{id}/cancel`."""

    noun = "training"

    def __init__(
        self, trainings: Trainings, options: CogOptions, bodies: LargeBodies, *, stored: StoredPredictions | None = None
    ) -> None:
        super().__init__(lambda _params: trainings.ref, options, bodies, stored=stored)
        self.trainings = trainings

    def create(self, head: Head, params: Params) -> Decision:
        """Make a training, which has no stream."""
        if read_headers(head.headers).event_stream:
            return COG.refuse(GeartrainError(Code.NOT_ACCEPTABLE, _NO_TRAINING_STREAMS))
        return super().create(head, params)

    def _exchange(self, wish: PredictionWish) -> Callable[[Responder], PredictionExchange]:
        return partial(TrainingExchange, self, wish) if self.stored is None else self.stored.exchange(self, wish)


class TrainingExchange(PredictionExchange):
    """One request for a training, which may have to wait until its model is loaded."""

    __slots__ = ("_trainings",)

    def __init__(self, endpoints: TrainingEndpoints, wish: PredictionWish, responder: Responder) -> None:
        super().__init__(endpoints, wish, responder)
        self._trainings = endpoints.trainings

    async def find(self) -> Deployment:
        """Wait until the model is loaded."""
        await self._trainings.ready()
        return await super().find()

    def is_large(self, body: Body) -> bool:  # noqa: ARG002 - as of its base class
        """Let every training wait for its model."""
        return True

    async def prepare(self, body: Body) -> NewPrediction:
        """Wait until the model is loaded."""
        await self._trainings.ready()
        return await super().prepare(body)


def _holder_of(wish: PredictionWish, *, is_joined: bool) -> Holder:
    """Return the part of a client in its prediction; `is_joined`: another request has made that."""
    if wish.headers.event_stream:
        return Holder.RECONNECTING if wish.url_id and not is_joined else Holder.READING
    return Holder.TOLD if is_joined or wish.headers.respond_async else Holder.WAITING


def _hints(strays: Sequence[str]) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"x-geartrain-hint", _advice(strays).encode("ascii", "backslashreplace")),) if strays else ()


def _advice(names: Sequence[str]) -> str:
    few = [json.dumps(name) for name in names[:_NAMED]]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    what, them = ("an input", "it") if len(names) == 1 else ("inputs", "them")
    return f'passed over {", ".join(few)}{more}, {what} of the model: put {them} inside "input"'


def shown(prediction: Prediction, place: int = 0) -> Answer:
    """Tell how a prediction stands; `place` is its place in the queue, 0 if it does not wait there."""
    return Answer(_OK, cog.encode_in_parts(prediction), _place_header(place))


async def shown_aside(prediction: Prediction, place: int = 0) -> Answer:
    """Do the same; many pieces of an output are joined in a thread."""
    return Answer(_OK, await _parts_of(prediction), _place_header(place))


def _place_header(place: int) -> Fields:
    return (*JSON, (b"x-queue-position", b"%d" % place)) if place else JSON


def repeated(prediction: Prediction, headers: PredictionHeaders) -> Answer:
    """Answer a PUT of a known id with the current state: 200 for one that has ended, else 202."""
    return Answer(_repeated_status(prediction, headers), cog.encode_in_parts(prediction))


async def repeated_aside(prediction: Prediction, headers: PredictionHeaders) -> Answer:
    """Do the same; many pieces of an output are joined in a thread."""
    status = _repeated_status(prediction, headers)  # of the moment that is told of
    return Answer(status, await _parts_of(prediction))


async def _repeat_aside(prediction: Prediction, headers: PredictionHeaders, responder: Responder) -> None:
    try:
        answer = await repeated_aside(prediction, headers)
    except Exception:
        logger.exception("an endpoint failed")
        answer = COG.refuse(BUG)
    responder.respond(answer)


def _repeated_status(prediction: Prediction, headers: PredictionHeaders) -> HTTPStatus:
    return _OK if prediction.is_terminal and not headers.respond_async else HTTPStatus.ACCEPTED


async def _parts_of(prediction: Prediction) -> tuple[Buffer, ...]:
    if cog.takes_long(prediction):
        return await read_aside(cog.snapshot(prediction).parts)
    return cog.encode_in_parts(prediction)


def _new(request: cog.PredictionRequest, wish: PredictionWish, *, noun: str, origin: RequestContext) -> NewPrediction:
    """Create the prediction of a request; raise `GeartrainError` if its id is not that of the path."""
    headers, url_id = wish.headers, wish.url_id
    if url_id and request.id is not None and request.id != url_id:
        raise cog.id_mismatch(noun)
    prediction_id = url_id or request.id
    created_at: Any = request.created_at
    return NewPrediction(
        input=cog.input_of(request),
        id=prediction_id,
        keep=prediction_id is not None or headers.respond_async,  # a client that knows the id may ask for it
        context=request.context or None,
        created_at=None if created_at is None else created_at.timestamp(),
        webhook=None if request.webhook is None else _webhook(request.webhook, request, origin),
        output_prefix=request.output_file_prefix,
        background=headers.respond_async or headers.event_stream,
        request=origin,
        principal=wish.head.notes.principal,
    )


def _webhook(url: str, request: cog.PredictionRequest, origin: RequestContext) -> Webhook:
    """Return the receiver that a request names; what it is told belongs to the request's trace."""
    return Webhook(url, frozenset(request.webhook_events_filter), tuple(origin.headers()))
