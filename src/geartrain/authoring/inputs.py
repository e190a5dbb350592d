"""`Input()`: what the author says about a parameter of `run()` beyond its type."""

from __future__ import annotations

from collections.abc import Iterable
from types import EllipsisType
from typing import Any, Final, final


@final
class _Missing:
    """The type of `MISSING`, so that None can be a default of its own."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()


class FieldInfo:
    """Result of `Input()`: exactly its arguments; `default` is `MISSING` without one.

    Whether it makes sense for the parameter's type is checked when the model is loaded.
    """

    __slots__ = (
        "accept",
        "choices",
        "default",
        "deprecated",
        "description",
        "ge",
        "le",
        "max_length",
        "min_length",
        "regex",
    )

    default: Any
    description: str | None
    ge: float | None
    le: float | None
    min_length: int | None
    max_length: int | None
    regex: str | None
    choices: tuple[Any, ...] | None
    deprecated: bool
    accept: str | None

    def __init__(self, **settings: Any) -> None:
        for name in FieldInfo.__slots__:
            setattr(self, name, settings.get(name))

    def __repr__(self) -> str:
        said = ((name, getattr(self, name)) for name in FieldInfo.__slots__)
        return f"Input({', '.join(f'{name}={value!r}' for name, value in said if value is not None)})"


def Input(  # noqa: N802, PLR0913 - reads like a type in a signature, and every setting is a keyword of its own
    default: Any = MISSING,
    *,
    description: str | None = None,
    ge: float | None = None,
    le: float | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    regex: str | None = None,
    choices: Iterable[Any] | None = None,
    deprecated: bool | None = None,
    accept: str | None = None,
) -> Any:
    """Describe a parameter of `run()`, as its default or inside `Annotated`.

    `ge`/`le` bound numbers; `min_length`/`max_length` (characters) and `regex` (an unanchored search) hold for
    strings, and `choices` lists the values that are allowed: JSON values or members of an Enum. `accept` names media
    types or file extensions, as in HTML, for those who build a form. Without `default` a client must send the value,
    unless the parameter is Optional: then it is None. A mutable default is copied for every prediction.
    """
    return FieldInfo(
        default=MISSING if isinstance(default, EllipsisType) else default,
        description=description,
        ge=ge,
        le=le,
        min_length=min_length,
        max_length=max_length,
        regex=regex,
        choices=None if choices is None else tuple(choices),
        deprecated=bool(deprecated),
        accept=accept,
    )
