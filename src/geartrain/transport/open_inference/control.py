"""The endpoints of the Open Inference Protocol about what a server has: its repository, its shared memory."""

from __future__ import annotations

from geartrain.apis import open_inference_info
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.open_inference.api import EMPTY, json_answer
from geartrain.transport.routing import Params
from geartrain.transport.tasks import Request
from geartrain.transport.wire.exchange import Answer, Head


class RepositoryEndpoints:
    """Everything below `v2/repository`."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    async def index(self, request: Request) -> Answer:
        """`POST v2/repository/index`."""
        asked = open_inference_info.read_index(bytes(request.body))
        return json_answer(open_inference_info.encode_list(self._catalogue.index(ready=bool(asked.ready))))

    async def load(self, request: Request) -> Answer:
        """`POST v2/repository/models/{name}/load`."""
        open_inference_info.check_control(bytes(request.body), unload=False)
        await self._catalogue.control.load(request.params["model"])
        return EMPTY

    async def unload(self, request: Request) -> Answer:
        """`POST v2/repository/models/{name}/unload`."""
        open_inference_info.check_control(bytes(request.body), unload=True)
        await self._catalogue.control.unload(request.params["model"])
        return EMPTY


class SharedMemoryEndpoints:
    """Everything below `v2/systemsharedmemory`. Without the name of a region they mean all of them."""

    def __init__(self, regions: SharedRegions) -> None:
        self._regions = regions

    def status(self, _head: Head, params: Params) -> Answer:
        """`GET v2/systemsharedmemory[/region/{name}]/status`; raises `GeartrainError`."""
        return json_answer(open_inference_info.encode_list(self._regions.status(params.get("region"))))

    async def register(self, request: Request) -> Answer:
        """`POST v2/systemsharedmemory/region/{name}/register`."""
        asked = open_inference_info.read_register(bytes(request.body))
        name, offset = request.params["region"], asked.offset or 0
        self._regions.register(name, asked.key, offset=offset, byte_size=asked.byte_size)
        return EMPTY

    async def unregister(self, request: Request) -> Answer:
        """`POST v2/systemsharedmemory[/region/{name}]/unregister`."""
        self._regions.unregister(request.params.get("region"))
        return EMPTY
