"""Reading the options of a backend, which are what a `geartrain.yaml` has below `parameters`: plain YAML values.

Each function returns the value, None where there is none, and raises `BackendError` that names the option and says what
belongs there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from geartrain.backends.interface import BackendError

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
