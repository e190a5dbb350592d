"""`weights` of `geartrain.yaml`: files that are fetched before a model is loaded."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from geartrain.domain.remote.reference import RemoteReference, is_remote, read_reference
from geartrain.project.config import kind_of
from geartrain.project.errors import ProjectError

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
