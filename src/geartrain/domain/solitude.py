"""Whether only one client asks, who waits for each answer before it asks again: its runs may be awaited on the spot."""

from __future__ import annotations

from typing import Final

_SURE: Final = 3  # runs
_DOUBT: Final = 64  # runs, once there have been others
_LOOK_UP: Final = 8  # runs


class Solitude:
    """Learns from each end of a run.

    Whoever awaits a run on the spot sees nobody else meanwhile, so that many clients could look like one after the
    other. Therefore some runs are not awaited, and others that were seen once are expected for long.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs = 0  # at whose ends there was nobody else, in a row

    def has_run(self, *, alone: bool) -> None:
        """A run has ended; `alone`: it was of one request, and no other one was waiting or running."""
        self._runs = self._runs + 1 if alone else _SURE - _DOUBT

    def is_likely(self) -> bool:
        """Whether the run that begins is likely to be the only one until it ends."""
        return self._runs >= _SURE and self._runs % _LOOK_UP != 0
