"""Files of a prediction: their names, their limits, their failures. Each failure is a sentence for the client."""

from __future__ import annotations

import os
import posixpath
import re
import stat
from functools import cache
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import unquote_plus, urlsplit

if TYPE_CHECKING:
    import mimetypes

    from geartrain.domain.predictions.calls import FileRef

_TOGETHER = 10  # times the limit of one file: a request of ten thousand URLs must not fill the disk
_LONGEST_NAME = 200  # bytes; a random prefix is added and file systems end at 255
_LONGEST_EXTENSION = 40  # bytes; what is longer is no extension
_LONGEST_SHOWN = 200  # characters of a URL in a sentence

_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(?:;[\w.+=-]+)*", re.ASCII)
_UNKNOWN = "application/octet-stream"
_UNSAFE = re.compile(r"[\x00-\x1f\x7f/]")

# Types that Python's own table lacks, or does not know by this name in every version.
_EXTENSIONS = {
    "application/x-npy": ".npy",
    "application/yaml": ".yaml",
    "audio/flac": ".flac",
    "audio/m4a": ".m4a",
    "audio/mp4": ".m4a",
    "audio/ogg": ".ogg",
    "audio/wav": ".wav",
    "audio/wave": ".wav",
    "audio/webm": ".webm",
    "audio/x-m4a": ".m4a",
    "image/avif": ".avif",
    "image/heic": ".heic",
    "image/jpg": ".jpg",
    "image/webp": ".webp",
    "model/gltf-binary": ".glb",
    "model/stl": ".stl",
    "text/markdown": ".md",
    "video/x-matroska": ".mkv",
}


class DownloadError(Exception):
    """A file of the input could not be fetched: the prediction fails."""


class OutputFileError(Exception):
    """A file that the model returned could not be read or delivered: the prediction fails."""


def innermost(error: BaseException) -> str:
    """The text of the operating system's error if one lies beneath, for it says more than what is wrapped around it."""
    beneath: BaseException | None = error
    while beneath is not None:
        if isinstance(beneath, ConnectionError) and beneath.errno:
            return os.strerror(beneath.errno)
        beneath = beneath.__cause__ or beneath.__context__
    return str(error) or type(error).__name__


class Allowance:
    """Counts the decoded bytes of one prediction's input files: each against `each`, all against ten times that."""

    def __init__(self, each: int) -> None:
        self.each = each
        self._left = each * _TOGETHER

    def foresee(self, size: int) -> None:
        """Refuse a file that announces `size` bytes, before any of them is read.

        Raises DownloadError: it is too large.
        """
        if size > self.each:
            raise self.too_large()

    def too_large(self) -> DownloadError:
        """The error of a file that is larger than `each`."""
        return DownloadError(f"the file is larger than the limit of {size_text(self.each)}")

    def take(self, size: int, more: int) -> int:
        """Add `more` bytes to a file that has `size`; returns its new size.

        Raises DownloadError: the file, or all files together, are too large.
        """
        size += more
        self.foresee(size)
        self._left -= more
        if self._left < 0:
            limit = size_text(self.each * _TOGETHER)
            raise DownloadError(f"the files of this prediction are together larger than the limit of {limit}")
        return size


def size_text(size: int) -> str:
    """A number of bytes for a person: `100 MiB`, `1.5 KiB`, `12 bytes`."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{round(size / (1 << power), 2):g} {unit}"
    return f"{size} bytes"


def name_from_url(url: str) -> str:
    """The last part of an http(s) URL's path, percent-decoded and safe as the end of a file name; may be empty."""
    try:
        path = urlsplit(url).path
    except ValueError:
        return ""
    return clip_name(_UNSAFE.sub("_", unquote_plus(posixpath.basename(path))))


def name_from_file_name(file_name: str) -> str:
    """The last part of a file name that a client gave, safe as the end of a file name; may be empty."""
    base = file_name.replace("\\", "/").rpartition("/")[2]  # some browsers send the whole path
    return clip_name(_UNSAFE.sub("_", base))


def name_from_media_type(media_type: str) -> str:
    """`file` with the extension of the media type, or plain `file` when the type is unknown."""
    media_type = media_type.lower()
    return "file" + (_EXTENSIONS.get(media_type) or _known_types().guess_extension(media_type, strict=False) or "")


def clip_name(name: str) -> str:
    """A name of at most 200 bytes in UTF-8: a longer one is cut as `name~.ext`."""
    encoded = name.encode()
    if len(encoded) <= _LONGEST_NAME:
        return name
    extension = posixpath.splitext(name)[1]
    if len(extension.encode()) > _LONGEST_EXTENSION:
        extension = ""
    kept = encoded[: _LONGEST_NAME - len(extension.encode()) - 1].decode(errors="ignore")
    return f"{kept}~{extension}"


def shown_url(url: str) -> str:
    """An http(s) URL for a sentence: without user, password, query and fragment, which may be secret, and not long."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the URL"
    return clip_text(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}", _LONGEST_SHOWN)


def clip_text(text: str, length: int) -> str:
    """`text`, cut to `length` characters with an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"


@cache
def _known_types() -> mimetypes.MimeTypes:
    import mimetypes  # late: most models take and give no file

    return mimetypes.MimeTypes()  # Python's table alone, so that every machine gives the same names


def open_output(file: FileRef) -> BinaryIO:
    """Open a file that a model returned, for reading.

    Raises OutputFileError: it does not exist, is not a regular file, or may not be read.
    """
    try:
        opened = open(file.filename, "rb", opener=_opener)  # noqa: SIM115 - the caller closes it
    except FileNotFoundError as error:
        raise OutputFileError(f"The model returned the file {file.filename!r}, which does not exist.") from error
    except OSError as error:
        reason = f"which cannot be read: {error.strerror}"
        raise OutputFileError(f"The model returned the file {file.filename!r}, {reason}.") from error
    if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        opened.close()
        raise OutputFileError(f"The model returned {file.filename!r}, which is not a regular file.")
    return opened


def media_type(file: FileRef) -> str:
    """The media type of an output file, checked to be one, for it goes into URLs and headers as it is."""
    return file.mime_type if _MEDIA_TYPE.fullmatch(file.mime_type) else _UNKNOWN


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a named pipe without a writer must not hold the thread
