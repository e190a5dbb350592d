"""The files of an output: each is copied to a folder of its own, and a token stands for it in the JSON."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from geartrain.domain.predictions.calls import FileRef
from geartrain.worker.values.faults import OutputError

UNKNOWN = "application/octet-stream"

_TYPES = {
    "7z": "application/x-7z-compressed",
    "aac": "audio/aac",
    "avi": "video/x-msvideo",
    "avif": "image/avif",
    "bin": UNKNOWN,
    "bmp": "image/bmp",
    "bz2": "application/x-bzip2",
    "css": "text/css",
    "csv": "text/csv",
    "flac": "audio/flac",
    "gif": "image/gif",
    "glb": "model/gltf-binary",
    "gltf": "model/gltf+json",
    "gz": "application/gzip",
    "heic": "image/heic",
    "htm": "text/html",
    "html": "text/html",
    "ico": "image/vnd.microsoft.icon",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "js": "text/javascript",
    "json": "application/json",
    "jsonl": "application/jsonl",
    "m4a": "audio/mp4",
    "md": "text/markdown",
    "mid": "audio/midi",
    "mkv": "video/x-matroska",
    "mov": "video/quicktime",
    "mp3": "audio/mpeg",
    "mp4": "video/mp4",
    "mpeg": "video/mpeg",
    "obj": "model/obj",
    "oga": "audio/ogg",
    "ogg": "audio/ogg",
    "ogv": "video/ogg",
    "opus": "audio/ogg",
    "pdf": "application/pdf",
    "png": "image/png",
    "ply": "application/octet-stream",
    "srt": "application/x-subrip",
    "stl": "model/stl",
    "svg": "image/svg+xml",
    "tar": "application/x-tar",
    "tif": "image/tiff",
    "tiff": "image/tiff",
    "tsv": "text/tab-separated-values",
    "txt": "text/plain",
    "vtt": "text/vtt",
    "wav": "audio/wav",
    "weba": "audio/webm",
    "webm": "video/webm",
    "webp": "image/webp",
    "xml": "application/xml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    "zip": "application/zip",
    "zst": "application/zstd",
}


def mime_type_of(filename: str) -> str:
    """Return the media type for a file's name; for an extension that says nothing, `application/octet-stream`."""
    extension = filename.rpartition(".")[2].lower()
    known = _TYPES.get(extension)
    if known is not None:
        return known
    import mimetypes

    return mimetypes.guess_type(filename)[0] or UNKNOWN


_NAMELESS = "output.bin"
_BLOCK = 1 << 20


def is_file(value: object) -> bool:
    """Tell whether this is a path or an open file: what an output may have in place of a URL."""
    return isinstance(value, (os.PathLike, io.IOBase)) or (hasattr(value, "read") and hasattr(value, "close"))


class FileCollector:
    """The files of one output, in the order in which they were met."""

    def __init__(self, new_folder: Callable[[], Path], temporary_files_of: Callable[[Path], tuple[str, ...]]) -> None:
        self._new_folder = new_folder
        self._temporary_files_of = temporary_files_of
        self._files: list[FileRef] = []
        self._folders: list[Path] = []

    def add(self, value: Any) -> str:
        """Take a copy of a file; return the token that stands for it. Raises `OutputError`."""
        if isinstance(value, os.PathLike):
            return self._add_path(Path(os.fsdecode(value)))
        return self._add_stream(value)

    def discard(self) -> None:
        """Remove the copies made so far: they will not be reported."""
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def files(self) -> tuple[FileRef, ...]:
        """The files taken so far."""
        return tuple(self._files)

    def _add_path(self, path: Path) -> str:
        source = path.absolute()
        if not source.is_file():
            raise OutputError(f"is the path {source}, {_why_no_file(source)}")
        token, target = self._target(source.name)
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            raise OutputError(f"is the path {source}, which cannot be copied: {error.strerror}") from error
        return self._keep(token, target, self._temporary_files_of(source))

    def _add_stream(self, stream: Any) -> str:
        name = getattr(stream, "name", None)
        path = Path(name) if isinstance(name, str) else None
        closed = getattr(stream, "closed", False)
        if closed or not _is_readable(stream):
            if path is None or not path.is_file():
                raise OutputError(f"is a file that is {'closed' if closed else 'open for writing only'}")
            if not closed:
                stream.flush()
            return self._add_path(path)
        token, target = self._target((path.name if path is not None else "") or _NAMELESS)
        if _is_seekable(stream):
            stream.seek(0)  # a model that has just written it stands at its end
        with target.open("wb") as copy:
            while block := stream.read(_BLOCK):
                copy.write(block.encode() if isinstance(block, str) else block)
        return self._keep(token, target)

    def _target(self, name: str) -> tuple[str, Path]:
        """A token, and where the copy goes. Its name is one that can travel: what is no UTF-8 is replaced."""
        name = os.fsencode(name).decode(errors="replace")
        folder = self._new_folder()
        self._folders.append(folder)
        return f"geartrain-file-{os.urandom(16).hex()}", folder / name

    def _keep(self, token: str, target: Path, temporary_files: tuple[str, ...] = ()) -> str:
        self._files.append(
            FileRef(
                token,
                str(target.absolute()),
                mime_type_of(target.name),
                temporary_files=tuple(name for name in temporary_files if name.isprintable()),  # others are no UTF-8
            )
        )
        return token


def _is_readable(stream: Any) -> bool:
    readable = getattr(stream, "readable", None)
    return readable is None or readable()


def _is_seekable(stream: Any) -> bool:
    seekable = getattr(stream, "seekable", None)
    return seekable is not None and seekable()


def _why_no_file(path: Path) -> str:
    if path.is_dir():
        return "which is a folder; return its files, or an archive of it"
    return "which is no regular file" if path.exists() or path.is_symlink() else "and there is no such file"
