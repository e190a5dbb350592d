"""Everything that a server needs to be put under load, found out by asking it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from geartrain.bench.connection import Target, target_of
from geartrain.bench.streams import STREAM_PROTOCOLS, make_stream_work
from geartrain.bench.work import ModelPath, ProtocolName, Work, make_work
from geartrain.client import Client, ClientError
from geartrain.client.schema import signature_of
from geartrain.domain.signature.types import Signature

Choose = Callable[[Mapping[str, Any], Signature], list[dict[str, Any]]]
"""Returns the inputs to send, by the OpenAPI document of a model and its signature."""


class Prepared(NamedTuple):
    """A server, one of its models, and the requests for it."""

    target: Target
    model: str
    work: Work


class Way(NamedTuple):
    """Way to ask a server. `model` None: its only one; `verify`: see `Client`."""

    model: str | None = None
    protocol: ProtocolName = "cog"
    key: str | None = None
    verify: bool | str = True


def prepare(url: str, choose: Choose, way: Way) -> Prepared:
    """Ask a server what its model takes, and make the requests.

    Raises `ClientError`, `InputsError`, `ValueError`, `OSError`, and what `choose` raises.
    """
    target = target_of(url, key=way.key, verify=way.verify)
    with Client(url, key=way.key, verify=way.verify) as client:
        document = client.model(way.model).openapi()
        name = way.model or _only(client)
    signature = signature_of(document)
    if signature is None:
        raise ClientError(f"the model {name} has not been loaded yet")
    make = make_stream_work if way.protocol in STREAM_PROTOCOLS else make_work
    path = ModelPath(name, way.model is None)
    work = make(target, path, choose(document, signature), protocol=way.protocol, signature=signature)
    return Prepared(target, name, work)


def _only(client: Client) -> str:
    names = client.models()
    if len(names) != 1:
        raise ClientError(f"the server has several models; name one with --model: {', '.join(names)}")
    return names[0]
