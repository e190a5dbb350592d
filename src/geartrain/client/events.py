"""Server-sent events, read as their bytes come."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import msgspec

from geartrain.client.errors import ClientError


class Event(NamedTuple):
    """One event: `start`, `log`, `metric`, `output`, `completed` or `error`, with its data (docs/predictions.md)."""

    name: str
    data: dict[str, Any]


class EventParser:
    """Cuts a stream into its events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Event]:
        """Take some bytes; return the events that are whole. Raises `ClientError`."""
        *whole, self._rest = (self._rest + data).split(b"\n\n")
        return [event for block in whole if (event := _event(block)) is not None]


class EventQueue:
    """The events of one stream that have come and are not read yet."""

    def __init__(self) -> None:
        self._parser = EventParser()
        self._ready: deque[Event] = deque()
        self.completed: dict[str, Any] | None = None  # the data of the last event, once it has been read

    def feed(self, data: bytes) -> None:
        """Take some bytes. Raises `ClientError`."""
        self._ready += self._parser.feed(data)

    @property
    def needs_more(self) -> bool:
        """True if there is nothing to read, and something still to come."""
        return not self._ready and self.completed is None

    def pop(self) -> Event | None:
        """Return the next event, None after the last one. Raises `ClientError` for one that ends the stream early."""
        if not self._ready:
            return None
        event = self._ready.popleft()
        if event.name == "completed":
            self.completed = event.data
        elif event.name == "error":
            raise ClientError(str(event.data.get("error")))
        return event


def _event(block: bytes) -> Event | None:
    name, data = "message", []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"event":
            name = value.strip().decode()
        elif field == b"data":
            data.append(value.removeprefix(b" "))
    if not data:
        return None  # a comment keeps the connection alive
    try:
        return Event(name, msgspec.json.decode(b"\n".join(data), type=dict[str, Any]))
    except msgspec.DecodeError as error:
        raise ClientError(f"the stream has an event that cannot be read: {error}") from error
