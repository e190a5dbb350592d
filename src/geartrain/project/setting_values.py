"""Values of `geartrain.yaml` with a structure of their own: devices, batching, priorities, weights.

The option `--devices` is read as the key `devices` is.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from geartrain.authoring.batches import AUTO as AUTO_COST
from geartrain.authoring.batches import MOST_SORT, cost_rule, sort_window
from geartrain.authoring.quantities import read_any_duration, read_size
from geartrain.domain.predictions.caching import NO_CACHE, CacheSettings
from geartrain.domain.predictions.priorities import MAX_LEVELS, Level, Priorities
from geartrain.domain.remote.reference import RemoteReference, is_remote, read_reference
from geartrain.project.config import kind_of
from geartrain.project.errors import ProjectError

_NAME: Final = re.compile(r"(?:cuda:)?(\d{1,4})|((?:GPU|MIG)-[\w./-]+)", re.ASCII)


class Devices(msgspec.Struct, frozen=True):
    """`auto`: GPUs where there are any; `cpu`: none; `named`: these, in this order.

    A name is `cuda:N`, the Nth of the GPUs that the server sees, from 0 on; or a UUID, beginning with `GPU-` or `MIG-`.
    """

    kind: Literal["auto", "cpu", "named"] = "auto"
    names: tuple[str, ...] = ()


AUTO: Final = Devices()


def read_devices(value: object) -> Devices:
    """Parse a YAML value, or the text of an option; raise ValueError."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not items:
        raise ValueError
    names = tuple(map(_name, items))
    if names in {("auto",), ("cpu",)}:
        return Devices("cpu" if names == ("cpu",) else "auto")
    if len(set(names)) != len(names) or not {"auto", "cpu"}.isdisjoint(names):
        raise ValueError
    return Devices("named", names)


def _name(item: object) -> str:
    text = str(item).strip() if isinstance(item, str | int) and not isinstance(item, bool) else ""
    if text in {"auto", "cpu"}:
        return text
    found = _NAME.fullmatch(text)
    if found is None:
        raise ValueError
    return found[2] or f"cuda:{int(found[1])}"


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
        if key not in _BATCHING_READERS:
            raise ProjectError(f"there is no key `batching.{key}`; there are {', '.join(_BATCHING_READERS)}")
    fields = {key: _batching_field(key, found) for key, found in value.items() if found is not None}
    largest = fields.get("max_size")
    for key in ("preferred_sizes",):
        sizes = fields.get(key)
        if largest is not None and sizes and sizes[-1] > largest:
            raise ProjectError(f"`batching.{key}` has {sizes[-1]}, which is more than `batching.max_size`, {largest}")
    return fields


def _batching_field(key: str, found: object) -> Any:
    read, fix = _BATCHING_READERS[key]
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


def _cost(value: object) -> str:
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) for name in names):
        raise TypeError
    return str(cost_rule(value))


def _max_cost(value: object) -> float | str:
    return AUTO_COST if value == AUTO_COST else _seconds(value)


def _pad(value: object) -> dict[str, int | float]:
    if not isinstance(value, dict):
        raise TypeError
    for name, fill in value.items():
        if not isinstance(name, str) or isinstance(fill, bool) or not isinstance(fill, int | float):
            raise TypeError
    return value


def _sort(value: object) -> int:
    window = sort_window(value)
    if not isinstance(window, int) or not (window == 0 or 1 < window <= MOST_SORT):
        raise ValueError
    return window


_BATCHING_READERS: Final[dict[str, tuple[Callable[[object], Any], str]]] = {
    "max_size": (_size, "a whole number of at least 1"),
    "max_delay": (_seconds, "a number of seconds, such as 0.002"),
    "learn_delay": (_flag, "true or false"),
    "preferred_sizes": (_sizes, "a list of sizes that grow, such as [8, 16]"),
    "pad_to": (_sizes, "a list of sizes that grow, such as [8, 16]"),
    "retry_singly": (_flag, "true or false"),
    "refuse_larger": (_flag, "true or false"),
    "gather": (_flag, "true or false"),
    "cost": (_cost, "the name of an input, a list of names, or an expression such as text + 4 * max_tokens"),
    "max_cost": (_max_cost, "a number, such as 16384, or auto"),
    "padded": (_flag, "true or false"),
    "sort": (_sort, "true, false, or the number of calls to sort among, such as 4"),
    "pad": (_pad, "inputs, each with the number that fills it up, such as {ids: 0}"),
}


def read_cache(value: object) -> CacheSettings:
    """Return the settings of a cache of answers; raise ProjectError that names the key below `cache` and the fix.

    `true` is one with the usual settings, `false` is none, whatever the model declares.
    """
    if isinstance(value, bool):
        return CacheSettings() if value else NO_CACHE
    if not isinstance(value, dict):
        raise ProjectError("`cache` has to be `true`, `false`, or keys such as `ttl: 1h` indented below it")
    for key in value:
        if key not in _CACHE_READERS:
            raise ProjectError(f"there is no key `cache.{key}`; there are {', '.join(_CACHE_READERS)}")
    fields: dict[str, Any] = {}
    for key, found in value.items():
        read, fix = _CACHE_READERS[key]
        try:
            fields[key] = read(found)
        except (TypeError, ValueError):
            raise ProjectError(f"`cache.{key}` is {found!r}; write {fix}") from None
    return CacheSettings(**fields)


