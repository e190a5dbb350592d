"""Header fields that hold lists: `Accept` (RFC 9110) and `Prefer` (RFC 7240)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

_MEMBER: Final = re.compile(rb'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+', re.DOTALL)
_PARAMETER: Final = re.compile(rb'(?:[^;"]|"(?:[^"\\]|\\.)*"?)+', re.DOTALL)


def _members(values: Iterable[bytes]) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield each member of a list, in lower case, with its parameters. Commas in quoted strings do not separate."""
    for value in values:
        for member in _MEMBER.findall(value.lower()):
            first, *parameters = [part.strip() for part in _PARAMETER.findall(member)] or [b""]
            if first:
                yield first, parameters


def prefers(values: Iterable[bytes], preference: bytes) -> bool:
    """Tell whether the values of `Prefer` have a preference. Its own value and its parameters are ignored."""
    return any(first.partition(b"=")[0].rstrip() == preference for first, _ in _members(values))


def accepted_weight(values: Iterable[bytes], media_type: bytes) -> float:
    """Return the weight that the values of `Accept` give to a media type: that of the most specific range, or 0."""
    whole = media_type.partition(b"/")[0] + b"/*"
    weights = {name: _weight(parameters) for name, parameters in _members(values)}
    return next((weights[name] for name in (media_type, whole, b"*/*") if name in weights), 0.0)


def _weight(parameters: list[bytes]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.rstrip() == b"q":
            try:
                weight = float(value)
            except ValueError:
                return 0.0
            return weight if 0 <= weight <= 1 else 0.0
    return 1.0
