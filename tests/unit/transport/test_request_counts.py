"""Requests by protocol and status."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http import HTTPStatus

from geartrain.domain.predictions.prediction import NO_PREDICTION
from geartrain.domain.predictions.request_context import NO_REQUEST, NOTHING_SENT
from geartrain.transport import records
from geartrain.transport.records import LEFT, NO_GRPC, NOBODY, Origin, RequestCounts, RequestRecord
from tests.support.servers import PATIENCE


def ended(protocol: str, status: int, grpc_status: int = NO_GRPC) -> RequestRecord:
    origin = Origin("POST", "/x", protocol, "", "", False, "", NOTHING_SENT)
    record = RequestRecord(NOBODY, origin, "", 0.0, NO_REQUEST, b"", NO_PREDICTION)
    record.status, record.grpc_status = status, grpc_status
    return record


class Following:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[RequestRecord] = []

        self.sizes: list[int] = []
        self.has_heard = asyncio.Event()

    def add_all(self, requests: Sequence[RequestRecord]) -> None:
        self.heard += requests
        self.sizes.append(len(requests))
        self.has_heard.set()


async def test_statuses_are_those_of_the_protocol_and_every_request_is_passed_on() -> None:
    following = Following()
    counts = RequestCounts(following)
    requests = [
        ended("cog", HTTPStatus.OK),
        ended("cog", HTTPStatus.OK),
        ended("cog", HTTPStatus.UNPROCESSABLE_ENTITY),
        ended("rest", LEFT),
        ended("grpc", HTTPStatus.OK, 0),
        ended("grpc", HTTPStatus.OK, 5),
        ended("grpc", LEFT),
    ]
    for request in requests:
        counts.add(request)
    assert counts.all() == {
        ("cog", "200"): 2,
        ("cog", "422"): 1,
        ("rest", "499"): 1,
        ("grpc", "OK"): 1,
        ("grpc", "NOT_FOUND"): 1,
        ("grpc", "499"): 1,
    }
    assert following.heard == requests


async def test_requests_are_passed_on_in_their_order_and_not_too_many_at_a_time() -> None:
    following = Following()
    requests = [ended("cog", 200 + number % 2) for number in range(1000)]
    with RequestCounts(following) as counts:
        for request in requests:
            counts.add(request)
    assert following.heard == requests
    assert max(following.sizes) == records._TOGETHER


async def test_a_single_request_is_passed_on_in_a_moment() -> None:
    following = Following()
    counts = RequestCounts(following)
    for number in range(1, 4):
        following.has_heard.clear()
        counts.add(ended("cog", HTTPStatus.OK))
        async with asyncio.timeout(PATIENCE):
            await following.has_heard.wait()
        assert len(following.heard) == number
