"""Calls with one message each way, but for inference: their table, and how they are answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError, Message

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.tensors.tensor import Buffer
from geartrain.service.models.waking import ModelAsleepError, when_loaded
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
from geartrain.transport.grpc.heads import NO_TIMEOUT, CallHead
from geartrain.transport.grpc.servicer import SERVICE, Calls
from geartrain.transport.grpc.status import refusal
from geartrain.transport.runs import start
from geartrain.transport.wire.exchange import Answer, Body, Exchange, Responder

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
