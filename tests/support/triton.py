"""Clients of the Open Inference Protocol, let in as the mode wants it: gRPC's channels, and Triton's clients.

`kind` is the class of a client, blocking or of asyncio.
"""

from __future__ import annotations

from typing import Any

import grpc
from tritonclient.http import InferenceServerClientPlugin

from tests.support import modes


def grpc_channel(address: str, options: list[tuple[str, Any]] | None = None) -> grpc.Channel:
    given = modes.current().credentials
    if given is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, _grpc_credentials(given), options=options)


def triton_grpc(kind: Any, address: str) -> Any:
    """Triton's client of gRPC."""
    given = modes.current().credentials
    return kind(address) if given is None else kind(address, creds=_grpc_credentials(given))


def triton_http(kind: Any, url: str) -> Any:
    """Triton's client of HTTP that is built on gevent."""
    given = modes.current().credentials
    return _with_headers(kind, url, {} if given is None else {"ssl_options": {"ca_certs": str(given.authority)}})


def triton_http_aio(kind: Any, url: str) -> Any:
    """Triton's client of HTTP that is built on aiohttp."""
    given = modes.current().credentials
    return _with_headers(kind, url, {} if given is None else {"ssl_context": given.trust})


def _grpc_credentials(given: modes.Credentials) -> grpc.ChannelCredentials:
    tls = grpc.ssl_channel_credentials(given.authority.read_bytes())
    return grpc.composite_channel_credentials(tls, grpc.access_token_call_credentials(given.key))


def _with_headers(kind: Any, url: str, options: dict[str, Any]) -> Any:
    scheme, _, address = url.partition("://")
    client = kind(address, ssl=scheme == "https", **options)
    client.register_plugin(_Headers())
    return client


class _Headers(InferenceServerClientPlugin):  # type: ignore[misc]  # it has no types
    """Adds to each request what lets the client in."""

    def __call__(self, request: Any) -> None:
        request.headers.update(modes.current().headers)
