"""Names of FastAPI and Starlette that scripts import, where these are not installed."""

from __future__ import annotations

import json
from typing import Any


class HTTPException(Exception):  # noqa: N818 - the name is FastAPI's
    """An answer with a status."""

    def __init__(self, status_code: int, detail: Any = None, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status_code = status_code
        self.detail = detail
        self.headers = headers


class Request:
    """Annotates a parameter for the request."""


class Response:
    """An answer with a status, a type and header fields."""

    media_type: str | None = None

    def __init__(
        self,
        content: Any = None,
        status_code: int = 200,
        *,
        headers: dict[str, str] | None = None,
        media_type: str | None = None,
    ) -> None:
        self.status_code = status_code
        self.headers = dict(headers or {})
        self.media_type = media_type or self.media_type
        self.body = self.render(content)

    def render(self, content: Any) -> bytes:
        """Return the body of a content."""
        return b"" if content is None else content.encode() if isinstance(content, str) else bytes(content)


class JSONResponse(Response):
    """An answer in JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the body of a value."""
        return json.dumps(content).encode()


class PlainTextResponse(Response):
    """An answer in text."""

    media_type = "text/plain"
