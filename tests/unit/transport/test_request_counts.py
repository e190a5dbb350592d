"""Requests by protocol and status."""

from __future__ import annotations

from http import HTTPStatus

from geartrain.domain.predictions.record import NO_PREDICTION
from geartrain.domain.predictions.request_context import NO_REQUEST, NOTHING_SENT, ProtocolName
from geartrain.transport.records import LEFT, NO_GRPC, NOBODY, Origin, RequestRecord
from geartrain.transport.request_counts import RequestCounts


def ended(protocol: ProtocolName, status: int, grpc_status: int = NO_GRPC) -> RequestRecord:
    origin = Origin("POST", "/x", protocol, "", "", False, "", NOTHING_SENT)
    record = RequestRecord(NOBODY, origin, "", 0.0, NO_REQUEST, b"", NO_PREDICTION)
    record.status, record.grpc_status = status, grpc_status
    return record


class Following:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[RequestRecord] = []

    def add(self, request: RequestRecord) -> None:
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
