"""Predictions that run in another server of the cluster: their requests go there, and its answers come back."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from geartrain.apis import sse
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.ledger import Row
from geartrain.domain.principal import ANYONE
from geartrain.service.durable.durability import Durability, Elsewhere
from geartrain.transport.relay.relay import NOT_HERE, Relay, RelayedAnswer, RelayedRequest, unreachable
from geartrain.transport.wire.exchange import Answer, ClientGoneError, Responder

NOT_RUNNING_HERE: Final = Answer(NOT_HERE, (b'{"error":"The prediction does not run in this server."}',))
"""Answer to a relayed request about a prediction that does not run in this server."""

BROKEN_OFF: Final = "The server that runs the prediction cannot be reached any more. PUT its id again to follow it."

_PREDICTION_ID: Final = b"x-prediction-id"
_BLANK: Final = b"\n\n"
_LOOKS: Final = 3  # in the store, for a prediction that changes hands meanwhile
_REFUSED: Final = "The server that had this prediction has refused it after all. Send the request again."


class ClusterLookup:
    """Sources beyond this server's own predictions: the store, and the servers that share it."""

    def __init__(self, durability: Durability, relay: Relay | None) -> None:
        """`relay` reaches those servers; None for a server that knows no others."""
        self.durability = durability
        self._relay = relay

    async def follow(self, row: Row, request: RelayedRequest) -> RelayedAnswer | Row:
        """Return the answer of the server that runs a row's prediction, or the row if none does.

        Raises `GeartrainError`: `OWNER_UNREACHABLE`, `NOT_READY` where the row is gone, and as the store does.
        """
        for _ in range(_LOOKS):
            found = self.durability.whereabouts(row)
            if not isinstance(found, Elsewhere):
                break
            answer = await self._open(found.address, request)
            if answer.status is not NOT_HERE:
                return answer
            await answer.drop()
            again = await self.durability.find_row(row.ownership.key, ANYONE)
            if again is None or again.principal != row.principal:
                raise GeartrainError(Code.NOT_READY, _REFUSED)
            has_moved, row = again.ownership != row.ownership, again
            if not has_moved:
                break  # it has ended, or its server cannot run it yet
        return row

    async def tell(self, row: Row, request: RelayedRequest) -> None:
        """Hand a request over whose answer does not matter, if another server has the prediction."""
        found = self.durability.whereabouts(row)
        if not isinstance(found, Elsewhere):
            return
        try:
            answer = await self._open(found.address, request)
            await answer.drop()
        except GeartrainError:
            pass  # the store has the request as well

    async def _open(self, address: str, request: RelayedRequest) -> RelayedAnswer:
        if self._relay is None:
            raise unreachable("this server knows no others (--advertise)", retry_after=1)
        return await self._relay.open(address, request)


async def pass_on(
    answer: RelayedAnswer, responder: Responder, *, hand_over: Callable[[Callable[[], None]], None]
) -> None:
    """Answer a client as another server does; `hand_over` gets what is to be called if the client disconnects.

    Raises `OWNER_UNREACHABLE` if the answer does not come to its end.
    """
    if not answer.is_stream:
        responder.respond(await answer.whole(_PREDICTION_ID))
        return
    stream = StreamRelay(answer, responder)
    hand_over(stream.leave)
    await stream.run()


class StreamRelay:
    """Passes a stream of events on, as it comes."""

    def __init__(self, answer: RelayedAnswer, responder: Responder) -> None:
        self._answer = answer
        self._responder = responder

    async def run(self) -> None:
        """Write what comes until it ends, or until the client has gone."""
        answer, last = self._answer, _BLANK
        stream = self._responder.open_stream(HTTPStatus.OK, answer.headers(_PREDICTION_ID))
        try:
            try:
                while piece := await answer.read():
                    last = (last + piece)[-len(_BLANK) :]
                    await stream.write(piece)  # waits while the client does not read
            except GeartrainError:
                if last == _BLANK:  # the end of an event: clients drop one that is not whole
                    await stream.write(sse.encode_error(BROKEN_OFF, 0))
            stream.end()
        except ClientGoneError:
            pass
        finally:
            answer.close()

    def leave(self) -> None:
        """Note that the client has disconnected: the other server is told by the end of the connection."""
        self._answer.close()
