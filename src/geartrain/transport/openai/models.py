"""`GET /v1/models` and `/v1/models/{id}`: the models that a client may ask."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final

import msgspec

from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.lifecycle import Health
from geartrain.domain.signature.openai_view import openai_view
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment
from geartrain.transport.openai.asking import find
from geartrain.transport.wire.exchange import Answer, Head

_OK: Final = HTTPStatus.OK
_encode = msgspec.json.Encoder().encode


def list_all(catalogue: Catalogue, head: Head) -> Answer:
    """Return the models that are ready, of those that the client's key is for."""
    listed = [describe(*one) for one in _ready(catalogue) if _may_see(head, one[1].name)]
    return Answer(_OK, (_encode({"object": "list", "data": listed}),))


def find_model(catalogue: Catalogue, head: Head, name: str) -> Answer:
    """Return one model. Raises `NOT_FOUND`."""
    deployment = find(catalogue, head, name)
    deployment.workers.check_ready()
    return Answer(_OK, (_encode(describe(name, deployment)),))


def _ready(catalogue: Catalogue) -> Iterator[tuple[str, Deployment]]:
    for name in catalogue.names():
        entry = catalogue.entry(name)
        if entry.has_default and _is_ready(entry.deployment()):
            yield name, entry.deployment()
        if len(entry.available) > 1:
            for number, deployment in entry.available.items():
                if _is_ready(deployment):
                    yield f"{name}@{number}", deployment


def describe(name: str, deployment: Deployment) -> dict[str, Any]:
    """Return a model as OpenAI's API has it, with the endpoints that its signature fits."""
    setup = deployment.workers.setup
    return {
        "id": name,
        "object": "model",
        "created": int(setup.completed_at or setup.started_at),
        "owned_by": "geartrain",
        "endpoints": openai_view(deployment.interface.signature).endpoints,
    }


def _is_ready(deployment: Deployment) -> bool:
    return deployment.workers.health is Health.READY


def _may_see(head: Head, name: str) -> bool:
    try:
        head.notes.check_model(name)
    except GeartrainError:
        return False
    return True
