"""Inference with tensors, as the Open Inference Protocol asks for it: a prediction like any other."""

from __future__ import annotations

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.inference import InferRequest, InferResponse, Parameters
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.request_context import NO_REQUEST, RequestContext
from geartrain.domain.signature.tensor_view import Bound
from geartrain.domain.tensors.tensor import Buffer, Tensor
from geartrain.service.models.admission import CheckedInput, NewPrediction
from geartrain.service.models.deployment import Deployment

# To read a member of an enumeration from its class takes several times as long as a global name.
_CANCELED, _FAILED = Status.CANCELED, Status.FAILED


def create(deployment: Deployment, request: InferRequest, origin: RequestContext = NO_REQUEST) -> Prediction:
    """Check a request, admit it and start it. Returns at once; `response` reads the prediction when it is over.

    `origin`: the request that it comes in. The server makes the prediction's id: clients of this protocol give the same
    one to many requests. Raises `GeartrainError`:
    `INVALID_TENSOR`, `INVALID_INPUT`, `NOT_READY`, `QUEUE_FULL`, `SHUTTING_DOWN`.
    """
    deployment.workers.check_ready()
    return create_bound(deployment, request, deployment.interface.view.bind(request.inputs), origin=origin)


def create_bound(
    deployment: Deployment,
    request: InferRequest,
    bound: Bound,
    *,
    origin: RequestContext = NO_REQUEST,
    checked: CheckedInput | None = None,
) -> Prediction:
    """Create a prediction whose input was made by the model's view, and perhaps checked, before."""
    view = deployment.interface.view
    if request.outputs is not None:
        view.check_requested(request.outputs)
    tensors = bound.tensors if view.has_tensors else None
    values = view.with_request(bound.json, request.outputs, request.id, content_types=request.content_types)
    return create_from_json(deployment, values, request, origin=origin, tensors=tensors, checked=checked)


def create_from_json(
    deployment: Deployment,
    values: bytes,
    request: InferRequest,
    *,
    origin: RequestContext = NO_REQUEST,
    tensors: tuple[Tensor, ...] | None = None,
    checked: CheckedInput | None = None,
) -> Prediction:
    """Create a prediction whose input is JSON already; the tensors of `request` are ignored.

    The fields of `origin` are parameters, behind those of the client.
    """
    new = NewPrediction(
        input=values,
        tensors=tensors,
        parameters=({**dict(origin.fields), **request.parameters} if origin.fields else request.parameters) or None,
        queue=deployment.settings.inference_queue,
        schedule=request.schedule,
        request=origin,
        checked=checked,
    )
    return deployment.create(new)


def response(
    deployment: Deployment, prediction: Prediction, request: InferRequest, *, outputs: list[Tensor] | None = None
) -> InferResponse:
    """Return the answer of a run that is over; raise `GeartrainError` if it failed or was canceled.

    `outputs`: those of the run, where they have been made already.
    """
    check_success(deployment, prediction)
    if outputs is None:
        view = deployment.interface.view
        output = None if view.streams else prediction.output  # that of a stream would be joined for nothing
        outputs = view.whole(output or b"null", prediction.chunks)
    return _response(deployment, outputs, request, parameters=_recorded(prediction))


def response_of(
    deployment: Deployment, chunk: Buffer, request: InferRequest, *, outputs: list[Tensor] | None = None
) -> InferResponse:
    """Return the answer that one yield of the run is; `outputs` as of `response`."""
    if outputs is None:
        outputs = deployment.interface.view.one(chunk)
    return _response(deployment, outputs, request, parameters={})


def check_success(deployment: Deployment, prediction: Prediction) -> None:
    """Raise `GeartrainError` unless the run ended well."""
    if prediction.status is _CANCELED:
        raise GeartrainError(Code.RUN_CANCELED, "The prediction was canceled.")
    if prediction.status is _FAILED:
        code, message = prediction.error_code or Code.RUN_FAILED, prediction.error or "The prediction failed."
        raise GeartrainError(code, message, retry_after=deployment.scheduler.retry_after())


def _response(
    deployment: Deployment, outputs: list[Tensor], request: InferRequest, *, parameters: Parameters
) -> InferResponse:
    if request.outputs is not None:
        outputs = [tensor for tensor in outputs if tensor.name in request.outputs]
    return InferResponse(deployment.name, deployment.version, request.id, tuple(outputs), parameters)


def _recorded(prediction: Prediction) -> Parameters:
    """The metrics that the run has recorded, those that a parameter of the protocol can carry."""
    metrics = prediction.metrics
    if not metrics:
        return {}
    return {name: value for name, value in metrics.items() if isinstance(value, (str, int, float, bool))}
