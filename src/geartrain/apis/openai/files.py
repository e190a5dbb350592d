"""The files that a model gives, as `data:` URLs or URLs of an upload, in answers of OpenAI's API."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pybase64

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.tensors.tensor import Buffer

FILE_URLS: Final = ("data:", "http:", "https:")  # of files that a client sends
_decode = msgspec.json.Decoder().decode


class GivenFile(msgspec.Struct, frozen=True):
    """A file of an output: its media type, and its content in base64."""

    media_type: str
    base64: str

    def content(self) -> bytes:
        """Return the content."""
        return pybase64.b64decode(self.base64)


def given_files(piece: Buffer) -> list[GivenFile]:
    """Return the files of an output, whose JSON text has `data:` URLs. Raises `RUN_FAILED` for anything else."""
    return [_file(url) for url in given_urls(piece)]


def given_urls(piece: Buffer) -> list[str]:
    """Return the URLs of an output: one, a list of them, or null. Raises `RUN_FAILED` for anything else."""
    value: Any = _decode(piece)
    urls = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(url, str) for url in urls):
        raise _no_file()
    return urls


def _file(url: str) -> GivenFile:
    head, comma, payload = url.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        raise _no_file()
    return GivenFile(head[len("data:") : -len(";base64")].partition(";")[0].lower(), payload)


def _no_file() -> GeartrainError:
    return GeartrainError(Code.RUN_FAILED, "The model gave something that is no file.")
