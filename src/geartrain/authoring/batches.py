"""Batches in an author's code: their limits, and their failed requests."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final, SupportsIndex, final

Reason = str | BaseException

DEFAULT_MAX_SIZE: Final = 32
_SIZES: Final = ("preferred_sizes", "pad_to")


@final
class ItemError(Exception):
    """Raise it in a batched `run()` to fail some of its requests; the others are run again without them.

    `ItemError(2, "no face in this picture")`, or `ItemError({2: "no face", 5: "too dark"})`: each index is a place in
    the lists, or a row of the tensors, that `run()` was given. What stands for the reason is what the client reads; an
    exception is told with its type, as if it had been raised for that request alone.
    """

    def __init__(self, index: SupportsIndex | Mapping[Any, Reason], reason: Reason = "the model refused it") -> None:
        """Raises `TypeError` for an index that is no whole number."""
        reasons = index if isinstance(index, Mapping) else {index: reason}
        for place in reasons:
            if isinstance(place, bool) or not isinstance(place, SupportsIndex):
                raise TypeError(f"ItemError takes the index of a request, or a dict of them, not {place!r}")
        self.reasons: dict[int, Reason] = {place.__index__(): why for place, why in reasons.items()}
        super().__init__("; ".join(f"request {place}: {why}" for place, why in self.reasons.items()))


def check_settings(settings: Mapping[str, Any]) -> None:
    """Check the settings of a batch policy by name, those of `@batched(...)`; each may be missing.

    Raises `TypeError` or `ValueError`, whose message begins with the setting and its value: `max_size=0: …`.
    """
    max_size = settings.get("max_size", DEFAULT_MAX_SIZE)
    _check_whole(max_size, "max_size")
    max_delay = settings.get("max_delay", 0.0)
    if isinstance(max_delay, bool) or not isinstance(max_delay, (int, float)):
        raise TypeError(f"max_delay={max_delay!r}: it is a number of seconds, such as 0.005")
    if not isfinite(max_delay) or max_delay < 0:
        raise ValueError(f"max_delay={max_delay!r}: it is a number of seconds, 0 or more")
    for name in _SIZES:
        _check_sizes(settings.get(name, ()), name)
    for name in ("learn_delay", "retry_singly", "refuse_larger", "gather"):
        if not isinstance(settings.get(name, False), bool):
            raise TypeError(f"{name}={settings[name]!r}: it is True or False")
    preferred, pad_to = (settings.get(name, ()) for name in _SIZES)
    if preferred and preferred[-1] > max_size:
        raise ValueError(f"preferred_sizes={_shown(preferred)}: {preferred[-1]} is above max_size={max_size}")
    if pad_to and pad_to[-1] < max_size:
        raise ValueError(
            f"pad_to={_shown(pad_to)}: no size of it holds max_size={max_size} rows; add {max_size} to it,"
            f" or set max_size to {pad_to[-1]}"
        )


def _check_whole(value: Any, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r}: it is a whole number, such as {DEFAULT_MAX_SIZE}")
    if value < 1:
        raise ValueError(f"{name}={value}: it is 1 or more")


def _check_sizes(sizes: Any, name: str) -> None:
    if not isinstance(sizes, (tuple, list)):
        raise TypeError(f"{name}={sizes!r}: it is a tuple of sizes, such as (8, 16, 32)")
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"{name}={_shown(sizes)}: {size!r} is no whole number")
        if size < 1:
            raise ValueError(f"{name}={_shown(sizes)}: each size is 1 or more")
    if sorted(set(sizes)) != list(sizes):
        raise ValueError(f"{name}={_shown(sizes)}: name each size once, the smallest first")


def _shown(sizes: Any) -> str:
    return repr(tuple(sizes))
