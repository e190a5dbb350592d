"""A file as a `data:` URL, for those who send one. `outbound.data_urls` reads them."""

from __future__ import annotations

import base64
import mimetypes
from pathlib import Path
from typing import Final

ANY_TYPE: Final = "application/octet-stream"


def data_url_of(content: bytes, media_type: str = ANY_TYPE) -> str:
    """Return the content of a file as a URL."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def media_type_of(name: str | Path) -> str:
    """Guess the media type of a file from its name."""
    return mimetypes.guess_type(name)[0] or ANY_TYPE
