"""`GET /v1/models` and `/v1/models/{id}`: the models that a client may ask.

A client of Anthropic's API gets its form, and only models that it can send messages to.
"""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from geartrain.apis.anthropic.models import describe_model, encode_model, encode_page, read_page
from geartrain.apis.openai.errors import unknown_model
from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.lifecycle import Health
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment
from geartrain.transport.openai.asking import find
from geartrain.transport.wire.exchange import Answer, Head

_OK: Final = HTTPStatus.OK
_MAX_QUERY: Final = 4096  # bytes
_encode = msgspec.json.Encoder().encode


def list_all(catalogue: Catalogue, head: Head, *, is_anthropic: bool) -> Answer:
    """Return the models that are ready, of those that the client's key is for.

    Raises `OpenAIError` for a wrong page.
    """
    seen = [one for one in _ready(catalogue) if _may_see(head, one[1].name)]
    if is_anthropic:
        page = read_page(parse_qs(head.query[:_MAX_QUERY].decode("latin-1")))
        asked = [describe_model(name, _loaded_at(model)) for name, model in seen if _takes_messages(model)]
        return Answer(_OK, (encode_page(asked, page),))
    listed = [describe(*one) for one in seen]
    return Answer(_OK, (_encode({"object": "list", "data": listed}),))


def find_model(catalogue: Catalogue, head: Head, name: str, *, is_anthropic: bool) -> Answer:
    """Return one model. Raises `NOT_FOUND`."""
    deployment = find(catalogue, head, name)
    deployment.workers.check_ready()
    if not is_anthropic:
        return Answer(_OK, (_encode(describe(name, deployment)),))
    if not _takes_messages(deployment):
        raise unknown_model(name)
    return Answer(_OK, (encode_model(name, _loaded_at(deployment)),))


def _ready(catalogue: Catalogue) -> Iterator[tuple[str, Deployment]]:
    for name in catalogue.names():
        entry = catalogue.entry(name)
        if entry.has_default and _is_ready(entry.deployment()):
            yield name, entry.deployment()
            for alias in entry.deployment().settings.openai.aliases:
                yield alias, entry.deployment()
        if len(entry.available) > 1:
            for number, deployment in entry.available.items():
                if _is_ready(deployment):
                    yield f"{name}@{number}", deployment


def describe(name: str, deployment: Deployment) -> dict[str, Any]:
    """Return a model as OpenAI's API has it, with the endpoints that its signature fits."""
    return {
        "id": name,
        "object": "model",
        "created": int(_loaded_at(deployment)),
        "owned_by": "geartrain",
        "endpoints": deployment.openai.view.endpoints,
    }


def _takes_messages(deployment: Deployment) -> bool:
    return "messages" in deployment.openai.view.endpoints


def _loaded_at(deployment: Deployment) -> float:
    setup = deployment.workers.setup
    return setup.completed_at or setup.started_at


def _is_ready(deployment: Deployment) -> bool:
    return deployment.workers.health is Health.READY


def _may_see(head: Head, name: str) -> bool:
    try:
        head.notes.check_model(name)
    except GeartrainError:
        return False
    return True
