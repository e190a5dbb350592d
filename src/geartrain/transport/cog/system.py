"""Everything of Cog's API that is not a prediction: discovery, health, OpenAPI, the docs page, shutdown.

`GET /docs` is the API to try out, in a page that loads nothing from other sites.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from geartrain.apis import cog, openapi
from geartrain.apis.timestamps import timestamp
from geartrain.authoring import __version__
from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.lifecycle import Health
from geartrain.domain.signature.types import Signature
from geartrain.service.durable.durability import Durability
from geartrain.service.models.admission import Interface
from geartrain.service.models.entry import ModelRef
from geartrain.service.models.trainings import Trainings
from geartrain.service.models.waking import when_loaded
from geartrain.service.workers.pool import HealthReport, SetupReport
from geartrain.transport.cog.api import COG, json_answer
from geartrain.transport.errors import error_headers
from geartrain.transport.routing import Begin, Params
from geartrain.transport.runs import Endpoint, Request
from geartrain.transport.wire.exchange import JSON, Answer, Decision, Head

REFERENCE: Final = "/docs/openapi.json"
"""The path of the document of the whole server, which the page at its root shows."""

_HERE: Final = Path(__file__).parent
_HOUSE: Final = _HERE.parent / "playground" / "static"
_FILES: Final = {  # of the page itself; all others are those of Swagger UI
    "docs.css": _HERE / "docs.css",
    "docs.js": _HERE / "docs.js",
    "base.css": _HOUSE / "css" / "base.css",
    "header.css": _HOUSE / "css" / "header.css",
    "icon.svg": _HOUSE / "icon.svg",
}
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="{prefix}/docs/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="{prefix}/docs/static/swagger-ui.css">
<link rel="stylesheet" href="{prefix}/docs/static/base.css">
<link rel="stylesheet" href="{prefix}/docs/static/header.css">
<link rel="stylesheet" href="{prefix}/docs/static/docs.css">
</head>
<body>
<header class="top">
<a class="brand" href="{root}/" aria-label="geartrain">
<img src="{prefix}/docs/static/icon.svg" alt="" width="22" height="22"><span>geartrain</span></a>
<nav aria-label="Pages">
<a href="{playground}">Playground</a>
<a href="{root}/#/status">Status</a>
<a href="{root}/#/results">Results</a>
<a aria-current="page">API<span class="long"> reference</span></a>
</nav>
<button type="button" id="theme" aria-label="Theme">
<svg viewBox="0 0 16 16" aria-hidden="true"><path d="" /></svg>
</button>
</header>
<main>
<div id="swagger-ui" data-document="{document}"></div>
<noscript>
<p class="noscript">This page needs JavaScript. It shows <a href="{document}">the OpenAPI document</a>.</p>
</noscript>
</main>
<script src="{prefix}/docs/static/swagger-ui-bundle.js"></script>
<script src="{prefix}/docs/static/docs.js"></script>
</body>
</html>
"""


def docs_page(root: str, *, model: str = "", prefix: str = "", document: str = "") -> Answer:
    """Make the page of a model, or of the whole server without a `model`. `root` is the path of the server.

    The page lies at `prefix`, a path below the root, and shows the OpenAPI document at the path `document`, or else
    that of the whole server.
    """
    import html  # late: few look at the page

    base = root + prefix
    body = _PAGE.format(
        title=html.escape(f"API of {model} - geartrain" if model else "API reference - geartrain"),
        root=html.escape(root),
        playground=html.escape(f"{root}/#{prefix.replace('/versions/', '/') or '/'}"),
        prefix=html.escape(base),
        document=html.escape(document or base + REFERENCE),
    ).encode()
    headers = ((b"content-type", b"text/html; charset=utf-8"), (b"content-security-policy", _POLICY))
    return Answer(HTTPStatus.OK, (body,), headers)


async def docs_file(request: Request) -> Answer:
    """Return a file of the page, or of Swagger UI, which a client may keep as long as its `ETag` holds."""
    import swagger_ui_bundle  # late: as above

    folder = Path(swagger_ui_bundle.swagger_ui_path)
    name = request.params["file"]
    path = _FILES.get(name, folder / name)
    if name not in _FILES and (path.parent != folder or not path.is_file()):
        return COG.not_found()
    state = path.stat()
    tag = b'"%x-%x"' % (state.st_mtime_ns, state.st_size)
    headers = ((b"content-type", _media_type(path)), (b"etag", tag), (b"cache-control", b"no-cache"))
    if request.head.header(b"if-none-match") == tag:
        return Answer(HTTPStatus.NOT_MODIFIED, (b"",), headers)
    return Answer(HTTPStatus.OK, (await asyncio.to_thread(path.read_bytes),), headers)


def _media_type(path: Path) -> bytes:
    import mimetypes  # late: as above

    found, _ = mimetypes.guess_type(path.name)
    return (found or "application/octet-stream").encode()


def health_fields(report: HealthReport) -> dict[str, Any]:
    """Return the health of a model as `GET /health-check` tells it. What has no value is left out."""
    found: dict[str, Any] = {
        "status": report.health,
        "setup": _setup(report.setup, report.health),
        "user_healthcheck_error": report.healthcheck_error or report.defunct_reason,
        "restarts": report.restarts if report.restarts.count else None,
        "replicas": report.replicas or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def store_fields(durability: Durability | None) -> dict[str, Any]:
    """Return True if the store has answered lately; nothing where there is none."""
    if durability is None:
        return {}
    if durability.fault:
        return {"store": {"status": "unavailable", "error": durability.fault}}
    return {"store": {"status": "available"}}


def _setup(report: SetupReport, health: Health) -> dict[str, Any] | None:
    if health is Health.UNKNOWN:  # it has not started
        return None
    setup: dict[str, Any] = {"started_at": timestamp(report.started_at)}
    if health is Health.STARTING:
        setup["status"] = "starting"
    else:
        if report.completed_at is not None:
            setup["completed_at"] = timestamp(report.completed_at)
        setup["status"] = "failed" if report.failed else "succeeded"
    setup["logs"] = report.logs
    return setup


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
