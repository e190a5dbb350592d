"""Endpoints of SageMaker with several models, which are loaded and unloaded as requests for them come.

SageMaker unpacks a model at `NAME/model` in the folder of models before it has it loaded. Source: Amazon SageMaker's
guide for developers, "Custom containers contract for multi-model endpoints".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from geartrain.apis.bodies import decode
from geartrain.apis.rows import INVOCATIONS
from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.service.models import information
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment
from geartrain.transport.bodies.exchange import Contract, by_body
from geartrain.transport.bodies.routes import BodiesApi
from geartrain.transport.routing import GET, POST, Params, Route
from geartrain.transport.runs import Request, by_task
from geartrain.transport.wire.exchange import JSON, Answer, Decision, Head

_PAGE: Final = 1000  # models in one answer
_MOST_BODY: Final = 65_536  # bytes of a request to load
_NO_MEMORY: Final = re.compile(r"MemoryError|OutOfMemory|[Oo]ut of memory")
_DELETE: Final = ("DELETE",)


class MultiModelEndpoints:
    """The models of one server, by the names that SageMaker gives them."""

    def __init__(self, catalogue: Catalogue, api: BodiesApi, max_body: int) -> None:
        self._catalogue = catalogue
        self._api = api
        self._max_body = max_body
        self._urls: dict[str, str] = {}  # of the models that are loaded

    def routes(self) -> Iterator[Route]:
        """`/models`, `/models/NAME` and `/models/NAME/invoke`."""
        api = self._api
        invoke = by_body(Contract(api, INVOCATIONS, self._find), self._max_body)
        yield Route(POST, "/models/{model}/invoke", invoke, api, "predict")
        yield Route(POST, "/models", by_task(self._load, api, _MOST_BODY), api, "admin", subject="all")
        yield Route(_DELETE, "/models/{model}", by_task(self._unload, api, _MOST_BODY), api, "admin")
        yield Route(GET, "/models", self._list, api, "read", subject="all")
        yield Route(GET, "/models/{model}", self._describe, api, "read")

    def _find(self, _head: Head, params: Params) -> Deployment:
        return self._catalogue.find(params["model"])

    async def _load(self, request: Request) -> Answer:
        asked = decode(bytes(request.body))
        name, url = (asked.get("model_name"), asked.get("url")) if isinstance(asked, dict) else (None, None)
        if not isinstance(name, str) or not name:
            raise _wrong("model_name", "it is the name of a model")
        if not isinstance(url, str) or not url.rstrip("/").endswith((f"/{name}", f"/{name}/model")):
            raise _wrong("url", f"it is a folder of this server that ends with /{name}/model")
        if self._is_loaded(name):
            raise GeartrainError(Code.CONFLICT, f"The model '{name}' is loaded already.")
        try:
            await self._catalogue.control.load(name)
        except GeartrainError as error:
            if error.code is Code.LOAD_FAILED and _NO_MEMORY.search(error.message):
                # SageMaker unloads models without requests, and tries again.
                body = msgspec.json.encode({"error": error.message})
                return Answer(HTTPStatus.INSUFFICIENT_STORAGE, (body,), JSON, error=error.message)
            raise
        loaded = {entry.name for entry in self._catalogue.index(ready=True)}  # others may have gone by other paths
        self._urls = {each: place for each, place in self._urls.items() if each in loaded} | {name: url}
        return _answer({"modelName": name, "modelUrl": url})

    async def _unload(self, request: Request) -> Answer:
        name = request.params["model"]
        if not self._is_loaded(name):
            raise _unknown(name)
        await self._catalogue.control.unload(name)
        self._urls.pop(name, None)
        return _answer({"modelName": name})

    def _list(self, head: Head, _params: Params) -> Decision:
        token = parse_qs(head.query.decode("latin-1")).get("next_page_token", [""])[0]
        names = sorted({entry.name for entry in self._catalogue.index(ready=True) if entry.name > token})
        body: dict[str, Any] = {"models": [self._described(name) for name in names[:_PAGE]]}
        if len(names) > _PAGE:
            body["nextPageToken"] = names[_PAGE - 1]
        return _answer(body)

    def _describe(self, _head: Head, params: Params) -> Decision:
        name = params["model"]
        if not self._is_loaded(name):
            raise _unknown(name)
        return _answer(self._described(name))

    def _is_loaded(self, name: str) -> bool:
        return information.is_ready(self._catalogue, name)

    def _described(self, name: str) -> dict[str, str]:
        return {"modelName": name, "modelUrl": self._urls.get(name, "")}


def _answer(value: Any) -> Answer:
    return Answer(HTTPStatus.OK, (msgspec.json.encode(value),))


def _unknown(name: str) -> GeartrainError:
    return GeartrainError(Code.NOT_FOUND, f"The model '{name}' is not loaded.")


def _wrong(place: str, text: str) -> GeartrainError:
    fault = FieldError(("body", place), text, "value_error")
    return GeartrainError(Code.INVALID_INPUT, f"{place}: {text}", fields=(fault,))
