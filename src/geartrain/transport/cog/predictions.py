"""`POST /predictions`, `PUT` and `GET /predictions/{id}`, `POST /predictions/{id}/cancel`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import msgspec

from geartrain.apis import cog
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.request_context import RequestContext
from geartrain.domain.predictions.webhook import Webhook
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.entry import ModelRef
from geartrain.service.models.holders import Holder
from geartrain.service.models.predictions import Predictions
from geartrain.service.models.waking import when_loaded
from geartrain.service.readers import completion
from geartrain.transport.cog.api import COG, CogOptions, json_answer
from geartrain.transport.cog.forms import Form, FormExchange, may_be_input, wrong_type
from geartrain.transport.cog.headers import PredictionHeaders, read_headers
from geartrain.transport.cog.streams import EventStream, EventStreams
from geartrain.transport.large_bodies import LargeBodies, is_light
from geartrain.transport.routing import Params
from geartrain.transport.runs import DIRECT_LIMIT, RunExchange
from geartrain.transport.tasks import size_refusal, start
from geartrain.transport.wire.exchange import (
    JSON,
    NO_BODY,
    UNKNOWN_LENGTH,
    Accepted,
    AcceptedInParts,
    Answer,
    Body,
    Decision,
    Head,
    Responder,
)

_OK: Final = HTTPStatus.OK  # to read it from its class takes several times as long
_NO_STREAMS: Final = (
    "This model does not support streaming responses. Add @streaming to run() to enable SSE, "
    "or leave text/event-stream out of the Accept header."
)
_UNKNOWN_ID: Final = b'{"error":"No such %b: it never was, or it has been over for longer than --keep."}'
_NO_URL_ID: Final = ""

FindModel = Callable[[Params], ModelRef]


class PredictionWish(msgspec.Struct, frozen=True):
    """What the head of a request asks for.

    Attributes:
        model: that shall run.
        headers: what the header fields say.
        url_id: the id in the path, empty if there is none.
        head: itself.
    """

    model: ModelRef
    headers: PredictionHeaders
    url_id: str
    head: Head


class PredictionEndpoints:
    """Handles the requests for predictions of a model that the path names, or that is at the root."""

    noun = "prediction"

    def __init__(self, find: FindModel, options: CogOptions, bodies: LargeBodies) -> None:
        """`find` returns the model of a path; it may raise `GeartrainError`. `bodies` reads large ones."""
        self.find = find
        self.bodies = bodies
        self.max_body = options.max_body
        self._refuse_size = size_refusal(COG)
        self.streams = EventStreams(quiet=options.quiet, grace=options.stream_grace)

    def create(self, head: Head, params: Params) -> Decision:
        """Make a prediction; not idempotent. With `id` in the path: make it, or tell how the live one stands."""
        model = self.find(params)
        headers = read_headers(head.headers)
        wish = PredictionWish(model, headers, params.get("id", _NO_URL_ID), head)
        if not headers.has_json:
            if may_be_input(headers.media_type):
                return self._create_from_form(head, wish)
            if head.length not in {NO_BODY, UNKNOWN_LENGTH} or headers.media_type:
                return COG.refuse(wrong_type(headers.media_type))
        return Accepted(self._exchange(wish), self.max_body, self._refuse_size)

    def cancel(self, head: Head, params: Params) -> Decision:
        """Ask for the end of a live prediction: 200 at once, 404 if there is none."""
        head.notes.prediction_id = params["id"]
        found = any(predictions.cancel(params["id"], head.notes.principal) for predictions in self._tables(params))
        return json_answer(b"{}", HTTPStatus.OK if found else HTTPStatus.NOT_FOUND)

    def show(self, head: Head, params: Params) -> Decision:
        """Tell how a prediction stands, live or recently over; 404 if there is none.

        Of one that waits for a slot, a header field says its place in the queue.
        """
        head.notes.prediction_id = params["id"]
        for predictions in self._tables(params):
            prediction = predictions.look_up(params["id"], head.notes.principal)
            if prediction is not None:
                return shown(prediction, predictions.place_of(prediction.id))
        return json_answer(_UNKNOWN_ID % self.noun.encode(), HTTPStatus.NOT_FOUND)

    def _create_from_form(self, head: Head, wish: PredictionWish) -> Decision:
        """Read inputs that are a form or a file; of a prediction that is live already, tell how it stands."""
        predictions = wish.model.predictions
        known = predictions.find_retried(wish.url_id, head.notes.principal) if wish.url_id else None
        if known is not None:
            head.notes.prediction_id = wish.url_id
            predictions.holders.join(known)
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
        return partial(PredictionExchange, self, wish)

    def _tables(self, params: Params) -> tuple[Predictions, ...]:
        """Return the predictions of the model; none where there is no such model any more."""
        model = self.find(params)
        try:
            return (model.predictions,)
        except GeartrainError:
            return ()


class PredictionExchange(RunExchange):
    """One request for a prediction."""

    __slots__ = ("_endpoints", "_is_joined", "_predictions", "_stream", "_wish")

    def __init__(self, endpoints: PredictionEndpoints, wish: PredictionWish, responder: Responder) -> None:
        RunExchange.__init__(self, responder)  # as `super()`, without its price
        self._endpoints = endpoints
        self._wish = wish
        self._is_joined = False  # to a prediction that another request has made
        self._predictions: Predictions
        self._stream: EventStream

    def receive(self, body: Body) -> None:
        """Receive the request, once an abandoned prediction with the id in its path has ended."""
        abandoned = self._find_abandoned() if self._wish.url_id else None
        if abandoned is None:
            super().receive(body)
        else:
            start(self._receive_after(abandoned, body))

    def _find_abandoned(self) -> Prediction | None:
        try:
            return self._wish.model.predictions.find_abandoned(self._wish.url_id, self._wish.head.notes.principal)
        except GeartrainError:  # there is no such model: answered where it is asked to run
            return None

    async def _receive_after(self, abandoned: Prediction, body: Body) -> None:
        await completion(abandoned)
        if not self._has_left:
            self.receive(body)

    def read(self, body: Body) -> NewPrediction:
        """Return what the body and the head ask for."""
        headers = self._wish.headers
        if headers.has_json:
            request = cog.read_request(body)
        elif body:
            raise wrong_type(headers.media_type)
        else:
            request = cog.NO_REQUEST
        if self._wish.url_id:
            return self._complete(request)
        return _new(request, "", self._wish, origin=self.record.context)

    def _complete(self, request: cog.PredictionRequest) -> NewPrediction:
        """Add what the head says to a request."""
        url_id = self._wish.url_id
        if url_id and request.id is not None and request.id != url_id:
            raise cog.id_mismatch(self._endpoints.noun)
        return _new(request, url_id, self._wish, origin=self.record.context)

    def is_large(self, body: Body) -> bool:
        """Whether the body has to be read aside."""
        return len(body) > DIRECT_LIMIT and not is_light(body)

    async def prepare(self, body: Body) -> NewPrediction:
        """As `read`, of a large body."""
        if not self._wish.headers.has_json:
            return self.read(body)
        read = await self._endpoints.bodies.read_cog(body, self._wish.model.deployment.interface)
        new = self._complete(read.request)
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
        return deployment.create(body)

    async def find(self) -> Deployment:
        """Return what runs a prediction whose inputs are a form or a file; raise `GeartrainError` if nothing may."""
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
            self.give_up(error)

    def give_up(self, error: GeartrainError) -> None:
        """Answer for a prediction that could not be admitted."""
        self._responder.respond(self.refuse(error))

    def follow(self, prediction: Prediction) -> None:
        """Answer as the header fields ask for: with events, at once, or at the end."""
        if self._wish.headers.event_stream:
            self._stream = self._endpoints.streams.open(
                prediction,
                self._responder,
                holders=self._predictions.holders,
                holder=self._holder,
                created=not self._is_joined,
            )
            self.hand_over(self._stream.leave)
            start(self._stream.run())
        elif self._is_joined:
            self._predictions.holders.join(prediction)
            self._responder.respond(repeated(prediction, self._wish.headers))
        elif self._wish.headers.respond_async:
            self._responder.respond(json_answer(cog.encode_accepted(prediction), HTTPStatus.ACCEPTED))
        else:
            RunExchange.follow(self, prediction)

    def answer(self) -> Answer:
        """Return the prediction, which is over."""
        return Answer(_OK, cog.encode_in_parts(self._prediction))

    def refuse(self, error: GeartrainError) -> Answer:
        """Return why there is no prediction."""
        return COG.refuse(error)

    def forsake(self, prediction: Prediction) -> None:
        """Apply the rule of this client to the prediction that it leaves."""
        self._predictions.holders.leave(prediction, self._holder, self._endpoints.streams.grace)

    @property
    def _holder(self) -> Holder:
        """The part of this client in the prediction."""
        headers = self._wish.headers
        if headers.event_stream:
            return Holder.RECONNECTING if self._wish.url_id and not self._is_joined else Holder.READING
        return Holder.TOLD if self._is_joined or headers.respond_async else Holder.WAITING


def shown(prediction: Prediction, place: int = 0) -> Answer:
    """Tell how a prediction stands; `place` is its place in the queue, 0 if it does not wait there."""
    headers = (*JSON, (b"x-queue-position", b"%d" % place)) if place else JSON
    return Answer(_OK, cog.encode_in_parts(prediction), headers)


def repeated(prediction: Prediction, headers: PredictionHeaders) -> Answer:
    """Answer a PUT of a known id with the current state: 200 for one that has ended, else 202."""
    status = _OK if prediction.is_terminal and not headers.respond_async else HTTPStatus.ACCEPTED
    return Answer(status, cog.encode_in_parts(prediction))


def _new(request: cog.PredictionRequest, url_id: str, wish: PredictionWish, *, origin: RequestContext) -> NewPrediction:
    """Return what a request asks for."""
    headers = wish.headers
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
