"""The gRPC server: which handler answers what, its start and its end. Importing it imports gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2

from geartrain.domain.errors import Code, GeartrainError
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.access.authorizer import Authorizer
from geartrain.transport.grpc import open_inference_pb2 as pb
from geartrain.transport.grpc.access import NEEDS, CallAccess, Need
from geartrain.transport.grpc.errors import Context, abort
from geartrain.transport.grpc.health import HEALTH_SERVICE, HealthCalls
from geartrain.transport.grpc.infer import InferCalls
from geartrain.transport.grpc.options import GrpcOptions
from geartrain.transport.grpc.reflection import LateReflection
from geartrain.transport.grpc.servicer import SERVICE, Calls
from geartrain.transport.grpc.streams import InferStreams
from geartrain.transport.wire.tls import TlsContext, TlsFiles

_ANSWER_GRACE: Final = 0.5  # seconds for what needs no model: an answer on its way, a reflection stream left open

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

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]


class GrpcServer:
    """A server that listens on `port`. Made by `start_grpc_server`."""

    def __init__(
        self, server: grpc.aio.Server, port: int, calls: Running, *, closers: Iterable[Callable[[], None]]
    ) -> None:
        self.port = port
        self._server = server
        self._calls = calls
        self._closers = tuple(closers)

    async def stop(self, grace: float | None) -> None:
        """Take no further call, let what runs end within so many seconds (None: however long), then cancel it."""
        ending = asyncio.ensure_future(self._server.stop(grace))
        for close in self._closers:
            close()
        await self._calls.drain(grace)
        await self._server.stop(_ANSWER_GRACE)
        await ending


class Running:
    """Counts the calls that are being answered."""

    def __init__(self) -> None:
        self._count = 0
        self._empty: asyncio.Future[None] | None = None

    def counted(self, handle: Callable[[Any, Context], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
        """Return the handler of a call, counted."""

        async def answer(request: Any, context: Context) -> Any:
            self._count += 1
            try:
                return await handle(request, context)
            finally:
                self._count -= 1
                if not self._count and self._empty is not None and not self._empty.done():
                    self._empty.set_result(None)

        return answer

    async def drain(self, time_limit: float | None) -> None:
        """Wait until there is none, at most so many seconds."""
        if self._count:
            self._empty = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._empty}, timeout=time_limit)


async def start_grpc_server(
    catalogue: Catalogue, options: GrpcOptions, *, address: str, regions: SharedRegions, authorizer: Authorizer
) -> GrpcServer:
    """Listen on `address`, which names a port or 0; raise OSError if it cannot be had.

    `regions`: None for no shared memory.
    """
    limit = -1 if options.max_message_bytes is None else options.max_message_bytes
    settings = (
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", limit),
        ("grpc.so_reuseport", 0),  # two servers on one port would share its clients between them
    )
    server = grpc.aio.server(options=settings)
    calls = Running()
    access = CallAccess(authorizer)
    streams = InferStreams(catalogue, regions, access)
    infer = InferCalls(catalogue, regions, access)
    others = Calls(catalogue, regions)
    health = HealthCalls(catalogue)
    handlers = {**_infer_handlers(infer, streams, calls), **_handlers(others, access, calls)}
    if not options.has_administration:
        handlers = {name: handler for name, handler in handlers.items() if name not in ADMINISTRATION}
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(SERVICE, handlers),
            grpc.method_handlers_generic_handler(HEALTH_SERVICE, _health_handlers(health)),
            LateReflection(),
        )
    )
    try:
        port = _listen(server, address, options.tls)
    except RuntimeError as error:
        raise OSError(f"gRPC cannot listen on {address}: {error}") from error
    await server.start()
    return GrpcServer(server, port, calls, closers=(streams.close, health.close))


def _listen(server: grpc.aio.Server, address: str, tls: TlsFiles | None) -> int:
    if tls is None:
        return server.add_insecure_port(address)
    credentials = grpc.dynamic_ssl_server_credentials(
        _certificates(tls),
        _renewal(tls),  # type: ignore[arg-type]  # gRPC's documentation allows None for no change
        require_client_authentication=tls.client_ca is not None,
    )
    return server.add_secure_port(address, credentials)


def _certificates(tls: TlsFiles) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(tls.key.read_bytes(), tls.cert.read_bytes())],
        root_certificates=None if tls.client_ca is None else tls.client_ca.read_bytes(),
    )


def _renewal(tls: TlsFiles) -> Callable[[], grpc.ServerCertificateConfiguration | None]:
    """Return what gRPC asks at each new connection, in a thread of its own: other certificates, or None for the same.

    The connection may be the first for days, so a change counts at once.
    """
    followed = TlsContext(tls)

    def renew() -> grpc.ServerCertificateConfiguration | None:
        return _certificates(tls) if followed.refresh() or followed.refresh() else None

    return renew


def _infer_handlers(infer: InferCalls, streams: InferStreams, calls: Running) -> dict[str, Handler]:
    # The two that matter for speed take and give bytes: tensors are not copied into a message and out of it.
    return {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(calls.counted(infer.infer)),
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(calls.counted(streams.stream)),
    }


def _handlers(others: Calls, access: CallAccess, calls: Running) -> dict[str, Handler]:
    handlers: dict[str, Handler] = {}
    for request, method in (
        (pb.ServerLiveRequest, others.server_live),
        (pb.ServerReadyRequest, others.server_ready),
        (pb.ModelReadyRequest, others.model_ready),
        (pb.ServerMetadataRequest, others.server_metadata),
        (pb.ModelMetadataRequest, others.model_metadata),
        (pb.ModelConfigRequest, others.model_config),
        (pb.ModelStatisticsRequest, others.model_statistics),
        (pb.RepositoryIndexRequest, others.repository_index),
        (pb.RepositoryModelLoadRequest, others.repository_model_load),
        (pb.RepositoryModelUnloadRequest, others.repository_model_unload),
        (pb.SystemSharedMemoryStatusRequest, others.system_shared_memory_status),
        (pb.SystemSharedMemoryRegisterRequest, others.system_shared_memory_register),
        (pb.SystemSharedMemoryUnregisterRequest, others.system_shared_memory_unregister),
    ):
        name = request.DESCRIPTOR.name.removesuffix("Request")
        answer = calls.counted(_plain(request, method, access, need=NEEDS[name]))
        handlers[name] = grpc.unary_unary_rpc_method_handler(answer)
    return handlers


def _plain(
    request_type: type[Message], method: Callable[[Any], Awaitable[Message]], access: CallAccess, *, need: Need
) -> Callable[[bytes, Context], Awaitable[bytes]]:
    """Return a handler that parses, checks, calls, serializes, and turns an error into a status."""

    async def handle(data: bytes, context: Context) -> bytes:
        try:
            message = request_type.FromString(data)
            access.check(context, need, message)
            return (await method(message)).SerializeToString()
        except DecodeError:
            name = request_type.DESCRIPTOR.name
            await abort(context, GeartrainError(Code.UNPARSABLE, f"Unable to parse request: it is no {name}"))
        except Exception as error:  # noqa: BLE001 - the border of a call: whatever it is becomes a status
            await abort(context, error)

    return handle


def _health_handlers(health: HealthCalls) -> dict[str, Handler]:
    read, write = health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString
    return {
        "Check": grpc.unary_unary_rpc_method_handler(health.check, read, write),
        "Watch": grpc.unary_stream_rpc_method_handler(health.watch, read, write),
    }
