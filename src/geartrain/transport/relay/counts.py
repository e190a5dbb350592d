"""Number of requests handed over to other servers, with outcomes and response times."""

from __future__ import annotations

from enum import StrEnum

from geartrain.domain.predictions.statistics import DEFAULT_BUCKETS, Histogram


class RelayOutcome(StrEnum):
    """Outcome of a request that was handed over. Each has exactly one."""

    ANSWERED = "answered"  # the answer has been read to its end, whatever its status
    NOT_HERE = "not_here"  # the prediction does not run in the server that was asked
    UNREACHABLE = "unreachable"  # no answer has begun
    INCOMPLETE = "incomplete"  # the answer broke off, or was too large to be relayed
    LEFT = "left"  # the client had disconnected before the end of the answer


class RelayCounts:
    """Counts by outcome, and the seconds from the beginning of a request to the head of its answer, if one came."""

    def __init__(self, bounds: tuple[float, ...] = DEFAULT_BUCKETS.seconds) -> None:
        """`bounds`: the upper bounds of the buckets, in seconds."""
        self.outcomes: dict[str, int] = dict.fromkeys(map(str, RelayOutcome), 0)
        self.seconds = Histogram(bounds)

    def end(self, outcome: RelayOutcome) -> None:
        """Count a request that is over."""
        self.outcomes[outcome] += 1
