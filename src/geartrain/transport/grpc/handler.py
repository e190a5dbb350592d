"""gRPC as a `Handler`: the table of its methods, and what becomes of a call by its head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import msgspec

from geartrain.domain.rendering import clip
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.access.guard import Authorizer, Grant
from geartrain.transport.errors import GrpcStatus
from geartrain.transport.grpc.context import CallAccess, CallContext, Need
from geartrain.transport.grpc.framing import NO_LIMIT, PREFIX_SIZE, SMALL_MESSAGE, announced, too_large
from geartrain.transport.grpc.heads import CallError, CallHead, read_head, refusal
from geartrain.transport.grpc.health_pb2 import HealthCheckRequest
from geartrain.transport.grpc.infer import PATH as INFER
from geartrain.transport.grpc.infer import infer_exchange
from geartrain.transport.grpc.options import GrpcOptions
from geartrain.transport.grpc.request_heads import RequestReader, ResponseWriter, contents_of
from geartrain.transport.grpc.services import CHECK, REFLECTION_METHODS, WATCH, HealthCalls, Reflection, WatchExchange
from geartrain.transport.grpc.streams import InferStream, StreamingCall, StreamingCalls
from geartrain.transport.grpc.unary import SERVICE, AsyncMethod, Calls, Method, methods, unary_exchange
from geartrain.transport.large_bodies import LargeBodies
from geartrain.transport.routing import ROUTINE, Scope
from geartrain.transport.wire.exchange import (
    Accepted,
    AcceptedInParts,
    Decision,
    Exchange,
    Head,
    RequestNotes,
    Responder,
)

STREAM: Final = f"/{SERVICE}/ModelStreamInfer"
_OPEN: Final = Need("open")

Begin = Callable[[CallHead, RequestNotes], Accepted | AcceptedInParts]


class GrpcHandler:
    """Handler of gRPC calls. See `Handler`; a wire passes it the requests for which `heads.is_grpc` is true.

    The result of `begin` depends on the head, on fixed options, and on keys: as for `AccessGuard`, a wire may remember
    it until the access reports a change.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        regions: SharedRegions,
        bodies: LargeBodies,
        *,
        authorizer: Authorizer,
        options: GrpcOptions,
    ) -> None:
        """`bodies` reads long messages."""
        limit = options.max_message_bytes
        access = CallAccess(authorizer)
        self._context = CallContext(
            catalogue,
            regions,
            access,
            RequestReader(regions),
            ResponseWriter(),
            bodies,
            max_message=limit,
            max_small=min(limit, SMALL_MESSAGE) if limit else SMALL_MESSAGE,
        )
        self._access = access
        self._streaming = StreamingCalls()
        self._health = HealthCalls(catalogue)
        self._methods: dict[bytes, Begin] = {
            path.encode(): begin for path, begin in self._table(has_administration=options.has_administration)
        }
        self._has_torchserve = options.has_torchserve
        if options.has_torchserve:
            self._methods.update({path.encode(): begin for path, begin in self._torchserve()})

    def begin(self, head: Head) -> Decision:
        """Decide what becomes of a call, before its messages are read."""
        head.notes.protocol, head.notes.shows_logs = "grpc", False
        try:
            begin = self._methods.get(head.path)
            if begin is None:
                raise CallError(GrpcStatus.UNIMPLEMENTED, f"unknown method '{clip(head.path.decode('latin-1'))}'")
            return begin(read_head(head), head.notes)
        except Exception as error:  # noqa: BLE001 - the border of a call: whatever it is becomes a status
            return refusal(error)

    def close(self) -> None:
        """End what waits for its client, with UNAVAILABLE: the server is about to stop. What runs is answered first."""
        self._streaming.close()
        self._health.close()

    # the table

    def _table(self, *, has_administration: bool) -> Iterator[tuple[str, Begin]]:
        yield INFER, self._begin_infer
        yield STREAM, self._begin_stream
        context, health = self._context, self._health
        calls = Calls(context.catalogue, context.regions)
        check = Method(CHECK, HealthCheckRequest, _OPEN, health.check)
        for method in (*methods(calls, has_administration=has_administration), check):
            yield method.path, partial(self._begin_unary, method)
        yield WATCH, self._begin_watch
        for path in REFLECTION_METHODS:
            yield path, self._begin_reflection

    def _torchserve(self) -> Iterator[tuple[str, Begin]]:
        from geartrain.transport.grpc import torchserve as service  # few servers have it
        from geartrain.transport.grpc.torchserve_pb2 import Empty

        calls = service.TorchServeCalls(self._context)
        ping = Method(service.PING, Empty, _OPEN, calls.ping)
        yield ping.path, partial(self._begin_unary, ping)
        limit = self._context.max_message

        def begin(head: CallHead, notes: RequestNotes, *, streams: bool) -> Accepted:
            grant = self._grant(head, notes, "predict")
            exchange = partial(service.PredictionExchange, calls, head, grant=grant, streams=streams)
            return self._accept(exchange, limit, is_reusable=grant.is_lasting)

        def begin_sequence(head: CallHead, notes: RequestNotes) -> AcceptedInParts:
            grant = self._grant(head, notes, "predict")
            return self._accept_stream(partial(service.SequenceCall, calls, head, owner=self._streaming, grant=grant))

        yield service.PREDICTIONS, partial(begin, streams=False)
        yield service.STREAM, partial(begin, streams=True)
        yield service.STREAM_2, begin_sequence

    def _begin_infer(self, head: CallHead, notes: RequestNotes) -> Accepted:
        grant = self._grant(head, notes, "predict")
        limit = self._context.max_message
        accepted = self._accept(infer_exchange(self._context, head, grant), limit, is_reusable=grant.is_lasting)
        return msgspec.structs.replace(accepted, contents_of=contents_of)

    def _begin_unary(self, method: Method | AsyncMethod, head: CallHead, notes: RequestNotes) -> Accepted:
        grant = self._grant(head, notes, method.need.scope)
        notes.is_routine = method.need.scope in ROUTINE
        exchange = unary_exchange(self._context, method, head, grant=grant)
        return self._accept(exchange, self._context.max_small, is_reusable=grant.is_lasting)

    def _begin_watch(self, head: CallHead, notes: RequestNotes) -> Accepted:
        notes.is_routine = True
        limit = self._context.max_small
        return self._accept(lambda responder: WatchExchange(self._health, head, responder, max_message=limit), limit)

    def _begin_stream(self, head: CallHead, notes: RequestNotes) -> AcceptedInParts:
        self._grant(head, notes, "predict")
        return self._accept_stream(partial(InferStream, self._context, head, owner=self._streaming))

    def _begin_reflection(self, head: CallHead, notes: RequestNotes) -> AcceptedInParts:
        notes.is_routine = True
        limit = self._context.max_small
        return self._accept_stream(
            partial(Reflection, self._streaming, head, max_message=limit, has_torchserve=self._has_torchserve)
        )

    def _grant(self, head: CallHead, notes: RequestNotes, scope: Scope) -> Grant:
        grant = self._access.grant(head, scope)
        notes.key = grant.name
        return grant

    def _accept(
        self, new_exchange: Callable[[Responder], Exchange], limit: int, *, is_reusable: bool = True
    ) -> Accepted:
        max_body = limit + PREFIX_SIZE if limit else NO_LIMIT
        return Accepted(new_exchange, max_body, lambda _: refusal(too_large(limit)), is_reusable, announced)

    def _accept_stream(self, new_exchange: Callable[[Responder], StreamingCall]) -> AcceptedInParts:
        # Each message is held against the limit by itself.
        return AcceptedInParts(new_exchange, NO_LIMIT, lambda limit: refusal(too_large(limit)), is_bidirectional=True)
