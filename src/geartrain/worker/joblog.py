"""What one prediction, or a batch of them, writes to its logs, up to a limit."""

from __future__ import annotations

from typing import Final

from geartrain.bridge.messages import ALL, DroppedLogs, Log
from geartrain.domain.events import LogSource
from geartrain.worker.channel import Channel

MAX_LOGS: Final = 32 * 1024**2  # characters that one prediction may log; what is more would fill the parent's memory


class JobLog:
    """Sends the logs of one prediction, or those that a whole batch has in common."""

    __slots__ = ("_channel", "_item", "_logged", "dropped")

    def __init__(self, channel: Channel, item: int = ALL) -> None:
        self._channel = channel
        self._item = item
        self._logged = 0  # characters
        self.dropped = 0  # lines, and there is nothing to `end` if there are none

    def write(self, source: LogSource, data: str) -> None:
        """Send some text, unless there has been too much."""
        self._logged += len(data)
        if self._logged > MAX_LOGS:
            self.dropped += data.count("\n") or 1
        else:
            self._channel.send(Log(source, data, self._item))

    def end(self, control: Channel, elapsed: float) -> None:
        """Say how many lines were one too many, to the client and to the operator; `elapsed` in seconds."""
        if self.dropped:
            note = f"[geartrain: {self.dropped} more lines were dropped; a prediction may log {MAX_LOGS >> 20} MiB]\n"
            self._channel.send(Log("stderr", note, self._item))
            control.send(DroppedLogs(self.dropped, int(elapsed * 1000)))
