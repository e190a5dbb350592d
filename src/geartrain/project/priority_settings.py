"""`priority_levels:` in a `geartrain.yaml`: how many levels a model's queue has, and how requests of each may wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from geartrain.domain.predictions.priorities import MAX_LEVELS, Level, Priorities
from geartrain.project.durations import read_any_duration
from geartrain.project.errors import ProjectError


def read_levels(value: object) -> tuple[Level, ...]:
    """Return the levels, the highest first; raise ProjectError that names the key and the fix.

    A number makes so many levels without limits of their own; a list has keys for each of them.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = [None] * value if value <= MAX_LEVELS else value
    if not isinstance(value, list) or not 0 < len(value) <= MAX_LEVELS:
        raise ProjectError(
            f"`priority_levels` has to be a number of levels from 1 to {MAX_LEVELS}, or a list with keys such as "
            "`timeout: 2s` for each level"
        )
    return tuple(_level(f"priority_levels[{index}]", each) for index, each in enumerate(value, start=1))


def make_priorities(levels: tuple[Level, ...] | None, default: int | None) -> Priorities:
    """Combine the keys `priority_levels` and `default_priority`; raise ProjectError.

    The default of `default_priority` is the lowest level.
    """
    if levels is None:
        if default is not None:
            raise ProjectError(
                f"`default_priority` is {default}, and there are no levels; write `priority_levels`, too"
            )
        return Priorities()
    if default is not None and not 1 <= default <= len(levels):
        raise ProjectError(f"`default_priority` is {default}; write a level from 1, the highest, to {len(levels)}")
    return Priorities(levels, len(levels) if default is None else default)


def _level(place: str, value: object) -> Level:
    if value is None:
        return Level()
    if not isinstance(value, dict):
        raise ProjectError(f"`{place}` is {value!r}; write keys such as `timeout: 2s`, or leave it empty")
    for key in value:
        if key not in _READERS:
            raise ProjectError(f"there is no key `{place}.{key}`; there are {', '.join(_READERS)}")
    fields = {key: _field(place, key, found) for key, found in value.items() if found is not None}
    if fields.get("on_timeout") == "continue" and fields.get("timeout") is None:
        raise ProjectError(f"`{place}.on_timeout` is continue, and the level has no timeout; write `timeout`, too")
    return Level(**fields)


def _field(place: str, key: str, found: object) -> Any:
    read, fix = _READERS[key]
    try:
        return read(found)
    except ValueError:
        raise ProjectError(f"`{place}.{key}` is {found!r}; write {fix}") from None


def _natural(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError
    return value


def _limit(value: object) -> float | None:
    return read_any_duration(value) or None


def _action(value: object) -> object:
    if value not in {"reject", "continue"}:
        raise ValueError
    return value


_READERS: Final[dict[str, tuple[Callable[[Any], Any], str]]] = {
    "max_queue": (_natural, "a whole number, 0 for nobody"),
    "timeout": (_limit, "seconds, or a time such as 90s, 5m or 1h; 0 for no limit"),
    "on_timeout": (_action, "reject or continue"),
}
