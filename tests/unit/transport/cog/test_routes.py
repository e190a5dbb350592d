"""The pages of models below `/models`: those that are remembered."""

from __future__ import annotations

import gc
from typing import Any, cast

import msgspec
import pytest

from geartrain.service.models.catalogue import Catalogue
from geartrain.transport.cog.api import CogOptions
from geartrain.transport.cog.routes import MAX_PAGES, cog_routes
from geartrain.transport.cog.system import SystemEndpoints
from geartrain.transport.large_bodies import LargeBodies
from geartrain.transport.wire.exchange import Answer, Head

COUNT = 2 * MAX_PAGES + 10


class Repository:
    """Models of which none is loaded."""

    def names(self) -> list[str]:
        return [f"m{number}" for number in range(COUNT)]

    def note(self, _name: str) -> None:
        pass

    def memory(self, _name: str) -> int:
        return 0


@pytest.fixture
def bodies() -> Any:
    bodies = LargeBodies()
    yield bodies
    bodies.close()


def test_pages_that_are_remembered_are_bounded(bodies: LargeBodies) -> None:
    """Each may hold an OpenAPI document. The answers do not depend on what is remembered."""
    catalogue = Catalogue(cast("Any", Repository()))
    catalogue.spawn([])
    routes = cog_routes(catalogue, None, CogOptions(), bodies=bodies)
    (route,) = [route for route in routes if route.path == "/models/{model}"]
    before = pages()
    for number, name in enumerate([*Repository().names(), "m0"]):
        answer = route.begin(Head("GET", f"/models/{name}".encode(), b"", ()), {"model": name})
        assert isinstance(answer, Answer)
        document = msgspec.json.decode(b"".join(map(bytes, answer.parts)))
        assert document["openapi_url"] == f"/models/{name}/openapi.json"
        if number % 64 == 0 or number == MAX_PAGES:
            assert 0 < pages() - before <= MAX_PAGES


def pages() -> int:
    return sum(type(each) is SystemEndpoints for each in gc.get_objects())
