"""`batching:` in a `geartrain.yaml`: the fields of `BatchPolicy` that an operator sets, or `off`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from geartrain.project.errors import ProjectError

OFF: Final[Mapping[str, Any]] = {
    "max_size": 1,
    "max_delay": 0.0,
    "preferred_sizes": (),
    "refuse_larger": False,
}
"""Every request by itself, of however many rows."""


def read_batching(value: object) -> Mapping[str, Any]:
    """Return the fields that are set; raise ProjectError that names the key below `batching` and the fix.

    `off` means batches of one request.
    """
    if value is False or value == "off":  # YAML takes `off` for false
        return OFF
    if not isinstance(value, dict):
        raise ProjectError("`batching` has to be `off`, or keys such as `max_size: 64` indented below it")
    for key in value:
        if key not in _READERS:
            raise ProjectError(f"there is no key `batching.{key}`; there are {', '.join(_READERS)}")
    fields = {key: _field(key, found) for key, found in value.items() if found is not None}
    largest = fields.get("max_size")
    for key in ("preferred_sizes",):
        sizes = fields.get(key)
        if largest is not None and sizes and sizes[-1] > largest:
            raise ProjectError(f"`batching.{key}` has {sizes[-1]}, which is more than `batching.max_size`, {largest}")
    return fields


def _field(key: str, found: object) -> Any:
    read, fix = _READERS[key]
    try:
        return read(found)
    except (TypeError, ValueError):
        raise ProjectError(f"`batching.{key}` is {found!r}; write {fix}") from None


def _size(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError
    return value


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
        raise ValueError
    return float(value)


def _sizes(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError
    sizes = tuple(map(_size, value))
    if list(sizes) != sorted(set(sizes)):
        raise ValueError
    return sizes


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


_READERS: Final[dict[str, tuple[Callable[[object], Any], str]]] = {
    "max_size": (_size, "a whole number of at least 1"),
    "max_delay": (_seconds, "a number of seconds, such as 0.002"),
    "learn_delay": (_flag, "true or false"),
    "preferred_sizes": (_sizes, "a list of sizes that grow, such as [8, 16]"),
    "pad_to": (_sizes, "a list of sizes that grow, such as [8, 16]"),
    "retry_singly": (_flag, "true or false"),
    "refuse_larger": (_flag, "true or false"),
    "gather": (_flag, "true or false"),
}
