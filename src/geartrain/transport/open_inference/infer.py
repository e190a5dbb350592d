"""`POST v2/models/{name}[/versions/{version}]/infer`: tensors in, tensors out, as JSON or as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from geartrain.apis import open_inference, tensor_json
from geartrain.apis.open_inference import ALL_JSON, OutputForms
from geartrain.domain.predictions.inference import InferRequest
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.tensors.tensor import Buffer, Tensor
from geartrain.service.models import inference
from geartrain.service.models.deployment import Deployment
from geartrain.transport import compression
from geartrain.transport.compression import Encoding
from geartrain.transport.large_bodies import InferBody, read_aside
from geartrain.transport.open_inference.exchanges import JSON_SIZE, ModelExchange
from geartrain.transport.runs import DIRECT_LIMIT
from geartrain.transport.wire.exchange import Answer, Body

# To read a member of an enumeration from its class takes several times as long as a global name.
_OK: Final = HTTPStatus.OK
_SUCCEEDED: Final = Status.SUCCEEDED
_BINARY: Final = (b"content-type", b"application/octet-stream")
_LARGE: Final = tensor_json.LARGE
_LONG: Final = 262_144  # bytes of outputs that a thread writes as JSON


class InferExchange(ModelExchange):
    """One request for an inference."""

    __slots__ = ("_deployment", "_forms", "_request")

    _deployment: Deployment
    _request: InferRequest
    _forms: OutputForms

    async def prepare(self, body: Body) -> Body | InferBody:
        """Decompress a body, and read a large one."""
        body = await super().prepare(body)
        if len(body) >= _LARGE:
            await self._context.arrays.load()
        if len(body) <= DIRECT_LIMIT:
            return body
        deployment = self._find()
        return await self._context.bodies.read_infer(
            body, self._head.json_size, deployment.interface, fetch=self._context.regions.read
        )

    def admit(self, body: Any) -> Prediction:
        """Start the prediction; raises `GeartrainError`."""
        if isinstance(body, InferBody):
            return self._admit_read(body)
        context, head = self._context, self._head
        deployment = self._find()
        if len(body) >= _LARGE and tensor_json.arrays() is None:
            context.arrays.begin()
        view = deployment.interface.view
        self._request, self._forms = open_inference.read_request(body, head.json_size, view, fetch=context.regions.read)
        bound = view.bind(self._request.inputs)
        open_inference.check_forms(view, self._request.outputs, self._forms)
        return inference.create_bound(
            deployment, self._request, bound, origin=self.record.context_for(deployment.settings.forwarded)
        )

    def _find(self) -> Deployment:
        """Return the deployment of the request; raise `GeartrainError`."""
        self._deployment = deployment = self._context.catalogue.find(self._head.name, self._head.version)
        deployment.workers.check_ready()
        return deployment

    def _admit_read(self, body: InferBody) -> Prediction:
        """Start the prediction of a body that has been read; make its input anew after a reload of the model."""
        before = self._deployment.interface
        deployment = self._find()
        self._request, self._forms = body.request, body.forms
        open_inference.check_forms(deployment.interface.view, body.request.outputs, body.forms)
        origin = self.record.context_for(deployment.settings.forwarded)
        if deployment.interface is not before:
            return inference.create(deployment, body.request, origin)
        return inference.create_bound(deployment, body.request, body.bound, origin=origin, checked=body.checked)

    def forsake(self, prediction: Prediction) -> None:
        """Cancel the prediction: its client has disconnected."""
        self._deployment.predictions.abandon(prediction)

    def is_answered_aside(self) -> bool:
        """Return True if outputs are large, and have to be compressed, or written as JSON in a thread."""
        chunks = self._prediction.chunks
        size = len(chunks[0]) if len(chunks) == 1 else sum(map(len, chunks))
        if size < _LARGE:
            return False
        if self._head.accepted is not None or tensor_json.arrays() is None:
            return True
        if size > DIRECT_LIMIT and self._deployment.interface.view.makes_outputs:
            return True
        return size >= _LONG and not (self._forms.binary and not self._forms.binary_of)

    def answer(self) -> Answer:
        """Return the output of the run in the requested form; raise `GeartrainError`."""
        answer = self._plain_answer()
        accepted = self._head.accepted
        if accepted is None:
            return answer
        return _compressed(answer, compression.deflate(answer.parts, accepted), accepted)

    async def answer_aside(self) -> Answer:
        """Return the output like `answer`, beside the loop."""
        await self._context.arrays.load()
        inference.check_success(self._deployment, self._prediction)
        bodies, chunks, forms = self._context.bodies, self._prediction.chunks, self._forms
        view = self._deployment.interface.view
        outputs = await bodies.outputs(self._deployment.interface, chunks)
        if outputs is None:
            outputs = await read_aside(view.whole, chunks[0] if chunks else b"null", chunks)
        texts = await bodies.texts(
            [one for one in outputs if not (one.name in forms.places or forms.is_binary(one.name))]
        )
        # Regions are written on the loop, where they are unregistered.
        write = partial(self._plain_answer, outputs, texts)
        answer = write() if forms.places else await read_aside(write)
        accepted = self._head.accepted
        if accepted is None:
            return answer
        return _compressed(answer, await compression.deflate_aside(answer.parts, accepted), accepted)

    def _plain_answer(
        self, outputs: list[Tensor] | None = None, texts: Mapping[str, Buffer] = open_inference.NO_TEXTS
    ) -> Answer:
        parts = self._repeated()
        if parts is not None:
            return Answer(_OK, parts)
        response = inference.response(self._deployment, self._prediction, self._request, outputs=outputs)
        body = open_inference.encode_response(response, self._forms, store=self._context.regions.write, texts=texts)
        if body.json_size is None:
            return Answer(_OK, body.parts)
        return Answer(_OK, body.parts, (_BINARY, (JSON_SIZE, b"%d" % body.json_size)))

    def _repeated(self) -> tuple[Buffer, ...] | None:
        """Return the body of a small answer that differs from earlier ones in its numbers only; None for any other."""
        prediction, request, deployment = self._prediction, self._request, self._deployment
        if (
            self._forms is not ALL_JSON
            or request.outputs is not None
            or request.id
            or prediction.metrics
            or prediction.status is not _SUCCEEDED
            or not deployment.interface.view.gives_one
        ):
            return None
        output = prediction.output
        if output is None or len(output) >= _LARGE:
            return None
        return open_inference.encode_packed((deployment.name, deployment.version), output)


def _compressed(answer: Answer, body: bytes, encoding: Encoding) -> Answer:
    headers = (*answer.headers, (b"content-encoding", encoding.encode()), (b"vary", b"accept-encoding"))
    return Answer(answer.status, (body,), headers)
