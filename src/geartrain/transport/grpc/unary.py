"""Calls with one message each way, but for inference: health, metadata, statistics, repository, shared memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError, Message

from geartrain.apis.open_inference_info import SERVER, encode_config, extensions, model_config, properties
from geartrain.authoring import __version__
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.statistics import Duration, ModelStatistics
from geartrain.domain.tensors.tensor import Buffer, TensorSpec
from geartrain.service.models import information
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.repository import IndexEntry
from geartrain.service.models.waking import ModelAsleepError, when_loaded
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport import compression
from geartrain.transport.access.guard import Grant
from geartrain.transport.grpc import open_inference_pb2 as pb
from geartrain.transport.grpc.context import NEEDS, CallContext, Need, check_message
from geartrain.transport.grpc.framing import (
    MIN_COMPRESSED,
    PREFIX_SIZE,
    Deadline,
    check_whole,
    is_compressed,
    unpack,
    whole,
    whole_compressed,
)
from geartrain.transport.grpc.heads import NO_TIMEOUT, CallHead, refusal
from geartrain.transport.grpc.translate import read_version
from geartrain.transport.runs import start
from geartrain.transport.wire.exchange import Answer, Body, Exchange, Responder

_COMPUTE: Final = ("compute_input", "compute_infer", "compute_output")
_DURATIONS: Final = ("success", "fail", "queue", *_COMPUTE, "cache_hit", "cache_miss")
SERVICE: Final = "inference.GRPCInferenceService"
_UNLOAD_PARAMETERS: Final = frozenset({"unload_dependents"})  # no model here depends on another
ADMINISTRATION: Final = frozenset(
    {
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "SystemSharedMemoryStatus",
        "SystemSharedMemoryRegister",
        "SystemSharedMemoryUnregister",
    }
)
"""Calls that are no client's business where administration has a port of its own."""


def metadata(deployment: Deployment, versions: tuple[str, ...]) -> pb.ModelMetadataResponse:
    """Describe a model version; raise `NOT_READY` while its inputs are not known."""
    view, info = deployment.interface.view, deployment.interface.info
    return pb.ModelMetadataResponse(
        name=deployment.name,
        versions=versions,
        platform=info.platform,
        inputs=map(_metadata, view.inputs),
        outputs=map(_metadata, view.outputs),
        properties=properties(view, info.batching, platform=info.platform),
    )


def config(deployment: Deployment) -> pb.ModelConfig:
    """Describe how a model version is served; raise `NOT_READY` while its inputs are not known.

    It is what `GET v2/models/{name}/config` tells, as far as the message has fields for it.
    """
    from google.protobuf import json_format  # late: it is rarely asked for

    info = deployment.interface.info
    told = model_config(
        deployment.name,
        deployment.interface.view,
        deployment.slots,
        platform=info.platform,
        batching=info.batching,
        stated=deployment.settings.stated,
    )
    return json_format.Parse(encode_config(told), pb.ModelConfig(), ignore_unknown_fields=True)


def statistics(model: ModelStatistics) -> pb.ModelStatistics:
    """Tell what a model version has done."""
    return pb.ModelStatistics(
        name=model.name,
        version=model.version,
        last_inference=model.last_inference,
        inference_count=model.inference_count,
        execution_count=model.execution_count,
        inference_stats=pb.InferStatistics(**{name: _duration(getattr(model, name)) for name in _DURATIONS}),
        batch_stats=_batches(model),
    )


def _batches(model: ModelStatistics) -> list[pb.InferBatchStatistics]:
    if not model.batches:
        compute = {name: _duration(getattr(model, name)) for name in _COMPUTE}
        return [pb.InferBatchStatistics(batch_size=1, **compute)] if model.execution_count else []
    return [
        pb.InferBatchStatistics(
            batch_size=batch.size,
            compute_infer=_duration(batch.compute_infer),
            compute_output=_duration(batch.compute_output),
        )
        for batch in model.batches
    ]


def index_entry(entry: IndexEntry) -> pb.RepositoryIndexResponse.ModelIndex:
    """Describe a model version of the repository."""
    return pb.RepositoryIndexResponse.ModelIndex(
        name=entry.name, version=entry.version, state=entry.state, reason=entry.reason
    )


def _metadata(spec: TensorSpec) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(name=spec.name, datatype=spec.datatype, shape=spec.shape)


