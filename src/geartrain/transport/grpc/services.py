"""Standard services beside that of the Open Inference Protocol: health (grpc.health.v1), and reflection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.rendering import clip
from geartrain.service.models import information
from geartrain.service.models.catalogue import Catalogue
from geartrain.transport.errors import GrpcStatus
from geartrain.transport.grpc import health_pb2
from geartrain.transport.grpc.framing import MessageAnswer, frame, pack, unpack
from geartrain.transport.grpc.heads import CallHead, status_of
from geartrain.transport.grpc.streams import SHUTTING_DOWN, StreamingCall, StreamingCalls
from geartrain.transport.grpc.unary import SERVICE, parse_message
from geartrain.transport.wire.exchange import Body, ClientGoneError, Responder

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FileDescriptor

HEALTH_SERVICE: Final = "grpc.health.v1.Health"
CHECK: Final = f"/{HEALTH_SERVICE}/Check"
WATCH: Final = f"/{HEALTH_SERVICE}/Watch"

_Response = health_pb2.HealthCheckResponse
_WHOLE: Final = frozenset({"", SERVICE})
_LOOK: Final = 0.2  # seconds between two looks of a `Watch`
# The later one has the messages of the earlier one under another name.
REFLECTION_SERVICES: Final = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
REFLECTION_METHODS: Final = tuple(f"/{service}/ServerReflectionInfo" for service in REFLECTION_SERVICES)


class HealthCalls:
    """Answers `Check`, and knows what a `Watch` is to say."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._closing = asyncio.Event()

    @property
    def is_closing(self) -> bool:
        """True if the server is about to stop."""
        return self._closing.is_set()

    def close(self) -> None:
        """Answer that nothing is serving any more, and end every `Watch`: the server is about to stop."""
        self._closing.set()

    def check(self, request: health_pb2.HealthCheckRequest) -> health_pb2.HealthCheckResponse:
        """Return the state of a service, once; raise `NOT_FOUND` for an unknown one."""
        status = self.status(request.service)
        if status == _Response.SERVICE_UNKNOWN:
            msg = f"unknown service '{clip(request.service)}': name a model, or nothing for the server as a whole"
            raise GeartrainError(Code.NOT_FOUND, msg)
        return _Response(status=status)

    def status(self, service: str) -> health_pb2.HealthCheckResponse.ServingStatus:
        """Return the state of a service."""
        catalogue = self._catalogue
        ready = catalogue.readiness.is_ready if service in _WHOLE else information.is_ready(catalogue, service)
        if not ready and service not in _WHOLE and not any(entry.name == service for entry in catalogue.index()):
            return _Response.SERVICE_UNKNOWN
        return _Response.SERVING if ready and not self.is_closing else _Response.NOT_SERVING

    async def pause(self) -> None:
        """Wait until it is time for the next look, or the server is about to stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK):
                await self._closing.wait()


class WatchExchange:
    """One `Watch`: the state of a service, and again whenever it is another. A service may be yet to come."""

    __slots__ = ("_answer", "_calls", "_head", "_max_message", "_watching")

    def __init__(self, calls: HealthCalls, head: CallHead, responder: Responder, *, max_message: int) -> None:
        """`max_message`: bytes of its message, `NO_LIMIT` for any."""
        self._calls = calls
        self._head = head
        self._max_message = max_message
        self._watching: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answer = MessageAnswer(responder, head.timeout, self._leave)

    def receive(self, body: Body) -> None:
        """Begin to watch."""
        self._watching = asyncio.ensure_future(self._run(body))

    def abandon(self) -> None:
        """End it: the client has gone."""
        self._answer.close()
        self._leave()

    def _leave(self) -> None:
        self._watching.cancel()

    async def _run(self, body: Body) -> None:
        try:
            message = await unpack(body, WATCH, self._head, limit=self._max_message)
            await self._watch(parse_message(health_pb2.HealthCheckRequest, message).service)
        except ClientGoneError:
            self._answer.close()
        except Exception as error:  # noqa: BLE001 - the border of a call: whatever it is becomes a status
            self._answer.finish(*status_of(error))

    async def _watch(self, service: str) -> None:
        calls, answer = self._calls, self._answer
        last = -1
        while True:
            status = calls.status(service)
            if status != last:
                answer.send(*frame((_Response(status=status).SerializeToString(),)))
                last = status
            if calls.is_closing:
                answer.finish(GrpcStatus.UNAVAILABLE, SHUTTING_DOWN)
                return
            await answer.drained()
            await calls.pause()


class Reflection(StreamingCall):
    """One call of either version, which have the same messages. A question is answered before the next one is read."""

    def __init__(
        self,
        owner: StreamingCalls,
        head: CallHead,
        responder: Responder,
        *,
        max_message: int,
        has_torchserve: bool = False,
    ) -> None:
        """`has_torchserve`: the service of TorchServe is there."""
        super().__init__(owner, head, responder, max_message=max_message)
        self._known = _known(has_torchserve=has_torchserve)

    @property
    def is_idle(self) -> bool:
        """Always: what has been taken has been answered."""
        return True

    def drop(self) -> None:
        """There is nothing to give up."""

    async def take(self, message: Body, *, mirrors: bool) -> None:
        """Answer a question."""
        from geartrain.transport.grpc import reflection_pb2 as pb

        asked = parse_message(pb.ServerReflectionRequest, message)
        response = pb.ServerReflectionResponse(valid_host=asked.host, original_request=asked)
        try:
            self._answer(asked, response)
        except _UnknownError as error:
            response.error_response.error_code = error.status
            response.error_response.error_message = str(error)
        self.answer.send(*pack((response.SerializeToString(),), mirrors=mirrors))

    def _answer(self, asked: Any, response: Any) -> None:
        known = self._known
        match asked.WhichOneof("message_request"):
            case "list_services":
                for name in known.services:
                    response.list_services_response.service.add(name=name)
            case "file_by_filename":
                files = known.file_named(asked.file_by_filename)
                response.file_descriptor_response.file_descriptor_proto.extend(files)
            case "file_containing_symbol":
                files = known.file_with(asked.file_containing_symbol)
                response.file_descriptor_response.file_descriptor_proto.extend(files)
            case "file_containing_extension":
                extension = asked.file_containing_extension
                known.check_type(extension.containing_type)
                shown = clip(extension.containing_type)
                raise _UnknownError(f"{shown} has no extension {extension.extension_number}: there are none here")
            case "all_extension_numbers_of_type":
                known.check_type(asked.all_extension_numbers_of_type)
                response.all_extension_numbers_response.base_type_name = asked.all_extension_numbers_of_type
            case _:
                raise _UnknownError("the request asks for nothing", GrpcStatus.INVALID_ARGUMENT)


class _UnknownError(Exception):
    """A question to which there is no answer; the client is told so, and may ask on."""

    def __init__(self, text: str, status: GrpcStatus = GrpcStatus.NOT_FOUND) -> None:
        super().__init__(text)
        self.status = status


class _Known:
    """The services, and the files that declare them: none imports another, or has extensions."""

    def __init__(self, files: Iterable[FileDescriptor], *further: str) -> None:
        """`further` are services of these files beside those that every server has."""
        self.services = (SERVICE, HEALTH_SERVICE, *REFLECTION_SERVICES, *further)
        self._types: set[str] = set()
        self._files: dict[str, bytes] = {}  # by name, each serialized
        self._symbols: dict[str, bytes] = {}
        for file in files:
            self._files[file.name] = file.serialized_pb
            self._types.update(message.full_name for message in _messages(file.message_types_by_name))
            self._symbols.update(dict.fromkeys(_symbols(file), file.serialized_pb))

    def file_named(self, name: str) -> tuple[bytes]:
        """Return the description of this name; raises `_UnknownError`."""
        if name not in self._files:
            raise _UnknownError(f"there is no file '{clip(name)}'")
        return (self._files[name],)

    def file_with(self, symbol: str) -> tuple[bytes]:
        """Return the description that declares a service, a method, a message or a field; raises `_UnknownError`."""
        if symbol not in self._symbols:
            raise _UnknownError(f"there is no symbol '{clip(symbol)}'")
        return (self._symbols[symbol],)

    def check_type(self, name: str) -> None:
        """Raise `_UnknownError` unless there is a message type of this name."""
        if name not in self._types:
            raise _UnknownError(f"there is no message type '{clip(name)}'")


def _symbols(file: FileDescriptor) -> Iterator[str]:
    """Give the full names of all that a file declares."""
    for service in file.services_by_name.values():
        yield service.full_name
        yield from (method.full_name for method in service.methods)
    enums = [*file.enum_types_by_name.values()]
    for message in _messages(file.message_types_by_name):
        yield message.full_name
        yield from (field.full_name for field in message.fields)
        enums += message.enum_types
    for enum in enums:
        yield enum.full_name
        scope = enum.full_name.rpartition(".")[0]  # the names of values stand beside that of their type
        yield from (f"{scope}.{value.name}" for value in enum.values)


def _messages(types: Mapping[str, Descriptor]) -> Iterator[Descriptor]:
    for message in types.values():
        yield message
        yield from _messages(message.nested_types_by_name)


@cache
def _known(*, has_torchserve: bool) -> _Known:
    from geartrain.transport.grpc import health_pb2, open_inference_pb2, reflection_pb2

    files = [module.DESCRIPTOR for module in (open_inference_pb2, health_pb2, reflection_pb2)]
    files.append(_as_v1alpha(reflection_pb2.DESCRIPTOR))
    if not has_torchserve:
        return _Known(files)
    from geartrain.transport.grpc.torchserve import SERVICE as TORCHSERVE_SERVICE
    from geartrain.transport.grpc.torchserve_pb2 import DESCRIPTOR

    return _Known([*files, DESCRIPTOR], TORCHSERVE_SERVICE)


def _as_v1alpha(file: FileDescriptor) -> FileDescriptor:
    """Return the description of the earlier version: that of the later one, but for the names of package and file."""
    from google.protobuf import text_format
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool

    text = text_format.MessageToString(FileDescriptorProto.FromString(file.serialized_pb))
    earlier = FileDescriptorProto()
    text_format.Parse(text.replace(file.package, f"{file.package}alpha"), earlier)
    earlier.name = file.name.replace(".proto", "_v1alpha.proto")
    pool = DescriptorPool()
    pool.Add(earlier)
    return pool.FindFileByName(earlier.name)
