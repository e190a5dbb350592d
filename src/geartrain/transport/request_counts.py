"""Number of requests that have ended, by protocol and status."""

from __future__ import annotations

import asyncio
from collections import Counter
from http import HTTPStatus
from operator import attrgetter
from types import TracebackType
from typing import Final, Self

from geartrain.transport.grpc.status import Status
from geartrain.transport.records import NO_GRPC, NOBODY, RequestRecord, RequestsObserver

_kind: Final = attrgetter("origin.protocol", "status", "grpc_status")
_TOGETHER: Final = 64  # requests that are counted, and have their lines made, at once: the loop does nothing else
_INTERVAL: Final = 0.05  # seconds in which requests are gathered


class RequestCounts:
    """Hears of each request that is over (`RequestObserver`), counts many at a time, and passes them on.

    Used as a context on the event loop that ends the requests: at its end it has passed on all of them.
    """

    def __init__(self, following: RequestsObserver = NOBODY) -> None:
        self._following = following
        self._gathered: list[RequestRecord] = []
        self._is_timed = False  # true if the gathered requests are settled at the end of the interval
        self._counts: Counter[tuple[str, int, int]] = Counter()  # by protocol, status of HTTP and status of gRPC

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.settle()

    def add(self, request: RequestRecord) -> None:
        """Take a request that is over."""
        gathered = self._gathered
        gathered.append(request)
        count = len(gathered)
        if count >= _TOGETHER:
            self.settle()
        elif count == 1 and not self._is_timed:
            self._is_timed = True
            asyncio.get_running_loop().call_later(_INTERVAL, self._on_interval)

    def _on_interval(self) -> None:
        self._is_timed = False
        self.settle()

    def settle(self) -> None:
        """Count what has been gathered, and pass it on."""
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        self._counts.update(map(_kind, gathered))
        self._following.add_all(gathered)

    def all(self) -> dict[tuple[str, str], int]:
        """Return the counts by protocol and status: the name of gRPC's, otherwise the number of HTTP's."""
        self.settle()
        counts: Counter[tuple[str, str]] = Counter()
        for (protocol, status, grpc_status), count in self._counts.items():
            if protocol == "grpc" and status == HTTPStatus.OK:
                counts[protocol, Status(max(grpc_status, 0)).name] += count
            else:
                counts[protocol, str(int(status)) if grpc_status == NO_GRPC else Status(grpc_status).name] += count
        return dict(counts)
