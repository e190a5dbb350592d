"""A request and a response of the Open Inference Protocol, independent of HTTP and gRPC."""

from __future__ import annotations

from typing import Final

import msgspec

from geartrain.domain.tensors.tensor import Tensor

Parameter = str | int | float | bool
Parameters = dict[str, Parameter]


LONGEST_TIMEOUT: Final = 366 * 24 * 3600.0  # seconds; timers take no more than some years


class SchedulePolicy(msgspec.Struct, frozen=True):
    """Scheduling that a client requests.

    `timeout`: seconds that queue and run may take together; None for no limit. `priority`: the number of a level, 1 is
    the highest; 0 for the model's default. `is_nested`: it is for another prediction, which holds a slot meanwhile, so
    it waits before all that clients ask for.
    """

    timeout: float | None = None
    priority: int = 0
    is_nested: bool = False

    def within(self, seconds: float) -> SchedulePolicy:
        """Return the policy with a timeout of at most so many seconds."""
        limits = (seconds, LONGEST_TIMEOUT) if self.timeout is None else (seconds, self.timeout, LONGEST_TIMEOUT)
        return msgspec.structs.replace(self, timeout=min(limits))


NO_SCHEDULE: Final = SchedulePolicy()  # of a request that says nothing of it


class InferRequest(msgspec.Struct, frozen=True):
    """Inference that a client requests. `outputs` None means all of them.

    `content_types` are the parameters of this name of single inputs, for models that take any tensors.
    """

    inputs: tuple[Tensor, ...]
    id: str = ""
    parameters: Parameters = {}
    outputs: tuple[str, ...] | None = None
    schedule: SchedulePolicy = NO_SCHEDULE
    content_types: dict[str, str] = {}


class InferResponse(msgspec.Struct, frozen=True):
    """Result for the client: the tensors, in the model's order, and the parameters that the run has recorded."""

    model_name: str
    model_version: str
    id: str
    outputs: tuple[Tensor, ...]
    parameters: Parameters = {}
