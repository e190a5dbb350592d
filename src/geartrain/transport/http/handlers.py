"""The express lane: how a request that needs no ASGI call is admitted and answered. See `connection`."""

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

EXPRESS_LIMIT: Final = 65_536  # bytes of a body: what is larger may come in pieces and wants flow control
JSON: Final = ((b"content-type", b"application/json"),)


class Answer(msgspec.Struct, frozen=True):
    """A whole answer, whose body may be in parts. Its length is added to the headers by whoever sends it."""

    status: HTTPStatus
    parts: Sequence[Buffer]
    headers: tuple[tuple[bytes, bytes], ...] = JSON


class Call(Protocol):
    """One request, from the end of its head to its answer."""

    def admit(self, body: bytes) -> Prediction:
        """Start the prediction that the request asks for; raises `GeartrainError`."""

    def answer(self) -> Answer:
        """Return the answer; the prediction is over."""

    def refuse(self, error: GeartrainError) -> Answer:
        """Return the answer to a request that could not be admitted."""

    def abandon(self) -> None:
        """The client has hung up."""


NewCall = Callable[[], Call]


class Lane(Protocol):
    """One endpoint that can do without ASGI."""

    def enter(self, url: bytes, headers: Headers) -> NewCall | None:
        """Take a POST whose body is announced and has at most `EXPRESS_LIMIT` bytes, or leave it to the ASGI road.

        What it gives serves all requests of exactly that head, whatever becomes of the model meanwhile.
        """
