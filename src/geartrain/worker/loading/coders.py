"""Types that a `Coder` of the author's translates: how they are found in annotations and encoded in outputs."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

from geartrain.authoring.coders import Coder

_encoders: dict[type, Callable[[Any], Any]] = {}
"""For each class that an annotation has and a coder knows, the way to JSON."""


class CoderError(TypeError):
    """A coder cannot say whether it knows a class: its name, and what was raised."""


def coder_of(annotation: Any) -> Coder | None:
    """Return the coder that knows a type, and remember it for the values of this type.

    Raises `CoderError` when a coder's `factory` fails for a class. What is not a class, such as `list[int]` or a
    `Literal`, is more than many a factory expects: a failure means there that the coder does not know it.
    """
    for each in Coder.all():
        try:
            coder = each.factory(annotation)
        except Exception as error:
            if typing.get_origin(annotation) is None and isinstance(annotation, type):
                raise CoderError(
                    f"{each.__name__}.factory() fails for {annotation.__name__}: {type(error).__name__}: {error}"
                ) from error
            continue
        if coder is not None:
            origin = typing.get_origin(annotation) or annotation
            if isinstance(origin, type):
                _encoders[origin] = coder.encode
            return coder
    return None


def encoder_of(kind: type) -> Callable[[Any], Any] | None:
    """Return the JSON encoder for a class with a coder, or for one that derives from it."""
    if not _encoders:
        return None
    return next((_encoders[base] for base in kind.__mro__ if base in _encoders), None)


def decoder_of(annotation: Any, coder: Coder) -> Callable[[Any], Any]:
    """Return the decoder of a class's JSON objects; a value of the class, such as a default, stays as it is."""
    kind = typing.get_origin(annotation) or annotation

    def decode(value: Any) -> Any:
        return coder.decode(value) if isinstance(value, dict) and kind not in type(value).__mro__ else value

    return decode
