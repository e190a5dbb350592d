"""`GET /` for browsers, `GET /playground/…`, the files of the page and the cards of models, and `GET /favicon.ico`.

The page is static, and its files are kept in memory. It asks the server by the same API as any other client, so it
needs no rights of its own. Where the server asks for keys, the page asks its reader for one.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import hashlib
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from geartrain.apis import openapi
from geartrain.domain.signature.types import Signature, takes_file, takes_files
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment
from geartrain.service.workers.warmup import Examples
from geartrain.transport.compression import accepted_encoding, accepted_weight
from geartrain.transport.routing import GET, Api, Begin, Params, Route
from geartrain.transport.runs import Request, by_task
from geartrain.transport.wire.exchange import Answer, Decision, Fields, Head

_FOLDER: Final = Path(__file__).parent / "static"
_PAGE: Final = "index.html"
_PLACE: Final = b"{files}"  # in the page: the folder of its files, relative to the page
_MEDIA_TYPES: Final = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
}
ROOT: Final = "/"
_FILES: Final = "/playground/{digest}/{file*}"
_CARD: Final = "/playground/models/{model}"
_ICON: Final = "icon.svg"
_MAX_README: Final = 262_144  # bytes; what follows is not shown
_MAX_QUERY: Final = 1024  # bytes
_MAX_BODY: Final = 65_536  # bytes of a body, which is ignored
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


class Asset(msgspec.Struct, frozen=True):
    """A file as it is sent.

    Attributes:
        media_type: the value of `Content-Type`.
        plain: its bytes.
        gzipped: the same, compressed.
        tag: its strong `ETag`, without the quotes. The compressed form has one of its own.
    """

    media_type: bytes
    plain: bytes
    gzipped: bytes
    tag: bytes


class Assets(msgspec.Struct, frozen=True):
    """All files.

    Attributes:
        digest: of all of them together. It is a part of their URLs, so what such a URL gives never changes.
        page: the page that loads the others.
        files: the others, by their path below the folder.
    """

    digest: str
    page: Asset
    files: dict[str, Asset]


@functools.cache
def load_assets() -> Assets:
    """Read and compress all files, once. Blocks for some milliseconds; raises OSError if one cannot be read."""
    paths = sorted(path for path in _FOLDER.rglob("*") if path.suffix in _MEDIA_TYPES)
    contents = {path.relative_to(_FOLDER).as_posix(): path.read_bytes() for path in paths}
    whole = hashlib.sha256()
    for name, content in contents.items():
        whole.update(b"%b\0%d\0%b" % (name.encode(), len(content), content))
    digest = whole.hexdigest()[:16]
    page = contents.pop(_PAGE).replace(_PLACE, f"playground/{digest}".encode())
    return Assets(
        digest=digest,
        page=_asset(_PAGE, page),
        files={name: _asset(name, content) for name, content in contents.items()},
    )


def _asset(name: str, content: bytes) -> Asset:
    tag = hashlib.sha256(content).hexdigest()[:32].encode()
    media_type = _MEDIA_TYPES[Path(name).suffix]
    return Asset(media_type, content, gzip.compress(content, compresslevel=9, mtime=0), tag)


def with_playground(routes: list[Route], api: Api, catalogue: Catalogue | None = None) -> list[Route]:
    """Return the routes with the page for browsers at `/`; other clients get the previous answer of `/`.

    The models of `catalogue` have cards: see `Cards`.
    """
    page = by_task(_page, api, _MAX_BODY)
    files = Route(GET, _FILES, by_task(_Files(api).answer, api, _MAX_BODY), api, "open", subject="none")
    icon = Route(GET, "/favicon.ico", by_task(_favicon, api, _MAX_BODY), api, "open", subject="none")
    mended = [
        msgspec.structs.replace(route, begin=_for_browsers(page, route.begin)) if route.path == ROOT else route
        for route in routes
    ]
    cards = [] if catalogue is None else Cards(catalogue, api).routes()
    return [*mended, files, icon, *cards]


def wants_page(head: Head) -> bool:
    """True if a client would rather have HTML than JSON, as browsers do when somebody opens a URL."""
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


async def _favicon(request: Request) -> Answer:
    """Answer what browsers request for documents that name no icon, such as JSON."""
    assets = await asyncio.to_thread(load_assets)
    return _send(request.head, assets.files[_ICON], (_CHECKED, (b"vary", b"Accept-Encoding")))


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


class Cards:
    """Model cards: README, examples with their files, schemas in the author's order, endpoints of OpenAI's API."""

    def __init__(self, catalogue: Catalogue, api: Api) -> None:
        self._catalogue = catalogue
        self._api = api

    def routes(self) -> list[Route]:
        """Make the routes."""
        return [
            Route(GET, _CARD, by_task(self.card, self._api, _MAX_BODY), self._api, "read"),
            Route(GET, f"{_CARD}/files/{{file*}}", by_task(self.file, self._api, _MAX_BODY), self._api, "read"),
        ]

    async def card(self, request: Request) -> Answer:
        """Answer with the card of a model, or of the version in `?version=`."""
        deployment = self._find(request)
        examples = deployment.settings.examples
        signature = deployment.interface.signature
        document = openapi.document(signature, title="", version="")
        schemas = document["components"]["schemas"]
        card = {
            "readme": await asyncio.to_thread(_readme, examples),
            "examples": [msgspec.Raw(each) for each in examples.for_people],
            "schemas": {name: schemas[name] for name in ("Input", "Output")},
            "openai": _openai(deployment),
        }
        return Answer(HTTPStatus.OK, (msgspec.json.encode(card),))

    async def file(self, request: Request) -> Answer:
        """Answer with a file that an example names; 404 for any other."""
        deployment = self._find(request)
        examples = deployment.settings.examples
        name = request.params["file"]
        if name not in _files(examples, deployment.interface.signature):
            return self._api.not_found()
        try:
            content = await asyncio.to_thread((examples.root / name).read_bytes)
        except OSError:
            return self._api.not_found()
        headers = ((b"content-type", _media_type(name)), (b"content-disposition", b"attachment"), _NO_SNIFFING)
        return Answer(HTTPStatus.OK, (content,), headers)

    def _find(self, request: Request) -> Deployment:
        version = parse_qs(request.head.query[:_MAX_QUERY].decode("latin-1")).get("version", [""])[-1]
        return self._catalogue.find(request.params["model"], version)


def _openai(deployment: Deployment) -> dict[str, Any]:
    """Return the endpoints of OpenAI's API that a model has, and the inputs that these fill with texts.

    `is_talker`: whether it takes the messages of a chat.
    """
    from geartrain.domain.signature.openai_view import COUNT  # late: a start needs no card

    view, inputs = deployment.openai.view, deployment.openai.inputs
    token_ids = "" if view.token_ids is None else view.token_ids.name
    names = (view.messages, view.prompt, view.texts, token_ids, COUNT if view.counts else "")
    filled = [inputs.get(name, name) for name in names if name]
    return {"endpoints": view.endpoints, "filled": filled, "is_talker": bool(view.messages)}


def _readme(examples: Examples) -> str:
    """Read the README of a version, or else of its model; empty without one."""
    for folder in (examples.root, examples.folder):
        try:
            with (folder / "README.md").open("rb") as file:
                return file.read(_MAX_README).decode("utf-8", "replace")
        except OSError:
            continue
    return ""


def _files(examples: Examples, signature: Signature) -> set[str]:
    """Return the paths of files in the examples."""
    names = [field.name for field in signature.inputs if takes_file(field.type) or takes_files(field.type)]
    values = [msgspec.json.decode(each).get(name) for each in examples.shown for name in names]
    listed = [part for value in values for part in (value if isinstance(value, list) else [value])]
    return {part for part in listed if isinstance(part, str)}


def _media_type(name: str) -> bytes:
    import mimetypes  # late: few models have examples with files

    return (mimetypes.guess_type(name)[0] or "application/octet-stream").encode()


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
