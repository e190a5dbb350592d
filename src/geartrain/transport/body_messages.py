"""Messages between a server and the process that reads large bodies for it.

A message is its length in 8 bytes, then msgpack; large values go beside it, in memory that both sides map.
"""

from __future__ import annotations

import mmap
import os
import socket
import tempfile
from collections.abc import Sequence
from io import FileIO, RawIOBase
from typing import Any, Final

import msgspec

from geartrain.domain.errors import Code, FieldError
from geartrain.domain.tensors.tensor import Buffer

_LENGTH: Final = 8  # bytes in front of a message
MARK: Final = "\0"  # in an input, before the number of the long text that it stands for; no URL begins so
PIECE: Final = 1 << 20  # bytes that are copied at a time


class SentTensor(msgspec.Struct, frozen=True):
    """A tensor of `size` bytes, which are beside the message if somebody has to look at them."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    size: int
    is_there: bool = True


class Job(msgspec.Struct, frozen=True):
    """One body to be read.

    `signature` as JSON; `max_elements` is 0 for a body that is known to have few; `tensors` of an infer request whose
    JSON has been read; `max_file`: the bytes of a file in a `data:` URL, beyond which its payload is not looked at.
    Of what a run has given: `sizes` of its pieces, and name, version and id of the model and the request `asked`.
    """

    kind: str
    signature: bytes
    max_elements: int
    size: int
    tensors: tuple[SentTensor, ...] = ()
    max_file: int = 0
    sizes: tuple[int, ...] = ()
    asked: tuple[str, str, str] = ("", "", "")


class Result(msgspec.Struct, frozen=True):
    """Result of reading a body.

    Attributes:
        head: the request without its input, as JSON.
        place: offset and bytes of the input in the body, if it is not beside the message.
        sizes: of the parts beside the message, -1 for an absent one.
        error: code, message and fields, if the body is refused.
        errors: faults of the input.
        values: the input as JSON if it has files, its long texts replaced by tokens.
    """

    head: bytes = b""
    place: tuple[int, int] = (0, 0)
    sizes: tuple[int, ...] = ()
    error: tuple[Code, str, tuple[FieldError, ...]] | None = None
    errors: tuple[FieldError, ...] = ()
    values: bytes | None = None


def as_text(body: Buffer) -> bytes | bytearray:
    """Return a form that can be searched as a text; `body` itself unless that is a view."""
    return bytes(body) if isinstance(body, memoryview) else body


def send(channel: socket.socket, message: Any, parts: Sequence[Buffer]) -> None:
    """Send a message, and the parts beside it."""
    text = msgspec.msgpack.encode(message)
    with _open() as file:
        for part in parts:
            view = memoryview(part).cast("B")
            for begin in range(0, len(view), PIECE):
                _write(file, view[begin : begin + PIECE])
        socket.send_fds(channel, [len(text).to_bytes(_LENGTH, "little")], [file.fileno()])
    channel.sendall(text)


def _open() -> RawIOBase:
    if hasattr(os, "memfd_create"):
        return FileIO(os.memfd_create("geartrain-body", os.MFD_CLOEXEC), "r+b")
    return tempfile.TemporaryFile(buffering=0)  # pragma: no cover - Linux has the former


def _write(file: RawIOBase, piece: memoryview) -> None:
    while piece:
        piece = piece[file.write(piece) or 0 :]


def receive(channel: socket.socket) -> tuple[bytes, memoryview] | None:
    """Return the next message and what is beside it; None at the end."""
    length, files, _, _ = socket.recv_fds(channel, _LENGTH, 1)
    if len(length) < _LENGTH:
        return None
    try:
        size = os.fstat(files[0]).st_size
        memory = memoryview(mmap.mmap(files[0], size, prot=mmap.PROT_READ) if size else b"")
    finally:
        os.close(files[0])
    text = bytearray()
    left = int.from_bytes(length, "little")
    while left:
        piece = channel.recv(min(left, PIECE))
        if not piece:
            return None
        text += piece
        left -= len(piece)
    return bytes(text), memory
