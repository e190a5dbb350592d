"""Whether only one client asks, and waits for each answer before it asks again."""

from __future__ import annotations

from typing import Final

_ENOUGH: Final = 3  # calls that ended while no other waited or ran, before a single client is assumed
_DOUBT: Final = 64  # calls for which several clients are assumed, once they have been seen
_CHECK_EVERY: Final = 8  # calls


class Demand:
    """An estimate that learns from the end of each call.

    A call of a single client may be awaited on the spot (`bridge.wakeup`). The server sees no other client meanwhile,
    so several clients could look like one. Therefore every eighth call is taken for one of several clients, and several
    clients that were seen once are assumed for 64 calls.
    """

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls = 0  # in a row that ended while no other waited or ran; negative while several clients are assumed

    def end_call(self, *, alone: bool) -> None:
        """Note the end of a call. `alone`: it was of one prediction, and no other one was waiting or running."""
        self._calls = self._calls + 1 if alone else _ENOUGH - _DOUBT

    def is_single(self) -> bool:
        """Return whether a call that begins now is likely to be the only one until it ends."""
        return self._calls >= _ENOUGH and self._calls % _CHECK_EVERY != 0
