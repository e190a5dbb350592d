"""The endpoints of the Open Inference Protocol that change what a server has: its repository, its shared memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

from geartrain.apis import open_inference_info
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.http.handlers import Answer
from geartrain.transport.http.wire import read_body

if TYPE_CHECKING:
    from starlette.types import Receive, Scope

EMPTY: Final = Answer(HTTPStatus.OK, (b"",), ())


class Request(NamedTuple):
    """What a handler may need."""

    scope: Scope
    receive: Receive
    name: str = ""  # of a model, or of a region of shared memory
    version: str = ""  # empty for the server's choice


class Route(NamedTuple):
    """What answers a request: its method, its handler, and what the path names."""

    method: str
    handler: Callable[[Request], Awaitable[Answer]]
    name: str = ""
    version: str = ""


def json_answer(body: bytes) -> Answer:
    """Return a body of JSON with status 200."""
    return Answer(HTTPStatus.OK, (body,))


class ControlEndpoints:
    """Everything below `v2/repository` and `v2/systemsharedmemory`."""

    def __init__(self, catalogue: Catalogue, regions: SharedRegions, *, max_body_bytes: int) -> None:
        self._catalogue = catalogue
        self._regions = regions
        self._max_body_bytes = max_body_bytes

    def find(self, steps: list[str]) -> Route | None:
        """Return the route of a path below `v2`, None if there is none."""
        match steps:
            case ["repository", "index"]:
                return Route("POST", self._index)
            case ["repository", repository, "index"] if repository:
                return Route("POST", self._index)
            case ["repository", "models", name, "load"] if name:
                return Route("POST", self._load, name)
            case ["repository", "models", name, "unload"] if name:
                return Route("POST", self._unload, name)
            case ["systemsharedmemory", "status"]:
                return Route("GET", self._region_status)
            case ["systemsharedmemory", "unregister"]:
                return Route("POST", self._unregister)
            case ["systemsharedmemory", "region", name, "status"] if name:
                return Route("GET", self._region_status, name)
            case ["systemsharedmemory", "region", name, "register"] if name:
                return Route("POST", self._register, name)
            case ["systemsharedmemory", "region", name, "unregister"] if name:
                return Route("POST", self._unregister, name)
        return None

    # the repository

    async def _index(self, request: Request) -> Answer:
        asked = open_inference_info.read_index(await self._body(request))
        return json_answer(open_inference_info.encode_list(self._catalogue.index(ready=bool(asked.ready))))

    async def _load(self, request: Request) -> Answer:
        open_inference_info.check_control(await self._body(request), unload=False)
        await self._catalogue.load(request.name)
        return EMPTY

    async def _unload(self, request: Request) -> Answer:
        open_inference_info.check_control(await self._body(request), unload=True)
        await self._catalogue.unload(request.name)
        return EMPTY

    # shared memory

    async def _region_status(self, request: Request) -> Answer:
        return json_answer(open_inference_info.encode_list(self._regions.status(request.name or None)))

    async def _register(self, request: Request) -> Answer:
        asked = open_inference_info.read_register(await self._body(request))
        self._regions.register(request.name, asked.key, offset=asked.offset or 0, byte_size=asked.byte_size)
        return EMPTY

    async def _unregister(self, request: Request) -> Answer:
        self._regions.unregister(request.name or None)
        return EMPTY

    async def _body(self, request: Request) -> bytes | bytearray:
        announced = dict(request.scope["headers"]).get(b"content-length", b"0")
        return await read_body(request.receive, int(announced), self._max_body_bytes)
