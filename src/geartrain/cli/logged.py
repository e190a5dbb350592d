"""The steps of a server as records of the log, for a machine."""

from __future__ import annotations

from geartrain.server import ProgressLog


class LoggedView(ProgressLog):
    """Logs each step."""

    def withdraw(self) -> None:
        """Nothing of it moves."""
