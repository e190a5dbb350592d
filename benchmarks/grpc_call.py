"""One call of gRPC with the standard library alone: asks a server whether it lives."""

from __future__ import annotations

import socket
import time

_METHOD = b"/inference.GRPCInferenceService/ServerLive"
_FIELDS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", _METHOD),
    (b":authority", b"localhost"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)
_LIVE = b"\0\0\0\0\x02\x08\x01"  # the message with `live`, in its frame of gRPC
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4
_FRAME = 9  # bytes in front of the payload of a frame


def wait_until_live(port: int, seconds: float) -> None:
    """Ask until the server answers; raises RuntimeError if it does not do so in time, or answers something else."""
    until = time.monotonic() + seconds
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
                _ask(connection)
                return
        except ConnectionError:
            if time.monotonic() > until:
                raise RuntimeError("nobody answers on the port of gRPC") from None
            time.sleep(0.002)


def _ask(connection: socket.socket) -> None:
    """Send the call and read the answer to its end."""
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in _FIELDS)
    connection.sendall(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + _frame(_SETTINGS, 0, 0, b"")
        + _frame(_HEADERS, _END_HEADERS, 1, block)
        + _frame(_DATA, _END_STREAM, 1, bytes(5))
    )
    with connection.makefile("rb") as stream:
        content, is_last = b"", False
        while not is_last:
            head = stream.read(_FRAME)
            if len(head) < _FRAME:
                raise RuntimeError("the connection of gRPC has ended without an answer")
            payload = stream.read(int.from_bytes(head[:3], "big"))
            if head[5:] == b"\0\0\0\1":
                content += payload if head[3] == _DATA else b""
                is_last = head[3] in {_DATA, _HEADERS} and bool(head[4] & _END_STREAM)
    if content != _LIVE:
        raise RuntimeError(f"gRPC answered {content!r}")


def _text(value: bytes) -> bytes:
    """A string of HPACK that is shorter than 127 bytes."""
    return bytes((len(value),)) + value


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
