"""`GET /docs/openapi.json`: what the page `/docs` shows, every protocol of every model of the server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from geartrain.apis import openapi
from geartrain.apis.reference import ModelPart, reference
from geartrain.authoring import __version__
from geartrain.domain.errors import GeartrainError
from geartrain.domain.signature.json_schema import JsonObject
from geartrain.domain.signature.types import Signature
from geartrain.service.models.admission import Interface
from geartrain.transport.cog.api import json_answer
from geartrain.transport.cog.system import path_prefix
from geartrain.transport.tasks import Request
from geartrain.transport.wire.exchange import Answer

if TYPE_CHECKING:
    from geartrain.service.models.catalogue import Catalogue
    from geartrain.service.models.trainings import Trainings


class ReferenceEndpoint:
    """The document of the whole server. A model whose signature is not known is left out, and named as missing."""

    def __init__(self, catalogue: Catalogue | None, trainings: Trainings | None, *, is_listed: bool) -> None:
        """`is_listed`: see `openapi.document`."""
        self._is_listed = is_listed
        self._catalogue = catalogue
        self._trainings = trainings

    async def answer(self, request: Request) -> Answer:
        """Answer at once, with what is loaded: a page of documentation loads no model."""
        found: dict[str, Interface] = {}
        missing = []
        names = [] if self._catalogue is None else self._catalogue.names()
        for name in names:
            interface = self._interface(name)
            if interface is None:
                missing.append(name)
            else:
                found[name] = interface
        training = await self._training()
        root = request.head.root
        return json_answer(await asyncio.to_thread(self._encode, found, missing, training=training, root=root))

    def _interface(self, name: str) -> Interface | None:
        try:
            return None if self._catalogue is None else self._catalogue.find(name).interface
        except GeartrainError:
            return None

    async def _training(self) -> Signature | None:
        try:
            return None if self._trainings is None else await self._trainings.signature()
        except GeartrainError:
            return None

    def _encode(
        self, found: dict[str, Interface], missing: list[str], *, training: Signature | None, root: str
    ) -> bytes:
        is_alone = len(found) + len(missing) <= 1
        parts = [
            ModelPart(
                name,
                "" if is_alone else path_prefix(name, ""),
                self._document(name, interface.signature, training if is_alone else None),
                interface.view,
            )
            for name, interface in found.items()
        ]
        if training is not None and not parts:
            name = "training" if self._trainings is None else self._trainings.ref.entry.name
            parts.append(ModelPart(name, "", self._document(name, None, training), None))
        document = reference(parts, version=__version__, missing=missing)
        if root:
            document["servers"] = [{"url": root}]
        return msgspec.json.encode(document)

    def _document(self, name: str, signature: Signature | None, training: Signature | None) -> JsonObject:
        is_listed = self._is_listed
        return openapi.document(signature, training=training, title=name, version=__version__, is_listed=is_listed)
