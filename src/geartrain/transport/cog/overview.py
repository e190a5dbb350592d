"""The root of a server whose models have no default among them, and the list of models."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote_to_bytes

import msgspec

from geartrain.apis import cog
from geartrain.authoring import __version__
from geartrain.domain.predictions.lifecycle import Health
from geartrain.domain.versions import COG_VERSION
from geartrain.transport.cog.api import CogOptions, json_answer
from geartrain.transport.cog.docs_page import docs_page
from geartrain.transport.cog.health import health_fields, store_fields
from geartrain.transport.routing import Params
from geartrain.transport.tasks import Request
from geartrain.transport.wire.exchange import Answer, Decision, Head

if TYPE_CHECKING:
    from geartrain.service.durable.durability import Durability
    from geartrain.service.models.catalogue import Catalogue
    from geartrain.service.models.entry import ModelEntry
    from geartrain.service.workers.pool import HealthReport

_WORST_FIRST: Final = (
    Health.SETUP_FAILED,
    Health.DEFUNCT,
    Health.UNHEALTHY,
    Health.STARTING,
    Health.UNKNOWN,
    Health.READY,
    Health.BUSY,
)


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
