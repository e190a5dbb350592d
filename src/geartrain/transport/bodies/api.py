"""Answers to refused requests of endpoints whose bodies are the model's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.transport.errors import HTTP_STATUS, error_headers
from geartrain.transport.wire.exchange import JSON, Answer

Fault = Callable[[HTTPStatus, str], Any]


def plain_fault(_status: HTTPStatus, text: str) -> Any:
    """Return an object with the member `error`."""
    return {"error": text}


class BodiesApi:
    """The refusals of one protocol. See `Api`."""

    shows_logs = False

    def __init__(
        self, name: str, *, statuses: Mapping[Code, HTTPStatus] | None = None, fault: Fault = plain_fault
    ) -> None:
        """`statuses`: those that differ from the usual ones. `fault` makes the value that is the body in JSON."""
        self.name = name
        self._statuses = {**HTTP_STATUS, **(statuses or {})}
        self._fault = fault

    def refuse(self, error: GeartrainError) -> Answer:
        """Return the answer to a request that failed."""
        status = self._statuses[error.code]
        body = msgspec.json.encode(self._fault(status, error.reason))
        return Answer(status, (body,), (*JSON, *error_headers(status, error)), error=error.reason)

    def not_found(self) -> Answer:
        """Return the answer where there is no such path."""
        body = msgspec.json.encode(self._fault(HTTPStatus.NOT_FOUND, "There is no such path."))
        return Answer(HTTPStatus.NOT_FOUND, (body,))

    def wrong_method(self, allowed: str) -> Answer:
        """Return the methods that the path takes."""
        status = HTTPStatus.METHOD_NOT_ALLOWED
        body = msgspec.json.encode(self._fault(status, f"Method not allowed; this path takes {allowed}."))
        return Answer(status, (body,), (*JSON, (b"allow", allowed.encode())))


INVOKE: Final = BodiesApi("invoke")
