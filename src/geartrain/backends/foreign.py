"""Kind of a file by its first bytes: for the error about a file of another kind."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PEEK: Final = 64  # bytes
_KINDS: Final = (
    (b"version https://git-lfs", "is only a pointer of Git LFS: fetch the file itself with `git lfs pull`"),
    (b"PK\x03\x04", "is a zip archive"),
    (b"\x89HDF\r\n\x1a\n", "is an HDF5 file, such as Keras writes"),
    (b"\x89PNG", "is a picture"),
    (b"\xff\xd8\xff", "is a picture"),
    (b"\x1f\x8b", "is compressed with gzip: unpack it first"),
    (b"BZh", "is compressed with bzip2: unpack it first"),
    (b"\xfd7zXZ", "is compressed with xz: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstandard: unpack it first"),
    (b"GGUF", "is a GGUF file, for llama.cpp"),
    (b"<!DOCTYPE", "is a web page: perhaps it was downloaded from a page about the file"),
    (b"<html", "is a web page: perhaps it was downloaded from a page about the file"),
    (b"{", "is JSON text"),
)
_PICKLES: Final = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))


def what_is(path: Path) -> str:
    """Return the predicate of a sentence that `path` is the subject of: "is a zip archive", "is empty".

    Returns "" for a file that shows nothing that we know.
    """
    if path.is_dir():
        return "is a folder"
    try:
        with path.open("rb") as file:
            head = file.read(_PEEK)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not head:
        return "is empty"
    if head.startswith(_PICKLES):
        return "is a pickle of Python"
    if head[4:8] == b"ftyp":
        return "is a video"
    if b'{"' in head[8:16] and head[4:8] == bytes(4):  # the length of the header in 8 bytes, and then JSON
        return "is a safetensors file: weights alone, without the model"
    known = next((what for magic, what in _KINDS if head.startswith(magic)), "")
    return known or ("is text" if _is_text(head) else "")


def _is_text(head: bytes) -> bool:
    return all(byte in b"\t\n\r" or byte >= ord(" ") for byte in head) and head.isascii()
