"""`ModelInfer`: one run, one answer. A client that gives up, or whose deadline passes, ends the run."""

from __future__ import annotations

import asyncio

from geartrain.domain.predictions.inference import InferRequest
from geartrain.service.models import inference
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment
from geartrain.service.readers import completion
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.grpc.access import CallAccess
from geartrain.transport.grpc.errors import Context, abort
from geartrain.transport.grpc.regions import write_outputs
from geartrain.transport.grpc.translate import Call, encode, parse, read_call, within


class InferCalls:
    """Answers `ModelInfer`: serialized messages in and out."""

    def __init__(self, catalogue: Catalogue, regions: SharedRegions, access: CallAccess) -> None:
        self.catalogue = catalogue
        self.regions = regions
        self._access = access
        self._open = 0  # calls

    async def infer(self, data: bytes, context: Context) -> bytes:
        """Answer one call, or end it with a status."""
        self._open += 1
        try:
            grant = self._access.grant(context, "predict")
            message = parse(data)
            grant.check_model(message.head.model_name)
            call = read_call(message, self.regions)
            if self._open == 1:
                await asyncio.sleep(0)  # calls that have arrived together are counted before it runs
            deployment = self.catalogue.find(call.model, call.version)  # after the wait: it may be another one by then
            if self._open > 1:
                deployment.scheduler.expect_others()
            return await self._run(deployment, call, within(call.request, context.time_remaining()))
        except Exception as error:  # noqa: BLE001 - the border of a call: whatever it is becomes a status
            await abort(context, error)
        finally:
            self._open -= 1

    async def _run(self, deployment: Deployment, call: Call, request: InferRequest) -> bytes:
        prediction = inference.create(deployment, request)
        if not prediction.is_terminal:
            try:
                await completion(prediction)
            except asyncio.CancelledError:
                deployment.predictions.abandon(prediction)
                raise
        response = inference.response(deployment, prediction, request)
        write_outputs(self.regions, call.places, response.outputs)
        return b"".join(encode(response, call.places))
