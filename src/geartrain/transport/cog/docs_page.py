"""`GET /docs`: the API to try out, in a page that loads nothing from other sites."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Final

from geartrain.transport.cog.api import COG
from geartrain.transport.tasks import Request
from geartrain.transport.wire.exchange import Answer

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
