"""A request and a response of the Open Inference Protocol, without a word of HTTP or gRPC."""

from __future__ import annotations

import msgspec

from geartrain.domain.tensors import Tensor

Parameter = str | int | float | bool
Parameters = dict[str, Parameter]


class InferRequest(msgspec.Struct, frozen=True):
    """What a client wants of a model. `outputs` None means all of them. `timeout` in seconds is that of the queue."""

    inputs: tuple[Tensor, ...]
    id: str = ""
    parameters: Parameters = {}
    outputs: tuple[str, ...] | None = None
    timeout: float | None = None


class InferResponse(msgspec.Struct, frozen=True):
    """What it gets: the tensors, in the model's order, and the parameters that the run has recorded."""

    model_name: str
    model_version: str
    id: str
    outputs: tuple[Tensor, ...]
    parameters: Parameters = {}
