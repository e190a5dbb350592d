"""`GET /` for browsers, and `GET /playground/…`, the files of the page.

The page is static. What it knows it asks the server for, by the same API as everybody else, so it needs no rights of
its own. Where the server asks for keys, the page asks its reader for one.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final

import msgspec

from geartrain.transport.compression import accepted_encoding
from geartrain.transport.negotiation import accepted_weight
from geartrain.transport.playground.assets import Asset, load_assets
from geartrain.transport.routing import GET, Api, Begin, Params, Route
from geartrain.transport.tasks import Request, by_task
from geartrain.transport.wire.exchange import Answer, Decision, Fields, Head

ROOT: Final = "/"
_FILES: Final = "/playground/{digest}/{file*}"
_MAX_BODY: Final = 65_536  # bytes of a body, which nobody reads
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src blob: data:; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    b"require-trusted-types-for 'script'; trusted-types 'none'"
)
_GUARDED: Final = (
    (b"content-security-policy", _POLICY),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(self), microphone=(self)"),
    (b"referrer-policy", b"no-referrer"),
)
_NO_SNIFFING: Final = (b"x-content-type-options", b"nosniff")
_CHECKED: Final = (b"cache-control", b"no-cache")  # kept, and asked about each time
_FOREVER: Final = (b"cache-control", b"public, max-age=31536000, immutable")


def with_playground(routes: list[Route], api: Api) -> list[Route]:
    """Return the routes of a server, of which `/` has the page for browsers and what it had for all other clients."""
    page = by_task(_page, api, _MAX_BODY)
    files = Route(GET, _FILES, by_task(_Files(api).answer, api, _MAX_BODY), api, "open", subject="none")
    mended = [
        msgspec.structs.replace(route, begin=_for_browsers(page, route.begin)) if route.path == ROOT else route
        for route in routes
    ]
    return [*mended, files]


def wants_page(head: Head) -> bool:
    """Whether a client would rather have HTML than JSON, as browsers do when somebody opens a URL."""
    accept = [value for name, value in head.headers if name == b"accept"]
    return accepted_weight(accept, b"text/html") > accepted_weight(accept, b"application/json")


def _for_browsers(page: Begin, others: Begin) -> Begin:
    def begin(head: Head, params: Params) -> Decision:
        if wants_page(head):
            return page(head, params)
        decision = others(head, params)
        if not isinstance(decision, Answer):
            return decision
        return msgspec.structs.replace(decision, headers=(*decision.headers, (b"vary", b"Accept")))

    return begin


async def _page(request: Request) -> Answer:
    assets = await asyncio.to_thread(load_assets)
    return _send(request.head, assets.page, (*_GUARDED, _CHECKED, (b"vary", b"Accept, Accept-Encoding")))


class _Files:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def answer(self, request: Request) -> Answer:
        """Return a file; 404 for one that the page at hand does not have."""
        assets = await asyncio.to_thread(load_assets)
        asset = assets.files.get(request.params["file"])
        if asset is None or request.params["digest"] != assets.digest:
            return self._api.not_found()
        return _send(request.head, asset, (_FOREVER, (b"vary", b"Accept-Encoding")))


def _send(head: Head, asset: Asset, headers: Fields) -> Answer:
    """Return a file, compressed where the client takes it so, or 304 if the client has it."""
    is_gzipped = accepted_encoding(head.header(b"accept-encoding") or b"") == "gzip"
    tag = b'"%b%b"' % (asset.tag, b"-gzip" if is_gzipped else b"")
    headers = (*headers, (b"etag", tag), _NO_SNIFFING)
    if tag in [each.strip().removeprefix(b"W/") for each in (head.header(b"if-none-match") or b"").split(b",")]:
        return Answer(HTTPStatus.NOT_MODIFIED, (b"",), headers)
    headers = ((b"content-type", asset.media_type), *headers)
    if is_gzipped:
        return Answer(HTTPStatus.OK, (asset.gzipped,), (*headers, (b"content-encoding", b"gzip")))
    return Answer(HTTPStatus.OK, (asset.plain,), headers)
