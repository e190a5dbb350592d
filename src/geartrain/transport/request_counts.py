"""How many requests have ended, by protocol and status."""

from __future__ import annotations

from collections import Counter, defaultdict
from http import HTTPStatus
from typing import Final

from geartrain.transport.grpc.status import Status
from geartrain.transport.records import NO_GRPC, NOBODY, RequestObserver, RequestRecord

_OK: Final = HTTPStatus.OK  # to read it from its class takes several times as long


class RequestCounts:
    """Hears of requests that are over, and passes them on to another `RequestObserver`."""

    def __init__(self, following: RequestObserver = NOBODY) -> None:
        self._pass_on = following.add
        self._good: defaultdict[str, int] = defaultdict(int)  # nearly all; by protocol
        self._others: Counter[tuple[str, int, int]] = Counter()  # by protocol, status of HTTP and status of gRPC

    def add(self, request: RequestRecord) -> None:
        """Count it."""
        if request.status is _OK and request.grpc_status <= 0:
            self._good[request.origin.protocol] += 1
        else:
            self._others[request.origin.protocol, int(request.status), request.grpc_status] += 1
        self._pass_on(request)

    def all(self) -> dict[tuple[str, str], int]:
        """Return the counts by protocol and status: the name of gRPC's, otherwise the number of HTTP's."""
        counts: Counter[tuple[str, str]] = Counter()
        for protocol, count in self._good.items():
            counts[protocol, Status.OK.name if protocol == "grpc" else str(int(_OK))] += count
        for (protocol, status, grpc_status), count in self._others.items():
            counts[protocol, str(status) if grpc_status == NO_GRPC else Status(grpc_status).name] += count
        return dict(counts)
