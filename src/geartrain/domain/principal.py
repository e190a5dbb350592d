"""The client that a prediction belongs to: the holder of one key, or the subject of a token."""

from __future__ import annotations

from typing import Final

import msgspec


class Principal(msgspec.Struct, frozen=True, gc=False):
    """The client of a request.

    Attributes:
        name: the same for each request with the same key or subject; empty on a server without keys.
        sees_all: True for the scope `admin`, and on a server without keys.
    """

    name: str = ""
    sees_all: bool = False

    def may_see(self, name: str) -> bool:
        """Return True if it may see, join and cancel a prediction of the principal `name`.

        A prediction without a name was made on a server without keys, and belongs to every client.
        """
        return self.sees_all or not name or name == self.name


ANYONE: Final = Principal(sees_all=True)
"""Each client of a server without keys."""
