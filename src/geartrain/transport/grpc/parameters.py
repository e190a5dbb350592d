"""Parameters: named values besides the tensors, of a request, an input, an output or a response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from geartrain.apis.infer_parameters import take_parameters
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.inference import NO_SCHEDULE, Parameter, Parameters, SchedulePolicy
from geartrain.transport.grpc import open_inference_pb2 as pb

EMPTY_FINAL: Final = "triton_enable_empty_final_response"
FINAL: Final = "triton_final_response"

_BINARY: Final = "binary_data_output"  # means something over HTTP only
_LEAST, _MOST, _MOST_UNSIGNED = -(2**63), 2**63 - 1, 2**64 - 1


class Wishes(NamedTuple):
    """The parameters of a request: those for the model, and those for the server."""

    parameters: Parameters
    schedule: SchedulePolicy
    empty_final: bool  # a stream shall end with a response that holds nothing


NO_WISHES: Final = Wishes({}, NO_SCHEDULE, empty_final=False)


def read_wishes(given: Mapping[str, pb.InferParameter]) -> Wishes:
    """Read the parameters of a request; raise `INVALID_INPUT` for one that is reserved or of the wrong type."""
    values = {name: read(name, each) for name, each in given.items()}
    empty_final = values.pop(EMPTY_FINAL, False)
    if not isinstance(empty_final, bool):
        raise _invalid(f"parameter '{EMPTY_FINAL}' must be a boolean")
    binary = {_BINARY: values.pop(_BINARY)} if _BINARY in values else {}
    taken = take_parameters(values)
    return Wishes({**taken.own, **binary}, taken.schedule, empty_final=empty_final)


def read(name: str, given: pb.InferParameter) -> Parameter:
    """Return the value of a parameter; raise `INVALID_INPUT` if it has none."""
    kind = given.WhichOneof("parameter_choice")
    if kind is None:
        raise _invalid(f"parameter '{name}' has no value")
    value: Parameter = getattr(given, kind)
    return value


def write(to: pb.InferParameter, value: Parameter) -> None:
    """Put a value into a parameter. An integer beyond 64 bits becomes a string of digits."""
    if isinstance(value, bool):
        to.bool_param = value
    elif isinstance(value, float):
        to.double_param = value
    elif isinstance(value, str):
        to.string_param = value.encode(errors="replace").decode()
    elif _LEAST <= value <= _MOST:
        to.int64_param = value
    elif 0 <= value <= _MOST_UNSIGNED:
        to.uint64_param = value
    else:
        to.string_param = str(value)


def _invalid(message: str) -> GeartrainError:
    return GeartrainError(Code.INVALID_INPUT, message)
