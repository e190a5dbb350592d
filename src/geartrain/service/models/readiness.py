"""True if the server as a whole can take requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from geartrain.service.models.entry import ModelEntry


class Readiness:
    """Ready are all models that were to be loaded, in a server that is not about to stop."""

    def __init__(self, entries: Mapping[str, ModelEntry]) -> None:
        """`entries`: the models by name, those of the catalogue itself."""
        self._entries = entries
        self.is_leaving = False  # the server is about to stop

    def leave(self) -> None:
        """Let the server no longer be ready, though it still serves: it is about to stop."""
        self.is_leaving = True

    @property
    def is_ready(self) -> bool:
        """True if requests should be sent to the server."""
        return not self.is_leaving and all(entry.is_ready for entry in self._entries.values() if entry.is_wanted)

    def reasons(self) -> list[str]:
        """Return the reasons for which the server is not ready, a sentence each; empty if it is."""
        found = ["The server is about to stop."] if self.is_leaving else []
        for name in sorted(self._entries):
            entry = self._entries[name]
            if entry.is_wanted and not entry.is_ready:
                found.append(entry.describe_state())
        return found
