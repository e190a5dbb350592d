"""The files of the page, in memory, ready to be sent."""

from __future__ import annotations

import functools
import gzip
import hashlib
from pathlib import Path
from typing import Final

import msgspec

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
