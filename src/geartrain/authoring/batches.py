"""Batches in an author's code: their limits, and their failed requests."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final, SupportsIndex, final

Reason = str | BaseException

DEFAULT_MAX_SIZE: Final = 32
DEFAULT_SORT: Final = 2  # calls among which `sort=True` puts similar requests together
MOST_SORT: Final = 64
AUTO: Final = "auto"
"""In place of `max_cost`: found when a worker starts."""

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
    for name in ("learn_delay", "retry_singly", "refuse_larger", "gather", "padded"):
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
    _check_pad(settings.get("pad", {}))
    _check_cost(settings)


def cost_rule(cost: Any) -> Any:
    """Return the rule of `cost`: of a list of inputs their sum, and anything else as it is."""
    if not isinstance(cost, (list, tuple)):
        return cost
    return " + ".join(name if str(name).isidentifier() else repr(name) for name in cost)


def sort_window(sort: Any) -> Any:
    """Return the number of calls of `sort`, 0 for none, and anything that it cannot be as it is."""
    return (DEFAULT_SORT if sort else 0) if isinstance(sort, bool) else sort


def _check_cost(settings: Mapping[str, Any]) -> None:
    cost, max_cost, sort = (settings.get(name) for name in ("cost", "max_cost", "sort"))
    if cost is not None and not isinstance(cost_rule(cost), str):
        raise TypeError(f'cost={cost!r}: it is the name of an input, such as "text", a list of names, or an expression')
    _check_max_cost(max_cost)
    if sort is not None and not isinstance(sort, int):
        raise TypeError(f"sort={sort!r}: it is True or False, or the number of calls to sort among, such as 4")
    if sort is not None and not (isinstance(sort, bool) or sort == 0 or 1 < sort <= MOST_SORT):
        raise ValueError(f"sort={sort!r}: the number of calls to sort among is 2 to {MOST_SORT}")
    pad = settings.get("pad")
    if not cost and not pad:  # inputs in pad are a cost by themselves
        found = next((name for name in ("max_cost", "sort", "padded") if settings.get(name)), None)
        if found is not None:
            raise ValueError(f"{found}={settings[found]!r} needs the cost of a request: add cost=, an input")
    elif not (max_cost or sort or pad):
        raise ValueError(f"cost={cost!r} changes nothing by itself: add max_cost=, sort=True, or both")


def _check_max_cost(max_cost: Any) -> None:
    if max_cost is None or max_cost == AUTO:
        return
    if isinstance(max_cost, bool) or not isinstance(max_cost, (int, float)):
        raise TypeError(f'max_cost={max_cost!r}: it is a number, such as 16_384, or "auto"')
    if not (isfinite(max_cost) and max_cost >= 0):
        raise ValueError(f"max_cost={max_cost!r}: it is a number above 0, or 0 for no limit")


def _check_pad(pad: Any) -> None:
    if not isinstance(pad, Mapping):
        raise TypeError(f'pad={pad!r}: it is a dict of inputs, each with what fills it up, such as {{"ids": 0}}')
    for name, fill in pad.items():
        if not isinstance(name, str) or isinstance(fill, bool) or not isinstance(fill, (int, float)):
            raise TypeError(f'pad={dict(pad)!r}: {name!r} is filled up with a number, as in {{"ids": 0}}')


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
