"""Answers about all models of a server: the list at the root, and the document of the page `/docs`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote_to_bytes

import msgspec

from geartrain.apis import cog, openapi
from geartrain.apis.reference import ModelPart, OtherPath, reference
from geartrain.authoring import __version__
from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.lifecycle import Health
from geartrain.domain.signature.json_schema import JsonObject
from geartrain.domain.signature.types import Signature, takes_file, takes_files
from geartrain.domain.versions import COG_VERSION
from geartrain.transport.cog.api import CogOptions, json_answer
from geartrain.transport.cog.system import docs_page, health_fields, path_prefix, store_fields
from geartrain.transport.routing import Params
from geartrain.transport.runs import Request
from geartrain.transport.wire.exchange import Answer, Decision, Head

if TYPE_CHECKING:
    from geartrain.service.durable.durability import Durability
    from geartrain.service.models.catalogue import Catalogue
    from geartrain.service.models.deployment import Deployment
    from geartrain.service.models.entry import ModelEntry
    from geartrain.service.models.trainings import Trainings
    from geartrain.service.workers.pool import HealthReport
    from geartrain.service.workers.warmup import Examples

_WORST_FIRST: Final = (
    Health.SETUP_FAILED,
    Health.DEFUNCT,
    Health.UNHEALTHY,
    Health.STARTING,
    Health.UNKNOWN,
    Health.READY,
    Health.BUSY,
)


class ReferenceEndpoint:
    """The document of the whole server. A model whose signature is not known is left out, and named as missing."""

    def __init__(
        self,
        catalogue: Catalogue | None,
        trainings: Trainings | None,
        *,
        is_listed: bool,
        others: Sequence[OtherPath] = (),
    ) -> None:
        """`is_listed`: see `openapi.document`."""
        self._is_listed = is_listed
        self._others = others
        self._catalogue = catalogue
        self._trainings = trainings

    async def answer(self, request: Request) -> Answer:
        """Answer at once, with what is loaded: a page of documentation loads no model."""
        found: dict[str, Deployment] = {}
        missing = []
        names = [] if self._catalogue is None else self._catalogue.names()
        for name in names:
            deployment = self._loaded(name)
            if deployment is None:
                missing.append(name)
            else:
                found[name] = deployment
        training = await self._training()
        root = request.head.root
        return json_answer(await asyncio.to_thread(self._encode, found, missing, training=training, root=root))

    def _loaded(self, name: str) -> Deployment | None:
        """Return the deployment of a model whose signature is known."""
        try:
            deployment = None if self._catalogue is None else self._catalogue.find(name)
            is_known = deployment is not None and deployment.interface is not None
        except GeartrainError:
            return None
        return deployment if is_known else None

    async def _training(self) -> Signature | None:
        try:
            return None if self._trainings is None else await self._trainings.signature()
        except GeartrainError:
            return None

    def _encode(
        self, found: dict[str, Deployment], missing: list[str], *, training: Signature | None, root: str
    ) -> bytes:
        is_alone = len(found) + len(missing) <= 1
        parts = [
            ModelPart(
                name,
                "" if is_alone else path_prefix(name, ""),
                self._document(name, each.interface.signature, training if is_alone else None),
                each.interface.view,
                each.interface.signature.takes_request,
                _example(each.settings.examples, each.interface.signature),
            )
            for name, each in found.items()
        ]
        if training is not None and not parts:
            name = "training" if self._trainings is None else self._trainings.ref.entry.name
            parts.append(ModelPart(name, "", self._document(name, None, training), None))
        document = reference(parts, version=__version__, missing=missing, others=self._others)
        if root:
            document["servers"] = [{"url": root}]
        return msgspec.json.encode(document)

    def _document(self, name: str, signature: Signature | None, training: Signature | None) -> JsonObject:
        is_listed = self._is_listed
        return openapi.document(signature, training=training, title=name, version=__version__, is_listed=is_listed)


def _example(examples: Examples, signature: Signature) -> JsonObject | None:
    """Return the first example without files, whose paths are those of the server's machine; None without one."""
    files = {field.name for field in signature.inputs if takes_file(field.type) or takes_files(field.type)}
    found: Iterable[JsonObject] = map(msgspec.json.decode, examples.for_people)
    return next((each for each in found if not files & each.keys()), None)


class Overview:
    """State of all models of a server together."""

    def __init__(self, catalogue: Catalogue, *, options: CogOptions, durability: Durability | None) -> None:
        self._catalogue = catalogue
        self._can_load = options.can_load
        self._has_shutdown = options.has_shutdown
        self._durability = durability

    def discover(self, head: Head, _params: Params) -> Decision:
        """`GET /`: where each model is."""
        root = head.root
        urls = {
            "cog_version": COG_VERSION,
            "docs_url": f"{root}/docs",
            "healthcheck_url": f"{root}/health-check",
            "metrics_url": f"{root}/metrics",
            "models_url": f"{root}/models",
            "models": {name: f"{root}/models/{quote(name, safe='')}" for name in self._catalogue.names()},
        }
        if self._has_shutdown:
            urls["shutdown_url"] = f"{root}/shutdown"
        return json_answer(msgspec.json.encode(urls))

    async def health_check(self, _request: Request) -> Answer:
        """`GET /health-check`: READY if all that is to be served is; otherwise the worst, with a report of each."""
        wanted, reports = await self._reports()
        body: dict[str, Any] = {
            "status": _worst(reports),
            "models": {entry.name: health_fields(report) for entry, report in zip(wanted, reports, strict=True)},
        }
        return json_answer(cog.encode_health({**body, **store_fields(self._durability), **cog.versions(__version__)}))

    async def status(self, _request: Request) -> Answer:
        """`GET /health-check` for a client that may not read more."""
        _, reports = await self._reports()
        return json_answer(cog.encode_health({"status": _worst(reports)}))

    async def _reports(self) -> tuple[list[ModelEntry], list[HealthReport]]:
        """Return the served models and their health."""
        entries = [self._catalogue.entry(name) for name in self._catalogue.names()]
        wanted = [entry for entry in entries if entry.is_wanted]
        return wanted, await asyncio.gather(*(entry.report() for entry in wanted))

    def list_models(self, _head: Head, _params: Params) -> Decision:
        """`GET /models`: what there is, and whether this port has the requests that load and unload."""
        return json_answer(msgspec.json.encode({"models": self._catalogue.index(), "can_load": self._can_load}))

    @staticmethod
    def docs(head: Head, _params: Params) -> Decision:
        """`GET /docs`."""
        return docs_page(head.root)

    def hint(self, head: Head, _params: Params) -> Decision:
        """Say where Cog's API of a single model is instead."""
        names = self._catalogue.names()
        path = unquote_to_bytes(head.path).decode(errors="replace")
        example = f"{head.root}/models/{quote(names[0], safe='') if names else 'NAME'}{path}"
        text = (
            "This server has several models, and none of them at the root: "
            f"ask one by its name, such as {example}, or start the server with --default-model NAME."
        )
        return json_answer(msgspec.json.encode({"error": text}), HTTPStatus.NOT_FOUND)


def _worst(reports: Iterable[HealthReport]) -> Health:
    """Return the health of several models together; READY if there are none."""
    found = {report.health for report in reports}
    return next((health for health in _WORST_FIRST if health in found), Health.READY)
