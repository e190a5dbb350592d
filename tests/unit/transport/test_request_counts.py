"""Requests by protocol and status."""

from __future__ import annotations

from http import HTTPStatus

from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.request_context import NO_REQUEST, NOTHING_SENT, ProtocolName
from geartrain.transport.records import LEFT, NO_GRPC, Ended, Origin
from geartrain.transport.request_counts import RequestCounts


def ended(protocol: ProtocolName, status: int, grpc_status: int = NO_GRPC) -> Ended:
    return Ended(
        origin=Origin("POST", "/x", protocol, "", "", False, "", NOTHING_SENT),
        context=NO_REQUEST,
        peer="",
        began=0.0,
        ended=0.0,
        status=status,
        grpc_status=grpc_status,
        received=0,
        sent=0,
        requests=0,
        failures=0,
        prediction_id="",
        model="",
        version="",
        outcome=Status.SUCCEEDED,
        admitted=0.0,
        started=None,
        completed=None,
    )


class Following:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[Ended] = []

    def add(self, request: Ended) -> None:
        self.heard.append(request)


def test_statuses_are_those_of_the_protocol_and_every_request_is_passed_on() -> None:
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
