"""Running totals of a model version, as the statistics extension counts them."""

from __future__ import annotations

import msgspec


class Duration(msgspec.Struct):
    """Number of occurrences of an event, and their total time. Times in nanoseconds."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        """Count one more."""
        self.count += 1
        self.ns += ns


class BatchStatistics(msgspec.Struct, frozen=True):
    """The calls of the model with so many rows at once."""

    size: int
    compute_infer: Duration
    compute_output: Duration


class ModelStatistics(msgspec.Struct):
    """The counts of one model version. `last_inference` in milliseconds since the epoch, 0 for never."""

    name: str
    version: str
    last_inference: int = 0
    inference_count: int = 0  # those that ended well, each row of a batch for itself
    execution_count: int = 0  # calls of the model, also those that failed
    success: Duration = msgspec.field(default_factory=Duration)
    fail: Duration = msgspec.field(default_factory=Duration)
    queue: Duration = msgspec.field(default_factory=Duration)
    compute_input: Duration = msgspec.field(default_factory=Duration)
    compute_infer: Duration = msgspec.field(default_factory=Duration)
    compute_output: Duration = msgspec.field(default_factory=Duration)
    batches: tuple[BatchStatistics, ...] = ()  # of a model that takes batches, by their sizes
