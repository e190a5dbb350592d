"""The webhook that a client has asked for."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

WebhookEvent = Literal["start", "output", "logs", "completed"]

EVERY_EVENT: Final[frozenset[WebhookEvent]] = frozenset({"start", "output", "logs", "completed"})


class Webhook(msgspec.Struct, frozen=True):
    """A receiver: its URL, the events it is told of, and the headers with the ids of the request."""

    url: str
    events: frozenset[WebhookEvent] = EVERY_EVENT
    trace: tuple[tuple[str, str], ...] = ()
