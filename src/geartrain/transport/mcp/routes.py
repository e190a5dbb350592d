"""The path of MCP's Streamable HTTP transport.

The tool stands in the body, so a key is checked for its model where the body is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from geartrain.domain.errors import GeartrainError
from geartrain.service.models.catalogue import Catalogue
from geartrain.transport.large_bodies import LargeBodies
from geartrain.transport.routing import POST, Params, Route
from geartrain.transport.wire.exchange import Answer, Decision, Head

if TYPE_CHECKING:
    from geartrain.transport.mcp.exchange import Endpoint


class LateApi:
    """The answers to requests that are refused. See `Api`. Their module is imported with the first one."""

    name = "mcp"
    shows_logs = False

    def refuse(self, error: GeartrainError) -> Answer:
        """Return the answer to a request that failed."""
        from geartrain.transport.mcp.exchange import refuse

        return refuse(error)

    def not_found(self) -> Answer:
        """Return the answer for an unknown path."""
        from geartrain.transport.mcp.exchange import not_found

        return not_found()

    def wrong_method(self, allowed: str) -> Answer:
        """Return the answer to another method than those `allowed`."""
        from geartrain.transport.mcp.exchange import wrong_method

        return wrong_method(allowed)


API: Final = LateApi()


def mcp_routes(catalogue: Catalogue, bodies: LargeBodies, max_body: int, *, quiet: float) -> Iterator[Route]:
    """Yield the route of MCP. Its handler is imported with the first request: most servers get none.

    `quiet`: the seconds without a message after which a comment keeps a connection alive.
    """

    def begin(head: Head, params: Params) -> Decision:  # noqa: ARG001 - as of `Begin`
        from geartrain.transport.mcp.exchange import Endpoint

        if not endpoints:
            endpoints.append(Endpoint(catalogue, bodies, max_body, refuse_size=API.refuse, quiet=quiet))
        return endpoints[0].begin(head)

    endpoints: list[Endpoint] = []
    yield Route(POST, "/mcp", begin, API, "predict", subject="none")
