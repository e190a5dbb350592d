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

_SCRIPT: Final = Path(__file__).parent / "docs.js"
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="stylesheet" href="{prefix}/docs/static/swagger-ui.css">
</head>
<body>
<div id="swagger-ui" data-document="{document}"></div>
<script src="{prefix}/docs/static/swagger-ui-bundle.js"></script>
<script src="{prefix}/docs/static/docs.js"></script>
</body>
</html>
"""


def docs_page(name: str, prefix: str, document: str = "") -> Answer:
    """Return the page about `name`, whose paths begin with `prefix`.

    It shows the OpenAPI document at the path `document`, or else that of the whole server.
    """
    import html  # late: few look at the page

    title = html.escape(f"{name} - geartrain")
    body = _PAGE.format(
        title=title, prefix=html.escape(prefix), document=html.escape(document or prefix + REFERENCE)
    ).encode()
    headers = ((b"content-type", b"text/html; charset=utf-8"), (b"content-security-policy", _POLICY))
    return Answer(HTTPStatus.OK, (body,), headers)


async def docs_file(request: Request) -> Answer:
    """Return a file of the page, or of Swagger UI, which a client may keep as long as its `ETag` holds."""
    import swagger_ui_bundle  # late: as above

    folder = Path(swagger_ui_bundle.swagger_ui_path)
    path = folder / request.params["file"]
    if path == folder / _SCRIPT.name:
        path = _SCRIPT
    elif path.parent != folder or not path.is_file():
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
