"""`ModelInfer`: one run, one answer. A client that gives up, or whose time is up, ends the run.

A message is read on the loop if it is short, or if a survey of its fields finds few of them and contents that are
copied as they are. Any other one is read by the process for large bodies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.inference import InferRequest
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.request_context import RequestContext
from geartrain.domain.tensors.tensor import Buffer, Tensor
from geartrain.service.models import inference
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.waking import when_loaded
from geartrain.transport import compression
from geartrain.transport.access.guard import Grant
from geartrain.transport.grpc.context import CallContext
from geartrain.transport.grpc.framing import (
    MIN_COMPRESSED,
    PREFIX_SIZE,
    Deadline,
    check_whole,
    is_compressed,
    unpack,
    whole,
    whole_compressed,
)
from geartrain.transport.grpc.heads import NO_TIMEOUT, CallHead, refusal
from geartrain.transport.grpc.translate import BoundInput, Call, Message, parse, read_call, within, write_outputs
from geartrain.transport.grpc.wire import survey
from geartrain.transport.large_bodies import read_aside
from geartrain.transport.runs import DIRECT_LIMIT, RunExchange
from geartrain.transport.wire.exchange import Answer, Body, Responder

SHORT: Final = 16_384  # bytes: the worst of such messages takes some 15 ms
_FEW: Final = 2048  # fields, inputs and contents included
_COPIED: Final = 1_048_576  # bytes of typed contents that the loop copies
PATH: Final = "/inference.GRPCInferenceService/ModelInfer"
_LARGE: Final = 65_536  # bytes of outputs that take long to compress, or to make of JSON


def is_large(message: Buffer) -> bool:
    """Return True if `read_large` has to read this message: it is long, or has many fields."""
    return len(message) > DIRECT_LIMIT or (len(message) > SHORT and _has_many(message))


def _has_many(message: Buffer) -> bool:
    found = survey(message, _FEW, _FEW)
    return found is None or found.fields > _FEW or found.texts > _FEW or found.numbers + found.rest > SHORT


def _is_copied(message: Buffer) -> bool:
    """Return True if nothing of a message is long but contents that are copied, or viewed."""
    found = survey(message, _FEW, _FEW)
    if found is None or found.fields > _FEW or found.texts > _FEW or found.numbers + found.rest > DIRECT_LIMIT:
        return False
    return found.typed <= _COPIED


async def read_large(
    context: CallContext, body: Body, grant: Grant, *, begin: int = 0, time_limit: float | None = None
) -> Call:
    """Read a request and make the model's input of it, without holding the loop. Raises `GeartrainError`.

    It stands in `body` from `begin` to the end.
    `time_limit`: seconds to wait for the model to be loaded, None for the limit of the request.
    """
    call = await _read(context, body, begin, grant=grant)
    limit = call.request.schedule.timeout if time_limit is None else time_limit
    deployment = await when_loaded(lambda: _find(context, call), limit)
    interface = deployment.interface
    bound, checked = await context.bodies.bind(call.request, interface)
    return call._replace(bound=BoundInput(interface, bound, checked))


def create(deployment: Deployment, call: Call, request: InferRequest, *, origin: RequestContext) -> Prediction:
    """Start the prediction of a call, whose input is made anew after a reload of the model. Raises `GeartrainError`."""
    ready = call.bound
    if ready is None or ready.interface is not deployment.interface:
        return inference.create(deployment, request, origin)
    deployment.workers.check_ready()
    return inference.create_bound(deployment, request, ready.bound, origin=origin, checked=ready.checked)


def _find(context: CallContext, call: Call) -> Deployment:
    deployment = context.catalogue.find(call.model, call.version)
    deployment.workers.check_ready()
    return deployment


async def _read(context: CallContext, body: Body, begin: int, *, grant: Grant) -> Call:
    message = memoryview(body)[begin:]
    if len(message) <= SHORT or _is_copied(message):
        return context.requests.read(body, begin, grant)
    head, contents = await context.bodies.read_message(message)
    parsed = parse(head)
    grant.check_model(parsed.head.model_name)
    request = Message(parsed.head, contents)
    if len(head) <= SHORT or context.regions.enabled:  # regions are read on the loop, where they are unregistered
        return read_call(request, context.regions.read)
    return await read_aside(read_call, request, context.regions.read)


class InferExchange(RunExchange):
    """One call."""

    __slots__ = ("_call", "_context", "_deployment", "_grant", "_head", "_mirrors")

    _call: Call
    _deployment: Deployment

    def __init__(self, context: CallContext, head: CallHead, responder: Responder, *, grant: Grant) -> None:
        super().__init__(responder)
        self._context = context
        self._head = head
        self._grant = grant
        self._mirrors = False  # the answer is compressed as the request was

    def refuse(self, error: GeartrainError) -> Answer:
        """Return the status of a call that failed."""
        return refusal(error)

    def read(self, body: Body) -> Call:
        """Read the one message of a body."""
        if body[:1] != b"\0" or len(body) - PREFIX_SIZE != int.from_bytes(body[1:PREFIX_SIZE], "big"):
            check_whole(body, PATH)
        return self._context.requests.read(body, PREFIX_SIZE, self._grant)

    def is_large(self, body: Body) -> bool:
        """Return True if the message is compressed, or takes long to read."""
        return body[:1] == b"\x01" or (len(body) > SHORT and is_large(memoryview(body)[PREFIX_SIZE:]))

    async def prepare(self, body: Body) -> Call:
        """Read the one message of a body, which is compressed or large."""
        context, head = self._context, self._head
        begin = PREFIX_SIZE
        if is_compressed(body):
            body, begin = bytes(await unpack(body, PATH, head, limit=context.max_message)), 0
            self._mirrors = head.mirrors
        else:
            check_whole(body, PATH)
        if is_large(memoryview(body)[begin:]):
            return await read_large(context, body, self._grant, begin=begin)
        return context.requests.read(body, begin, self._grant)

    def admit(self, call: Call) -> Prediction:
        """Start the prediction; raises `GeartrainError`."""
        self._call = call
        self._deployment = deployment = self._context.catalogue.find(call.model, call.version)
        origin = self.record.context_for(deployment.settings.forwarded)
        return create(deployment, call, call.request, origin=origin)

    def wait_limit(self, call: Call) -> float | None:
        """Return the time limit of the request; that of the call itself is kept elsewhere."""
        return call.request.schedule.timeout

    def forsake(self, prediction: Prediction) -> None:
        """Cancel the prediction: its client has gone, or its time is up."""
        self._deployment.predictions.abandon(prediction)

    def answer(self) -> Answer:
        """Return the output of the run; raise `GeartrainError`."""
        parts = self._write()
        if self._mirrors and sum(map(len, parts)) > MIN_COMPRESSED:
            return whole_compressed(compression.deflate(parts, "gzip"))
        return whole(parts)

    def is_answered_aside(self) -> bool:
        """True if outputs are large, and to be compressed, or to be made of JSON."""
        is_made = self._mirrors or self._deployment.interface.view.makes_outputs
        return is_made and sum(map(len, self._prediction.chunks)) > _LARGE

    async def answer_aside(self) -> Answer:
        """Return the output like `answer`, beside the loop."""
        inference.check_success(self._deployment, self._prediction)
        outputs = await self._context.bodies.outputs(self._deployment.interface, self._prediction.chunks)
        parts = self._write(outputs)
        if self._mirrors:
            return whole_compressed(await compression.deflate_aside(parts, "gzip"))
        return whole(parts)

    def _write(self, outputs: list[Tensor] | None = None) -> list[Buffer]:
        context, call = self._context, self._call
        response = inference.response(self._deployment, self._prediction, call.request, outputs=outputs)
        write_outputs(context.regions, call.places, response.outputs)
        return context.responses.write(response, call.places)


class TimedInferExchange(InferExchange):
    """One call whose client does not wait forever."""

    __slots__ = ("_deadline",)

    def __init__(self, context: CallContext, head: CallHead, responder: Responder, *, grant: Grant) -> None:
        self._deadline = Deadline(responder, head.timeout, super().abandon)
        super().__init__(context, head, self._deadline, grant=grant)

    def abandon(self) -> None:
        """Forsake the prediction, and the answer that would come at the end of the time."""
        self._deadline.close()
        super().abandon()

    def admit(self, call: Call) -> Prediction:
        """Start the prediction, which has no more time than is left of the call's; raises `GeartrainError`."""
        return super().admit(call._replace(request=within(call.request, self._deadline.seconds_left)))


def infer_exchange(context: CallContext, head: CallHead, grant: Grant) -> Callable[[Responder], InferExchange]:
    """Create the factory of exchanges for calls with this head."""
    return partial(InferExchange if head.timeout == NO_TIMEOUT else TimedInferExchange, context, head, grant=grant)
