"""Files on their way in and out."""

from __future__ import annotations

import base64
import os
import urllib.parse
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from geartrain.domain.data_urls import ANY_TYPE, data_url_of, media_type_of

_LARGE: Final = 65_536  # bytes from which base64 costs more than a form


class OutputFile(str):
    """A file of an output: its URL, which is a `data:` URL unless the server uploads files elsewhere."""

    __slots__ = ()

    @property
    def media_type(self) -> str:
        """The media type, such as `image/png`."""
        return self.removeprefix("data:").partition(",")[0].partition(";")[0] or "text/plain"

    def read(self) -> bytes:
        """Return the content."""
        head, _, payload = self.partition(",")
        return base64.b64decode(payload) if head.endswith(";base64") else urllib.parse.unquote_to_bytes(payload)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the content to a file."""
        target = Path(path)
        target.write_bytes(self.read())
        return target


def with_files(value: Any) -> Any:
    """Return an output whose `data:` URLs are `OutputFile`s."""
    if isinstance(value, str):
        return OutputFile(value) if value.startswith("data:") else value
    if isinstance(value, list):
        return [with_files(each) for each in value]
    if isinstance(value, dict):
        return {name: with_files(each) for name, each in value.items()}
    return value


class Upload(NamedTuple):
    """A file of an input."""

    name: str
    media_type: str
    content: bytes | Path

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.content.stat().st_size if isinstance(self.content, Path) else len(self.content)

    @property
    def is_large(self) -> bool:
        """True if it had better not be sent as base64."""
        return self.size >= _LARGE

    def data_url(self) -> str:
        """Return it as a URL."""
        return data_url_of(
            self.content.read_bytes() if isinstance(self.content, Path) else self.content, self.media_type
        )

    def opened(self) -> BinaryIO | bytes:
        """Return the contents for a form."""
        return self.content.open("rb") if isinstance(self.content, Path) else self.content


def upload_of(value: Any) -> Upload | None:
    """Return the file that an input is: a path, bytes, or an open file; None for any other value."""
    if isinstance(value, os.PathLike):
        path = Path(value)
        return Upload(path.name, media_type_of(path), path)
    if isinstance(value, bytes | bytearray | memoryview):
        return Upload("file", ANY_TYPE, bytes(value))
    if hasattr(value, "read"):
        content = value.read()
        name = Path(str(getattr(value, "name", "file"))).name
        return Upload(name, media_type_of(name), content.encode() if isinstance(content, str) else content)
    return None
