"""Reading the options of a backend, which are what a `geartrain.yaml` has below `parameters`: plain YAML values.

Each function returns the value, None where there is none, and raises `BackendError` that names the option and says what
belongs there.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from geartrain.backends.interface import BackendError, TensorSpec
from geartrain.domain.tensors.tensor import DATATYPES, MAX_RANK, VARIABLE

Options = Mapping[str, Any]


def whole_number(options: Options, name: str, *, least: int = 1) -> int | None:
    """Return a whole number of at least `least`."""
    value = options.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise wrong(name, value, f"write a whole number of at least {least}")
    return value


def flag(options: Options, name: str) -> bool | None:
    """Return true or false."""
    value = options.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise wrong(name, value, "write true or false")


def text(options: Options, name: str, *, choices: Collection[str] = ()) -> str | None:
    """Return a text, one of `choices` if there are any."""
    value = options.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not value or (choices and value not in choices):
        raise wrong(name, value, f"write one of {', '.join(choices)}" if choices else "write a text")
    return value


def texts(options: Options, name: str, *, choices: Collection[str] = ()) -> tuple[str, ...] | None:
    """Return texts that differ, at least one, each of `choices` if there are any; one alone need not be a list."""
    value = options.get(name)
    if value is None:
        return None
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not items or not all(isinstance(item, str) and item for item in items):
        raise wrong(name, value, "write a list of texts")
    for item in items:
        if choices and item not in choices:
            raise wrong(name, item, f"write some of {', '.join(choices)}")
    if len(set(items)) != len(items):
        raise wrong(name, value, "write each of them once")
    return tuple(items)


def mapping(options: Options, name: str) -> dict[str, Any] | None:
    """Return keys and values."""
    value = options.get(name)
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise wrong(name, value, "write keys and values indented below it")
    return value


def wrong(name: str, value: object, fix: str) -> BackendError:
    """Return the error for an option with such a value."""
    return BackendError(f"`parameters.{name}` is {value!r}; {fix}")


_CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")


def usable_cpus(control_groups: Path = _CONTROL_GROUPS) -> int:
    """Return the number of processors that this process may use, at least 1; what OMP_NUM_THREADS says comes first.

    Libraries count the machine's, and run with too many threads in a container that has a share of them.
    """
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if said.isdecimal() and int(said) > 0:
        return int(said)
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(control_groups)
    return max(1, min(affinity, math.ceil(quota))) if quota else affinity


def _quota(root: Path) -> float | None:
    """Processors' worth of time that the container may use; None where nothing limits it."""
    try:
        quota, _, period = (root / "cpu.max").read_text(encoding="ascii").partition(" ")
    except OSError:
        try:  # the first version of control groups
            quota = (root / "cpu/cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text(encoding="ascii")
        except OSError:
            return None
    try:
        microseconds, of = int(quota), int(period)  # `max`, and -1, are no limit
    except ValueError:
        return None
    return microseconds / of if microseconds > 0 and of > 0 else None


_KEYS: Final = frozenset({"name", "datatype", "shape"})
_FORM: Final = "write a list with `name`, `datatype` and `shape` of each"


def declared_tensors(options: Options, option: str) -> tuple[TensorSpec, ...] | None:
    """Return the tensors that an option declares, None where it is not there; raise `BackendError` if it is wrong."""
    value = options.get(option)
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise wrong(option, value, _FORM)
    specs = tuple(_tensor(f"{option}[{index}]", item) for index, item in enumerate(value))
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        raise wrong(option, names, "give each tensor a name of its own")
    return specs


def _tensor(where: str, item: Any) -> TensorSpec:
    if not isinstance(item, dict) or set(item) != _KEYS:
        raise wrong(where, item, f"{_FORM}, and nothing else")
    name, datatype, shape = item["name"], item["datatype"], item["shape"]
    if not isinstance(name, str) or not name:
        raise wrong(f"{where}.name", name, "write a text")
    if datatype not in DATATYPES:
        raise wrong(f"{where}.datatype", datatype, f"write one of {', '.join(sorted(DATATYPES))}")
    if not isinstance(shape, list) or len(shape) > MAX_RANK or not all(map(_is_size, shape)):
        raise wrong(f"{where}.shape", shape, "write a list of sizes, -1 for one that is variable, such as [-1, 3]")
    return TensorSpec(name, datatype, tuple(shape))


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= VARIABLE


def example(option: str, specs: Sequence[TensorSpec]) -> str:
    """Return the lines that declare tensors, as they belong below `parameters:`."""
    lines = [f"  {option}:"]
    for spec in specs:
        lines += (f"    - name: {spec.name}", f"      datatype: {spec.datatype}", f"      shape: {list(spec.shape)}")
    return "\n".join(lines)


def undeclared(subject: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> BackendError:
    """Return the error for a file whose tensors are not declared, with lines to paste and correct."""
    lines = f"parameters:\n{example('inputs', inputs)}\n{example('outputs', outputs)}"
    return BackendError(f"{subject}; put this into geartrain.yaml, with your datatypes and shapes:\n{lines}")