def _life(value: object) -> float:
    seconds = read_any_duration(value)
    if seconds <= 0:
        raise ValueError
    return seconds


def _absolute(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    path = pathlib.Path(value).expanduser()
    if not path.is_absolute() or "\0" in value:
        raise ValueError
    return str(path)


_CACHE_READERS: Final[dict[str, tuple[Callable[[object], Any], str]]] = {
    "ttl": (_life, "seconds, or a time such as 90s, 5m or 1h"),
    "max_bytes": (lambda value: read_size(str(value)), "a size such as 256MiB"),
    "share": (_flag, "true or false"),
    "folder": (_absolute, "an absolute path, or one that begins with ~/"),
}


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
        if key not in _LEVEL_READERS:
            raise ProjectError(f"there is no key `{place}.{key}`; there are {', '.join(_LEVEL_READERS)}")
    fields = {key: _level_field(place, key, found) for key, found in value.items() if found is not None}
    if fields.get("on_timeout") == "continue" and fields.get("timeout") is None:
        raise ProjectError(f"`{place}.on_timeout` is continue, and the level has no timeout; write `timeout`, too")
    return Level(**fields)


def _level_field(place: str, key: str, found: object) -> Any:
    read, fix = _LEVEL_READERS[key]
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


_LEVEL_READERS: Final[dict[str, tuple[Callable[[Any], Any], str]]] = {
    "max_queue": (_natural, "a whole number, 0 for nobody"),
    "timeout": (_limit, "seconds, or a time such as 90s, 5m or 1h; 0 for no limit"),
    "on_timeout": (_action, "reject or continue"),
}


_KEYS: Final = ("source", "dest", "sha256")
_SHA256: Final = re.compile(r"[0-9A-Fa-f]{64}")


class Weights(msgspec.Struct, frozen=True):
    """Weights to fetch, and their place, relative to the folder of `geartrain.yaml`.

    Without a `dest` it stays in the cache, and the model gets its path as `weights` of `setup()`.
    """

    reference: RemoteReference
    dest: str = ""


def read_weights(value: object) -> tuple[Weights, ...]:
    """Read a list of entries with `source`, `dest` and `sha256`, or a map from `dest` to `source` or such an entry.

    Raises ProjectError, or ValueError for what is neither.
    """
    if isinstance(value, dict) and value:
        entries = [(f"weights.{dest}", _with_dest(dest, entry)) for dest, entry in value.items()]
    elif isinstance(value, list) and value:
        entries = [(f"weights[{index}]", entry) for index, entry in enumerate(value)]
    else:
        raise ValueError
    found = tuple(_entry(key, entry) for key, entry in entries)
    if sum(not each.dest for each in found) > 1:
        raise ProjectError(
            "`weights` has several entries without `dest`, and setup() gets one path; write a `dest` each"
        )
    places = [pathlib.PurePath(each.dest) for each in found if each.dest]
    for place in places:
        if places.count(place) > 1 or not set(place.parents).isdisjoint(places):
            raise ProjectError(f"`weights` puts something else at or above {place}, too; write another `dest`")
    return found


def _with_dest(dest: object, entry: object) -> object:
    if isinstance(entry, dict):
        return {**entry, "dest": dest}
    return {"source": entry, "dest": dest}


def _entry(key: str, entry: object) -> Weights:
    if isinstance(entry, str):
        entry = {"source": entry}
    if not isinstance(entry, dict):
        raise ProjectError(f"`{key}` is {kind_of(entry)}; write `source:` with a URL, and `dest:` below it")
    for name in entry:
        if name not in _KEYS:
            raise ProjectError(f"`{key}` has no key `{name}`; there are {', '.join(_KEYS)}")
    return Weights(_source(key, entry), _dest(key, entry))


def _source(key: str, entry: Mapping[Any, object]) -> RemoteReference:
    text, checksum = entry.get("source"), entry.get("sha256")
    if not isinstance(text, str) or not is_remote(text):
        raise ProjectError(f"`{key}.source` is {kind_of(text)}; write for example s3://bucket/model.safetensors")
    if checksum is not None and not (isinstance(checksum, str) and _SHA256.fullmatch(checksum)):
        raise ProjectError(f"`{key}.sha256` is {kind_of(checksum)}; write 64 hexadecimal digits, in quotes")
    if isinstance(checksum, str):
        text = f"{text}#sha256={checksum}"
    try:
        return read_reference(text)
    except ValueError as error:
        raise ProjectError(f"`{key}.source`: {error}") from None


def _dest(key: str, entry: Mapping[Any, object]) -> str:
    dest = entry.get("dest", "")
    path = pathlib.PurePath(dest) if isinstance(dest, str) else pathlib.PurePath("..")
    if path.is_absolute() or ".." in path.parts or (dest and not path.parts) or "\0" in str(path):
        raise ProjectError(f"`{key}.dest` is {kind_of(dest)}; write a path inside of the model's folder")
    return str(path) if path.parts else ""
