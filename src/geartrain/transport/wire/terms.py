"""How a request wants to be answered."""

from __future__ import annotations

from typing import Final

import msgspec


class Terms(msgspec.Struct, frozen=True, gc=False):
    """What the head of a request says of its answer.

    Attributes:
        keeps_alive: whether the connection goes on after the answer.
        is_modern: whether the answer may come in chunks.
        is_head: whether only its head is wanted.
    """

    keeps_alive: bool = True
    is_modern: bool = True
    is_head: bool = False


PLAIN: Final = Terms()
"""Those of most requests."""


def terms_of(*, keeps_alive: bool, is_modern: bool, is_head: bool) -> Terms:
    """Return the terms; those of most requests are `PLAIN` itself."""
    return PLAIN if keeps_alive and is_modern and not is_head else Terms(keeps_alive, is_modern, is_head)
