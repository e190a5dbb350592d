"""The parameters of an infer request: which of them are the model's, and which the server's own. Pure.

Source: "Parameters" of the Open Inference Protocol; observed Triton, section 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.inference import NO_SCHEDULE, Parameters, SchedulePolicy
from geartrain.domain.rendering import clip
from geartrain.domain.tensors.tensor import Buffer

_RESERVED: Final = "triton_"
_INT64: Final = range(-(2**63), 2**64)
_MOST: Final = 2**64 - 1
_MICROSECONDS: Final = 1_000_000


class TakenParameters(msgspec.Struct, frozen=True):
    """`own` reach the model, `schedule` is for the scheduler. `binary`: of all outputs."""

    own: Parameters = {}
    schedule: SchedulePolicy = NO_SCHEDULE
    binary: bool = False


NO_PARAMETERS: Final = TakenParameters()

# Parameters of a fixed type. Those of sequences reach the model, the others are for the server.
_TAKEN: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "timeout": ((int,), "an integer: microseconds"),
    "priority": ((int,), "an integer: 1 is the highest level"),
    "sequence_id": ((int, str), "an integer or a string"),
    "sequence_start": ((bool,), "true or false"),
    "sequence_end": ((bool,), "true or false"),
    "binary_data_output": ((bool,), "true or false"),
}
_OF_SEQUENCES: Final = frozenset({"sequence_id", "sequence_start", "sequence_end"})


def take_parameters(given: Mapping[str, Any]) -> TakenParameters:
    """Sort the parameters of a request; raise `INVALID_INPUT`, which names the one that is wrong.

    A parameter that is null is absent.
    """
    own: Parameters = {}
    taken: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        wanted = _TAKEN.get(name)
        if wanted is None:
            check_parameter(name, value)
            own[name] = value
        elif type(value) not in wanted[0] or (type(value) is int and not 0 <= value <= _MOST):
            raise _invalid(f"parameter '{name}' has an invalid value: it takes {wanted[1]}, not negative, of 64 bits")
        elif name in _OF_SEQUENCES:
            own[name] = value
        else:
            taken[name] = value
    return TakenParameters(own, _schedule(taken), taken.get("binary_data_output", False))


class _Timeout(msgspec.Struct):
    timeout: Any = None


class _Timed(msgspec.Struct):
    parameters: _Timeout | None = None


_decode_timed = msgspec.json.Decoder(_Timed).decode


def timeout_of(body: Buffer, json_size: int | None) -> float | None:
    """Return the seconds of the parameter `timeout` of a request that cannot be read yet; None for no limit.

    `json_size`: the bytes of the JSON at the beginning of the body, None for all of it. What is wrong with the request
    is told when it is read.
    """
    try:
        timed = _decode_timed(memoryview(body)[:json_size])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    value = None if timed.parameters is None else timed.parameters.timeout
    return value / _MICROSECONDS if type(value) is int and 0 < value in _INT64 else None


def _schedule(taken: Mapping[str, Any]) -> SchedulePolicy:
    timeout, priority = taken.get("timeout", 0) / _MICROSECONDS, taken.get("priority", 0)
    schedule = SchedulePolicy(priority=priority) if priority else NO_SCHEDULE
    return schedule.within(timeout) if timeout else schedule


def check_parameter(name: str, value: object) -> None:
    """Raise `INVALID_INPUT` unless a parameter of this name and value may be given to a model."""
    if name.startswith(_RESERVED):
        name = clip(name)
        raise _invalid(f"parameter '{name}' is reserved: names that begin with '{_RESERVED}' are not for models")
    if not isinstance(value, (str, int, float, bool)):
        msg = f"parameter '{clip(name)}' has invalid type. It should be either 'int', 'float', 'bool', or 'string'."
        raise _invalid(msg)
    if type(value) is int and value not in _INT64:
        raise _invalid(f"parameter '{clip(name)}' is out of range: an integer has at most 64 bits")


def _invalid(message: str) -> GeartrainError:
    return GeartrainError(Code.INVALID_INPUT, message)
