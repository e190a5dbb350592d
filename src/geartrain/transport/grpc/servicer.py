"""The calls with one message each way, but for inference: health, metadata, statistics, repository, shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from geartrain.apis.open_inference_info import SERVER, extensions
from geartrain.authoring import __version__
from geartrain.domain.errors import Code, GeartrainError
from geartrain.service.models import information
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.grpc import describe
from geartrain.transport.grpc import open_inference_pb2 as pb
from geartrain.transport.grpc.translate import read_version

SERVICE: Final = "inference.GRPCInferenceService"
_UNLOAD_PARAMETERS: Final = frozenset({"unload_dependents"})  # no model here depends on another


class Calls:
    """Each method answers the call of that name. They raise `GeartrainError`, which becomes the call's status."""

    def __init__(self, catalogue: Catalogue, regions: SharedRegions) -> None:
        self.catalogue = catalogue
        self.regions = regions

    # health

    def server_live(self, _: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        """Answer that the server is live."""
        return pb.ServerLiveResponse(live=True)

    def server_ready(self, _: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        """True if every model is ready."""
        return pb.ServerReadyResponse(ready=self.catalogue.readiness.is_ready)

    def model_ready(self, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        """True if one model is ready; an unknown model is not."""
        ready = information.is_ready(self.catalogue, request.name, read_version(request.version))
        return pb.ModelReadyResponse(ready=ready)

    # metadata

    def server_metadata(self, _: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        """Name the server, its version and its extensions."""
        names = extensions(shared_memory=self.regions.enabled)
        return pb.ServerMetadataResponse(name=SERVER, version=__version__, extensions=names)

    def model_metadata(self, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        """A model's inputs and outputs. Asked for one version, only that one is named."""
        return describe.metadata(*information.describe(self.catalogue, request.name, read_version(request.version)))

    def model_config(self, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        """Return the configuration of a model."""
        deployment, _ = information.describe(self.catalogue, request.name, read_version(request.version))
        return pb.ModelConfigResponse(config=describe.config(deployment))

    def model_statistics(self, request: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        """Return the statistics of one model, or of all."""
        try:
            found = information.statistics(self.catalogue, request.name, read_version(request.version))
        except GeartrainError as error:
            if error.code is not Code.NOT_FOUND:
                raise
            # same answers as other servers of the protocol, also over HTTP
            msg = f"requested model '{request.name}' is not available"
            msg += f" in version {request.version}" if request.version else ""
            raise GeartrainError(Code.INVALID_INPUT, msg) from error
        return pb.ModelStatisticsResponse(model_stats=map(describe.statistics, found))

    # the repository

    def repository_index(self, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        """List the models."""
        _check_repository(request.repository_name)
        entries = self.catalogue.index(ready=request.ready)
        return pb.RepositoryIndexResponse(models=map(describe.index_entry, entries))

    async def repository_model_load(self, request: pb.RepositoryModelLoadRequest) -> pb.RepositoryModelLoadResponse:
        """Load a model; the answer comes when it is ready."""
        _check_repository(request.repository_name)
        _check_parameters(request.parameters, frozenset(), "load")
        await self.catalogue.control.load(request.model_name)
        return pb.RepositoryModelLoadResponse()

    async def repository_model_unload(
        self, request: pb.RepositoryModelUnloadRequest
    ) -> pb.RepositoryModelUnloadResponse:
        """Take a model out of service."""
        _check_repository(request.repository_name)
        _check_parameters(request.parameters, _UNLOAD_PARAMETERS, "unload")
        await self.catalogue.control.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    # shared memory

    def system_shared_memory_status(
        self, request: pb.SystemSharedMemoryStatusRequest
    ) -> pb.SystemSharedMemoryStatusResponse:
        """List the regions."""
        response = pb.SystemSharedMemoryStatusResponse()
        for region in self.regions.status(request.name or None):
            status = response.regions[region.name]
            status.name, status.key = region.name, region.key
            status.offset, status.byte_size = region.offset, region.byte_size
        return response

    def system_shared_memory_register(
        self, request: pb.SystemSharedMemoryRegisterRequest
    ) -> pb.SystemSharedMemoryRegisterResponse:
        """Open a region."""
        self.regions.register(request.name, request.key, offset=request.offset, byte_size=request.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    def system_shared_memory_unregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        """Close a region, or all."""
        self.regions.unregister(request.name or None)
        return pb.SystemSharedMemoryUnregisterResponse()


def _check_repository(name: str) -> None:
    if name:
        raise GeartrainError(Code.UNSUPPORTED, "'repository_name' specification is not supported: there is one only")


def _check_parameters(given: Mapping[str, pb.ModelRepositoryParameter], known: frozenset[str], verb: str) -> None:
    for name in given:
        if name not in known:
            raise GeartrainError(Code.INVALID_INPUT, f"unrecognized {verb} parameter '{name}'.")
