"""`POST /invoke`: a body of any type to a model, and its answer as it goes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from geartrain.domain.errors import Code, GeartrainError
from geartrain.service.models.catalogue import Catalogue, normal
from geartrain.service.models.deployment import Deployment
from geartrain.transport.bodies.api import INVOKE
from geartrain.transport.routing import POST, Begin, Params, Route
from geartrain.transport.wire.exchange import Decision, Head

if TYPE_CHECKING:
    from geartrain.transport.bodies.exchange import Find


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
