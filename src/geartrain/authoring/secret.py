"""A string that does not show itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

MASK = "**********"


@final
class Secret:
    """A secret input. `str`, `repr` and formatting show a mask; `get_secret_value()` gives the text."""

    __slots__ = ("_value",)

    def __init__(self, secret_value: str | None = None) -> None:
        self._value = secret_value

    @property
    def secret_value(self) -> str | None:
        """The secret text."""
        return self._value

    def get_secret_value(self) -> str | None:
        """Return the secret text."""
        return self._value

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Let pydantic models have fields of this type, made of a string."""
        make = {"type": "no-info", "function": cls}
        made = {"type": "function-after", "function": make, "schema": handler(str)}
        return {"type": "union", "choices": [{"type": "is-instance", "cls": cls}, made]}

    def __str__(self) -> str:
        return "" if self._value is None else MASK

    def __repr__(self) -> str:
        return f"Secret({self})"

    def __eq__(self, other: object) -> bool:
        return self._value == other._value if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash((Secret, self._value))