def _duration(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)


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
        return metadata(*information.describe(self.catalogue, request.name, read_version(request.version)))

    def model_config(self, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        """Return the configuration of a model."""
        deployment, _ = information.describe(self.catalogue, request.name, read_version(request.version))
        return pb.ModelConfigResponse(config=config(deployment))

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
        return pb.ModelStatisticsResponse(model_stats=map(statistics, found))

    # the repository

    def repository_index(self, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        """List the models."""
        _check_repository(request.repository_name)
        entries = self.catalogue.index(ready=request.ready)
        return pb.RepositoryIndexResponse(models=map(index_entry, entries))

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


class Method(msgspec.Struct, frozen=True):
    """A row of the table of methods.

    Attributes:
        path: `/service/method`.
        request: the type of its message.
        need: what it needs of a key.
        answer: answers it at once; raises `GeartrainError`.
    """

    path: str
    request: type[Message]
    need: Need
    answer: Callable[[Any], Message]


class AsyncMethod(msgspec.Struct, frozen=True):
    """A row of the table, of a method that takes its time. Attributes as those of `Method`."""

    path: str
    request: type[Message]
    need: Need
    answer: Callable[[Any], Awaitable[Message]]


def methods(calls: Calls, *, has_administration: bool) -> list[Method | AsyncMethod]:
    """Return the table of the inference service, but for inference itself."""
    at_once = (
        (pb.ServerLiveRequest, calls.server_live),
        (pb.ServerReadyRequest, calls.server_ready),
        (pb.ModelReadyRequest, calls.model_ready),
        (pb.ServerMetadataRequest, calls.server_metadata),
        (pb.ModelMetadataRequest, calls.model_metadata),
        (pb.ModelConfigRequest, calls.model_config),
        (pb.ModelStatisticsRequest, calls.model_statistics),
        (pb.RepositoryIndexRequest, calls.repository_index),
        (pb.SystemSharedMemoryStatusRequest, calls.system_shared_memory_status),
        (pb.SystemSharedMemoryRegisterRequest, calls.system_shared_memory_register),
        (pb.SystemSharedMemoryUnregisterRequest, calls.system_shared_memory_unregister),
    )
    late = (
        (pb.RepositoryModelLoadRequest, calls.repository_model_load),
        (pb.RepositoryModelUnloadRequest, calls.repository_model_unload),
    )
    table: list[Method | AsyncMethod] = [Method(*_row(request), answer) for request, answer in at_once]
    table += [AsyncMethod(*_row(request), answer) for request, answer in late]
    return [each for each in table if has_administration or each.path.rpartition("/")[2] not in ADMINISTRATION]


def _row(request: type[Message]) -> tuple[str, type[Message], Need]:
    name = request.DESCRIPTOR.name.removesuffix("Request")
    return f"/{SERVICE}/{name}", request, NEEDS[name]


class _UnaryExchange:
    """One call. See `Exchange`."""

    __slots__ = ("_context", "_grant", "_head", "_method", "_mirrors", "_responder")

    def __init__(
        self, context: CallContext, method: Method | AsyncMethod, head: CallHead, *, grant: Grant, responder: Responder
    ) -> None:
        self._context = context
        self._method = method
        self._head = head
        self._grant = grant
        self._mirrors = False  # the answer is compressed as the request was
        self._responder = responder

    def abandon(self) -> None:
        """Let the call finish without a reader: its change is complete."""

    async def _unpack(self, body: Body) -> Any:
        """Read the message of a body that may be compressed."""
        context, method, head = self._context, self._method, self._head
        message = await unpack(body, method.path, head, limit=context.max_small)
        self._mirrors = head.mirrors and is_compressed(body)
        return self._read(message)

    def _read(self, message: Buffer) -> Any:
        """Parse a message and check that its sender may ask for it; raises `GeartrainError`."""
        method = self._method
        request = parse_message(method.request, message)
        check_message(self._grant, method.need, request)
        return request

    def _answer(self, message: Message) -> Answer:
        data = message.SerializeToString()
        if self._mirrors and len(data) > MIN_COMPRESSED:
            return whole_compressed(compression.deflate((data,), "gzip"))
        return whole((data,))


class SyncExchange(_UnaryExchange):
    """One call that is answered at once."""

    __slots__ = ()
    _method: Method

    def receive(self, body: Body) -> None:
        """Answer, when the message has been decompressed if it has to be."""
        if is_compressed(body):
            start(self._receive_compressed(body))
            return
        try:
            check_whole(body, self._method.path)
            request = self._read(body[PREFIX_SIZE:])
            try:
                answer = self._answer(self._method.answer(request))
            except ModelAsleepError:
                start(self._answer_late(request))
                return
        except Exception as error:  # noqa: BLE001 - the border of a call: whatever it is becomes a status
            answer = refusal(error)
        self._responder.respond(answer)

    async def _receive_compressed(self, body: Body) -> None:
        try:
            request = await self._unpack(body)
        except Exception as error:  # noqa: BLE001 - as above
            self._responder.respond(refusal(error))
        else:
            await self._answer_late(request)

    async def _answer_late(self, request: Any) -> None:
        """Answer when the model that is asked for has been loaded, if requests load it."""
        try:
            answer = self._answer(await when_loaded(lambda: self._method.answer(request)))
        except Exception as error:  # noqa: BLE001 - as above
            answer = refusal(error)
        self._responder.respond(answer)


class AsyncExchange(_UnaryExchange):
    """One call that takes its time, and goes on even when its client has gone."""

    __slots__ = ()
    _method: AsyncMethod

    def __init__(
        self, context: CallContext, method: AsyncMethod, head: CallHead, *, grant: Grant, responder: Responder
    ) -> None:
        if head.timeout != NO_TIMEOUT:
            responder = Deadline(responder, head.timeout, self.abandon)
        super().__init__(context, method, head, grant=grant, responder=responder)

    def receive(self, body: Body) -> None:
        """Answer later."""
        start(self._run(body))

    async def _run(self, body: Body) -> None:
        try:
            answer = self._answer(await self._method.answer(await self._unpack(body)))
        except Exception as error:  # noqa: BLE001 - the border of a call: whatever it is becomes a status
            answer = refusal(error)
        self._responder.respond(answer)


def parse_message(kind: type[Message], message: Buffer) -> Any:
    """Parse a message; raises `UNPARSABLE`."""
    try:
        return kind.FromString(bytes(message))
    except DecodeError:
        name = kind.DESCRIPTOR.name
        raise GeartrainError(Code.UNPARSABLE, f"Unable to parse request: it is no {name}") from None


def unary_exchange(
    context: CallContext, method: Method | AsyncMethod, head: CallHead, *, grant: Grant
) -> Callable[[Responder], Exchange]:
    """Create the factory of exchanges for calls with this head."""
    if isinstance(method, Method):
        return lambda responder: SyncExchange(context, method, head, grant=grant, responder=responder)
    return lambda responder: AsyncExchange(context, method, head, grant=grant, responder=responder)
