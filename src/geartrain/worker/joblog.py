"""What one prediction, or a batch of them, writes to its logs, up to a limit."""

from __future__ import annotations

from typing import Final

from geartrain.bridge.messages import ALL, DroppedLogs, Log
from geartrain.domain.events import LogSource
from geartrain.worker.channel import Channel

MAX_LOGS: Final = 32 * 1024**2  # characters that one prediction may log; what is more would fill the parent's memory


class JobLog:
    """Sends the logs of one prediction, or those that a whole batch has in common."""

    __slots__ = ("_channel", "_dropped", "_item", "_logged")

    def __init__(self, channel: Channel, item: int = ALL) -> None:
        self._channel = channel
        self._item = item
        self._logged = 0  # characters
        self._dropped = 0  # lines

    def write(self, source: LogSource, data: str) -> None:
        """Send some text, unless there has been too much."""
        self._logged += len(data)
        if self._logged > MAX_LOGS:
            self._dropped += data.count("\n") or 1
        else:
            self._channel.send(Log(source, data, self._item))

    def end(self, control: Channel, elapsed: float) -> None:
        """Say how many lines were one too many, to the client and to the operator; `elapsed` in seconds."""
        if self._dropped:
            note = f"[geartrain: {self._dropped} more lines were dropped; a prediction may log {MAX_LOGS >> 20} MiB]\n"
            self._channel.send(Log("stderr", note, self._item))
            control.send(DroppedLogs(self._dropped, int(elapsed * 1000)))
