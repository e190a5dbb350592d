"""`Coder`: how a class of the author's own becomes JSON and is made of it again, as in Cog."""

from __future__ import annotations

from typing import Any


class Coder:
    """Gives a type of the author's own a form in JSON, where it is an input or an output.

    A subclass has `factory`, which returns an instance for a type that it knows and None for any other, `encode` and
    `decode`. A subclass is registered when it is defined. The first one that was registered and knows a type is used.
    Source: `cog.coder` of Cog 0.23.
    """

    _coders: dict[type[Coder], None] = {}  # noqa: RUF012 - one registry for all, an ordered set

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Coder.register(cls)

    @staticmethod
    def all() -> tuple[type[Coder], ...]:
        """Return the coders in the order in which they were registered."""
        return tuple(Coder._coders)

    @staticmethod
    def register(coder: type[Coder]) -> None:
        """Make a subclass known. Repeating it is harmless."""
        Coder._coders.setdefault(coder)

    @staticmethod
    def lookup(tpe: Any) -> Coder | None:
        """Return a coder for a type, or None."""
        return next((coder for each in Coder._coders if (coder := each.factory(tpe)) is not None), None)

    @staticmethod
    def factory(tpe: Any) -> Coder | None:  # noqa: ARG004 - the subclass needs it
        """Return a coder for a type that this class knows, and None for any other."""
        return None

    def encode(self, x: Any) -> Any:
        """Return the form of a value in JSON: a dict. Raises `NotImplementedError` where a subclass lacks it."""
        raise NotImplementedError(f"{type(self).__name__} has no encode()")

    def decode(self, x: Any) -> Any:
        """Return the value of a form in JSON. Raises `NotImplementedError` where a subclass lacks it."""
        raise NotImplementedError(f"{type(self).__name__} has no decode()")
