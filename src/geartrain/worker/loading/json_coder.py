"""`cog.coder.json_coder`. The import registers its coder, as the import of Cog's does."""

from __future__ import annotations

import typing
from typing import Any

from geartrain.authoring.coders import Coder


class JsonCoder(Coder):
    """Passes the values of a class that derives from dict on as they are."""

    @staticmethod
    def factory(tpe: Any) -> Coder | None:
        """Return a coder for a dict, or a class that derives from it."""
        origin = typing.get_origin(tpe) or tpe
        return JsonCoder(origin) if isinstance(origin, type) and issubclass(origin, dict) else None

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def encode(self, x: Any) -> dict[str, Any]:
        """Return the plain dict of a value."""
        return dict(x)

    def decode(self, x: dict[str, Any]) -> Any:
        """Return a value of the class."""
        return self._kind(x)
