"""Bodies in and JSON out, straight on ASGI: what every prediction passes through."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from geartrain.domain.errors import Code, GeartrainError
from geartrain.transport.http.handlers import Answer

if TYPE_CHECKING:
    from starlette.types import Receive, Send

INTERNAL_ERROR: Final = b'{"error":"Internal server error","status":"failed"}'
_JSON: Final = (b"content-type", b"application/json")


class ClientGoneError(Exception):
    """The client disconnected before its request was whole."""


async def read_body(receive: Receive, announced: int, limit: int) -> bytes | bytearray:
    """Return the request's body; raise `TOO_LARGE` beyond `limit` bytes, `ClientGoneError` if it never comes whole.

    `announced` is its Content-Length, 0 if unknown: what is too large is refused before it is sent.
    """
    if announced > limit:
        raise too_large(limit)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(body) > limit:
            raise too_large(limit)
        return body
    whole = bytearray(body)  # it grows in place: pieces that are joined in the end would need twice the memory
    while message.get("more_body", False):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        whole += message.get("body", b"")
        if len(whole) > limit:
            raise too_large(limit)
    return whole


def too_large(limit: int) -> GeartrainError:
    """Say that a body is larger than `limit` bytes."""
    msg = f"The request body is larger than the limit of {limit} bytes. The server's --max-body-size sets it."
    return GeartrainError(Code.TOO_LARGE, msg)


async def send_answer(send: Send, answer: Answer) -> None:
    """Send a whole answer."""
    parts = answer.parts
    headers = (*answer.headers, (b"content-length", b"%d" % sum(map(len, parts))))
    await send({"type": "http.response.start", "status": int(answer.status), "headers": headers})
    for left, part in zip(range(len(parts) - 1, -1, -1), parts, strict=True):
        await send({"type": "http.response.body", "body": part, "more_body": left > 0})


async def send_json(
    send: Send, status: HTTPStatus | int, body: bytes, *, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    """Send a whole answer."""
    await send_parts(send, status, (body,), headers=headers)


async def send_parts(
    send: Send, status: HTTPStatus | int, parts: Sequence[bytes], *, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    """Send a whole answer whose body is in parts, some of them large."""
    await send_answer(send, Answer(HTTPStatus(status), parts, (_JSON, *headers)))
