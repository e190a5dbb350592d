"""Tensors that an operator declares in the `parameters` of a `geartrain.yaml`, for files that do not say theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from geartrain.backends.interface import BackendError, TensorSpec
from geartrain.backends.options import Options, wrong
from geartrain.domain.tensors.tensor import DATATYPES, MAX_RANK, VARIABLE

_KEYS: Final = frozenset({"name", "datatype", "shape"})
_FORM: Final = "write a list with `name`, `datatype` and `shape` of each"


def tensors(options: Options, option: str) -> tuple[TensorSpec, ...] | None:
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


def missing(subject: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> BackendError:
    """Return the error for a file whose tensors are not declared, with lines to paste and correct."""
    lines = f"parameters:\n{example('inputs', inputs)}\n{example('outputs', outputs)}"
    return BackendError(f"{subject}; put this into geartrain.yaml, with your datatypes and shapes:\n{lines}")
