"""Handlers of requests that need no ASGI call: how they are admitted and answered. See `connection`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from geartrain.domain.tensors.tensor import Buffer

if TYPE_CHECKING:
    from geartrain.domain.errors import GeartrainError
    from geartrain.domain.predictions.prediction import Prediction

Headers = list[tuple[bytes, bytes]]  # names in lower case

DIRECT_LIMIT: Final = 65_536  # bytes of a body: what is larger may come in pieces and wants flow control
JSON: Final = ((b"content-type", b"application/json"),)


class Answer(msgspec.Struct, frozen=True):
    """A whole answer, whose body may be in parts. The sender adds its length to the headers."""

    status: HTTPStatus
    parts: Sequence[Buffer]
    headers: tuple[tuple[bytes, bytes], ...] = JSON


class Exchange(Protocol):
    """One request, from the end of its head to its answer."""

    def admit(self, body: bytes) -> Prediction:
        """Start the prediction that the request asks for; raises `GeartrainError`."""

    def answer(self) -> Answer:
        """Return the answer; the prediction is over."""

    def refuse(self, error: GeartrainError) -> Answer:
        """Return the answer to a request that could not be admitted."""

    def abandon(self) -> None:
        """Note that the client has disconnected."""


NewExchange = Callable[[], Exchange]


class Handler(Protocol):
    """Handles the requests of one endpoint without ASGI."""

    def enter(self, url: bytes, headers: Headers) -> NewExchange | None:
        """Take a POST whose body is announced and has at most `DIRECT_LIMIT` bytes, or leave it to ASGI.

        The result serves all requests of exactly that head, also after a reload of the model.
        """
