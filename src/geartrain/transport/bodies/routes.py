"""Endpoints whose bodies are the model's own: `POST /invoke`, and the answers to refused requests of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.service.models.catalogue import Catalogue, normal
from geartrain.service.models.deployment import Deployment
from geartrain.transport.errors import HTTP_STATUS, error_headers
from geartrain.transport.routing import POST, Begin, Params, Route
from geartrain.transport.wire.exchange import JSON, Answer, Decision, Head

if TYPE_CHECKING:
    from geartrain.transport.bodies.exchange import Find

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


def finder(catalogue: Catalogue) -> Find:
    """Create the look-up of the model that a path names, or else of the default one. It raises `GeartrainError`."""

    def find(_head: Head, params: Params) -> Deployment:
        name = params.get("model") or catalogue.default_model
        if name is None:
            raise GeartrainError(
                Code.NOT_FOUND, "This server has several models, and none of them is the default: name one."
            )
        return catalogue.find(name, normal(params.get("version", "")))

    return find


def invoke_routes(catalogue: Catalogue, max_body: int) -> list[Route]:
    """Return the paths of bodies that go to a model as they come.

    Their handler is imported with the first request: most servers get none.
    """

    @cache
    def handler() -> Begin:
        from geartrain.apis.bodies import PLAIN
        from geartrain.transport.bodies.exchange import Contract, by_body

        return by_body(Contract(INVOKE, PLAIN, finder(catalogue)), max_body)

    def begin(head: Head, params: Params) -> Decision:
        return handler()(head, params)

    paths = ("/invoke", "/models/{model}/invoke", "/models/{model}/versions/{version:version}/invoke")
    return [Route(POST, path, begin, INVOKE, "predict") for path in paths]
