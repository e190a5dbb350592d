"""Form of the answer that a request allows."""

from __future__ import annotations

from typing import Final

import msgspec


class Terms(msgspec.Struct, frozen=True, gc=False):
    """Form of the answer that a request's head allows.

    Attributes:
        keeps_alive: true if the connection goes on after the answer.
        is_modern: true if the answer may come in chunks.
        is_head: true if only its head is wanted.
    """

    keeps_alive: bool = True
    is_modern: bool = True
    is_head: bool = False


PLAIN: Final = Terms()
"""Those of most requests."""


def terms_of(*, keeps_alive: bool, is_modern: bool, is_head: bool) -> Terms:
    """Return the terms; those of most requests are `PLAIN` itself."""
    return PLAIN if keeps_alive and is_modern and not is_head else Terms(keeps_alive, is_modern, is_head)
