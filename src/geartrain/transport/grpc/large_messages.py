"""Messages of the type `ModelInferRequest` that take long to read, read aside.

A message is read on the loop if it is short, or if a survey of its fields finds few of them and contents that are
copied as they are. Any other one is read by the process for large bodies.
"""

from __future__ import annotations

from typing import Final

from geartrain.domain.predictions.inference import InferRequest
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.request_context import RequestContext
from geartrain.domain.tensors.tensor import Buffer
from geartrain.service.models import inference
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.waking import when_loaded
from geartrain.transport.access.grants import Grant
from geartrain.transport.grpc.context import CallContext
from geartrain.transport.grpc.translate import BoundInput, Call, Message, parse, read_call
from geartrain.transport.grpc.wire import survey
from geartrain.transport.large_bodies import read_aside
from geartrain.transport.runs import DIRECT_LIMIT
from geartrain.transport.wire.exchange import Body

SHORT: Final = 16_384  # bytes: the worst of such messages takes some 15 ms
_FEW: Final = 2048  # fields, inputs and contents included
_COPIED: Final = 1_048_576  # bytes of typed contents that the loop copies


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
