"""The logs of a call, or of one of its items, up to a limit."""

from __future__ import annotations

from typing import Final

import msgspec

from geartrain.domain.predictions.events import LogSource
from geartrain.ipc.messages import DroppedLogs, Log
from geartrain.worker.calls.reports import ReportSender
from geartrain.worker.channels.channel import Channel

MAX_LOGS: Final = 32 * 1024**2  # characters that one prediction may log; more would fill the parent's memory


class CallLog(msgspec.Struct, gc=False, eq=False):
    """Reports what is written by the run of one item, or of all items of a call; `item` is an index or `ALL`."""

    reports: ReportSender
    item: int
    logged: int = 0  # characters
    dropped: int = 0  # lines

    def write(self, source: LogSource, data: str) -> None:
        """Report some text, unless there has been too much."""
        self.logged += len(data)
        if self.logged > MAX_LOGS:
            self.dropped += data.count("\n") or 1
        else:
            self.reports.send((Log(self.item, source, data),))

    def tell_dropped(self, control: Channel) -> None:
        """Tell the client, and the operator, how many lines were dropped because there were too many."""
        note = f"[geartrain: {self.dropped} more lines were dropped; a prediction may log {MAX_LOGS >> 20} MiB]\n"
        self.reports.send((Log(self.item, "stderr", note),))
        control.send(DroppedLogs(self.dropped, int(self.reports.elapsed() * 1000)))
