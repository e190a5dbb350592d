"""Calls whose deadline is up, or nearly, when they come, on the loops that serve them."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from geartrain.transport.errors import GrpcStatus
from tests.unit.transport.grpc.conftest import INFER, Zoo, framed, request

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
UP = [b"0n", b"1n", b"499999n", b"0u", b"1u", b"499u", b"0m", b"0S", b"0M", b"0H"]


@pytest.mark.parametrize("loop", LOOPS)
def test_s1_a_deadline_that_is_up_is_exceeded_and_nothing_is_admitted(loop: str) -> None:
    async def main() -> None:
        zoo = Zoo(slots=1)
        await zoo.open()
        for value in UP:
            sent = zoo.send(INFER, framed(request("numbers")), (b"grpc-timeout", value))
            assert not zoo.live("numbers"), value
            assert (await sent.responder.outcome()).status == GrpcStatus.DEADLINE_EXCEEDED, value
        for value in (b"99999999H", b"30S", b"99999999u"):
            assert (await zoo.call(INFER, request("numbers"), (b"grpc-timeout", value))).status == GrpcStatus.OK, value
        await zoo.close()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())
