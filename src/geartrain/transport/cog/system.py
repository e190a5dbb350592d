"""Everything of Cog's API that is not a prediction: discovery, health, OpenAPI, the docs page, shutdown."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import quote

import msgspec

from geartrain.apis import cog, openapi
from geartrain.authoring import __version__
from geartrain.domain.errors import GeartrainError
from geartrain.domain.signature.types import Signature
from geartrain.service.durable.durability import Durability
from geartrain.service.models.admission import Interface
from geartrain.service.models.entry import ModelRef
from geartrain.service.models.trainings import Trainings
from geartrain.service.models.waking import when_loaded
from geartrain.transport.cog.api import json_answer
from geartrain.transport.cog.docs_page import docs_page
from geartrain.transport.cog.health import health_fields, store_fields
from geartrain.transport.errors import error_headers
from geartrain.transport.routing import Begin, Params
from geartrain.transport.tasks import Endpoint, Request
from geartrain.transport.wire.exchange import JSON, Answer, Decision, Head


class SystemEndpoints:
    """State of one model. Health is that of predictions, or of trainings if it has none."""

    def __init__(
        self,
        name: str,
        predictions: ModelRef | None,
        trainings: Trainings | None,
        *,
        prefix: str = "",
        has_shutdown: bool = False,
        durability: Durability | None = None,
    ) -> None:
        """`name` is that of the model. `prefix`: what stands before its paths."""
        if predictions is not None:
            self._model = predictions
        elif trainings is not None:
            self._model = trainings.ref
        else:
            msg = "there is nothing to serve"
            raise ValueError(msg)
        self._name = name
        self._predictions = predictions
        self._trainings = trainings
        self._prefix = prefix
        self._has_shutdown = has_shutdown
        self._durability = durability
        self._openapi: dict[tuple[Interface | None, str], bytes] = {}  # the latest, by interface and prefix

    def discover(self, head: Head) -> Answer:
        """`GET /`."""
        nouns = {"prediction": self._predictions is not None, "training": self._trainings is not None}
        there = [noun for noun, is_there in nouns.items() if is_there]
        return json_answer(cog.discovery(there, prefix=head.root + self._prefix, shutdown=self._has_shutdown))

    async def health_check(self, _head: Head) -> Answer:
        """`GET /health-check`: always 200, the status is in the body."""
        fields = {**health_fields(await self._model.report()), **store_fields(self._durability)}
        return json_answer(cog.encode_health({**fields, **cog.versions(__version__)}))

    async def status(self, _head: Head) -> Answer:
        """`GET /health-check` for a client that may not read more."""
        return json_answer(cog.encode_health({"status": (await self._model.report()).health}))

    async def openapi(self, head: Head) -> Answer:
        """`GET /openapi.json`: 503 until the signature of the model is known."""
        try:
            interface = None if self._predictions is None else await _interface(self._predictions)
            prefix = head.root + self._prefix
            key = (interface, prefix)
            if key not in self._openapi:
                training = await self._training_signature()
                self._openapi = {key: self._document(interface, training, prefix)}
        except GeartrainError as error:
            status = HTTPStatus.SERVICE_UNAVAILABLE
            body = b'{"error":"OpenAPI schema not available"}'
            return Answer(status, (body,), (*JSON, *error_headers(status, error)))
        return json_answer(self._openapi[key])

    def docs(self, head: Head) -> Answer:
        """`GET /docs`."""
        own = head.root + self._prefix + "/openapi.json" if self._prefix else ""
        return docs_page(head.root, model=self._name, prefix=self._prefix, document=own)

    def _document(self, interface: Interface | None, training: Signature | None, prefix: str) -> bytes:
        signature = None if interface is None else interface.signature
        document = openapi.document(
            signature,
            training=training,
            title=self._name,
            version=__version__,
            is_listed=self._durability is not None,
        )
        if prefix:
            document["servers"] = [{"url": prefix}]
        return msgspec.json.encode(document, order="sorted")

    async def _training_signature(self) -> Signature | None:
        if self._trainings is None:
            return None
        try:
            return await self._trainings.signature()
        except GeartrainError:
            if self._predictions is None:
                raise
            return None  # a training that cannot be loaded takes nothing from the predictions


async def _interface(model: ModelRef) -> Interface:
    return (await when_loaded(lambda: model.deployment)).interface


FindSystem = Callable[[Params], SystemEndpoints]


def at_once(answer: Callable[[SystemEndpoints, Head], Answer], find: FindSystem) -> Begin:
    """Create the handler of requests that are answered once the head is read."""

    def begin(head: Head, params: Params) -> Decision:
        return answer(find(params), head)

    return begin


def path_prefix(name: str, version: str) -> str:
    """Return the beginning of the paths of a model, or of a version of it."""
    prefix = f"/models/{quote(name, safe='')}"
    return f"{prefix}/versions/{quote(version, safe='')}" if version else prefix


def shutdown(shut_down: Callable[[], None]) -> Endpoint:
    """Return the endpoint of `POST /shutdown`: answer, then stop."""

    async def endpoint(_request: Request) -> Answer:
        shut_down()
        return json_answer(b"{}")

    return endpoint
