"""The outputs with which the items of a call end, encoded, and the ways to send them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, Final, Protocol

import msgspec

from geartrain.domain.tensors.tensor import pack
from geartrain.ipc.messages import Done, Inline
from geartrain.worker.calls.reports import OutputBytes, ReportSender
from geartrain.worker.values.call_files import CallFiles
from geartrain.worker.values.outputs import OutputEncoder

NO_FAILURES: Final[Mapping[int, BaseException]] = {}


class Outputs(Protocol):
    """The outputs of the items of a call, made of the value that `run()` has returned."""

    def end(self, reports: ReportSender, *, idle: bool) -> None:
        """Send the outputs, with which the items end. With `idle` the call is over."""


class SmallOutput(msgspec.Struct, gc=False, eq=False):
    """The output of a call of one item, which fits into the message: nearly all of them.

    `output` is JSON, `framing.INLINE_LIMIT` bytes at most.
    """

    output: bytes

    def end(self, reports: ReportSender, *, idle: bool) -> None:
        """Send the outputs."""
        reports.end_first(self.output, idle=idle)


class SmallOutputs:
    """Outputs of several items that fit into one message together."""

    __slots__ = ("_items", "_outputs")

    def __init__(self, items: Sequence[int], outputs: Sequence[bytes]) -> None:
        """`outputs` are JSON or packed, `framing.INLINE_LIMIT` bytes at most in all."""
        self._items = items
        self._outputs = outputs

    def end(self, reports: ReportSender, *, idle: bool) -> None:
        """Send the outputs."""
        ends = tuple(map(Done, self._items, map(Inline, self._outputs), repeat(reports.elapsed())))
        reports.send(ends, idle=idle)


class LargeOutputs:
    """Outputs of any size, with tensors or files, and the items that have none because they failed."""

    __slots__ = ("_failures", "_outputs")

    def __init__(self, outputs: Mapping[int, OutputBytes], failures: Mapping[int, BaseException] = NO_FAILURES) -> None:
        self._outputs = outputs
        self._failures = failures

    def end(self, reports: ReportSender, *, idle: bool) -> None:
        """Send the outputs."""
        reports.send_ends(self._outputs, self._failures, idle=idle)


def encode_output(encoder: OutputEncoder, value: Any, files: CallFiles, *, apart: bool) -> OutputBytes:
    """Encode one item's output, with its tensors `apart` from the JSON or within. Raises `OutputError`."""
    json, of_value, tensors = encoder.encode(value, files.new_folder, files.temporary_files_of, apart=apart)
    if tensors is None:
        return OutputBytes([json], len(json), packed=False, files=of_value)
    parts = pack(json, tensors)
    return OutputBytes(parts, sum(map(len, parts)), packed=True, files=of_value)
