"""A file as a `data:` URL, for those who send one. `outbound.data_urls` reads them."""

from __future__ import annotations

import base64
import binascii
import mimetypes
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes

ANY_TYPE: Final = "application/octet-stream"


def data_url_of(content: bytes, media_type: str = ANY_TYPE) -> str:
    """Return the content of a file as a URL."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def read_data_url(url: str) -> tuple[bytes, str]:
    """Return the content of a `data:` URL, and its media type, empty if it has none. Raises `ValueError`."""
    head, comma, text = url[len("data:") :].partition(",")
    if not comma:
        raise ValueError("a data: URL has a comma in front of its content")
    media_type, _, encoding = head.rpartition(";")
    if encoding.strip().lower() != "base64":
        return unquote_to_bytes(text), head
    try:
        return base64.b64decode(unquote_to_bytes(text), validate=True), media_type
    except binascii.Error as error:
        raise ValueError(f"the content of a data: URL is no base64: {error}") from None


def media_type_of(name: str | Path) -> str:
    """Guess the media type of a file from its name."""
    return mimetypes.guess_type(name)[0] or ANY_TYPE
