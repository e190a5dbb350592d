"""Reports of one call: its logs, outputs and ends, several to a frame, and payloads the way that suits their size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from geartrain.authoring.scope import Emit
from geartrain.domain.predictions.calls import Failed, FileRef, ItemEnd, ItemEvent, Report, Succeeded
from geartrain.domain.predictions.events import Log, LogSource, Metric, MetricMode, Output
from geartrain.domain.tensors.tensor import Buffer, pack
from geartrain.ipc.framing import INLINE_LIMIT
from geartrain.ipc.messages import DroppedLogs, Handle, Predict, Reports
from geartrain.worker.channels.channel import Channel
from geartrain.worker.channels.slot import Slot
from geartrain.worker.errors import code_of, describe_error, format_error
from geartrain.worker.values.faults import OutputError
from geartrain.worker.values.mapped import MAPPED_FROM
from geartrain.worker.values.outputs import OutputEncoder

_SMALL: Final = 64  # bytes that a report takes in a frame, beside its texts and its output
_JSON: Final = "application/json"
_ROOM: Final = 1024  # bytes in a large output, for its head as the input of another model


_Shared = tuple[tuple[int, Handle], ...]
"""Type of `Reports.shared`."""


class OutputBytes(NamedTuple):
    """An output of one item as it travels: JSON, or that and its tensors in one piece, and the files it refers to."""

    parts: Sequence[Buffer]
    size: int  # bytes of all parts
    packed: bool = False
    files: tuple[FileRef, ...] = ()
    place: Handle | None = None  # of an output of another model that is passed on, without parts


class _Group(NamedTuple):
    """Reports that have to be in one frame, how many bytes they take there, and where their outputs lie in memory."""

    reports: tuple[Report, ...]
    size: int
    shared: _Shared = ()


class ReportSender(msgspec.Struct, gc=False, eq=False):
    """Sends the reports of the call that `message` has begun, on the channel of the calls.

    The call came when the performance counter was at `began`, in seconds.
    """

    message: Predict
    slot: Slot
    began: float

    def elapsed(self) -> float:
        """Return the seconds since the call came."""
        return time.perf_counter() - self.began

    def send(self, reports: tuple[Report, ...], *, idle: bool = False, shared: _Shared = ()) -> None:
        """Send reports that fit into one frame. With `idle` the call is over."""
        message = self.message
        self.slot.channel.send(Reports(message.slot, message.serial, reports, idle, shared))

    def send_soon(self, reports: tuple[Report, ...]) -> None:
        """Send reports as `Channel.send_soon` does."""
        message = self.message
        self.slot.channel.send_soon(Reports(message.slot, message.serial, reports))

    def emitter(self, item: int) -> Emit:
        """Create the sender of the metrics of an item's run; `item` may be `ALL`."""
        return partial(self._send_metric, item)

    def _send_metric(self, item: int, *metric: Any) -> None:
        self.send((ItemEvent(item, Metric(*metric)),))

    def metric_of_first(self, name: str, value: Any, mode: MetricMode) -> None:
        """Send a metric of the first item, which in most calls is the only one."""
        self.send((ItemEvent(0, Metric(name, value, mode)),))

    def end_first(self, output: bytes, *, idle: bool) -> None:
        """Send the output with which the first item ended, of `framing.INLINE_LIMIT` bytes at most."""
        end = ItemEnd(0, Succeeded(output, time.perf_counter() - self.began))
        message = self.message
        self.slot.channel.send(Reports(message.slot, message.serial, (end,), idle))

    def send_all(self, reports: Iterable[Report], *, idle: bool = False) -> None:
        """Send any number of reports without files, in as few frames as they fit into; none without `idle` is none."""
        groups = [_group(report) for report in reports]
        if groups or idle:
            self._send_groups(groups, idle=idle)

    def send_outputs(self, outputs: Mapping[int, OutputBytes], indexes: Mapping[int, int]) -> dict[int, Exception]:
        """Send a yielded value of some items; return the items whose output could not be written, and why not.

        `indexes`: the position of each output among those of its item.
        """
        with self.slot.channel.shield:  # the parent has to know of the outputs that are left in files and in memory
            groups, failures = self._place(
                outputs, lambda item, chunk, files: ItemEvent(item, Output(chunk, indexes[item]), files)
            )
            if groups:
                self._send_groups(groups)
        return failures

    def send_ends(
        self, outputs: Mapping[int, OutputBytes], failures: Mapping[int, BaseException], *, idle: bool
    ) -> None:
        """Send the outputs with which some items ended, and why others failed."""
        elapsed = self.elapsed()
        with self.slot.channel.shield:  # see `send_outputs`
            groups, unwritten = self._place(
                outputs, lambda item, output, files: ItemEnd(item, Succeeded(output, elapsed), files)
            )
            groups += map(_group, failure_reports({**failures, **unwritten}.items()))
            self._send_groups(groups, idle=idle)
            self.slot.files.close()

    def _place(
        self, outputs: Mapping[int, OutputBytes], report: Callable[[int, bytes, tuple[FileRef, ...]], Report]
    ) -> tuple[list[_Group], dict[int, Exception]]:
        """Put each output where it travels best; return the reports of the outputs, and the failures.

        `report` makes the report of an item's output, which is empty if it lies in memory or in a file.
        """
        shared = self._share(outputs)
        groups: list[_Group] = []
        together: list[Report] = []  # the memory is read, and freed, with one frame
        places: list[tuple[int, Handle]] = []
        failures: dict[int, Exception] = {}
        for item, output in outputs.items():
            files = output.files
            left = INLINE_LIMIT - sum(map(_size_of_file, files))
            try:
                if left < 0:
                    raise OutputError(
                        f"refers to {len(files)} files, too many for one message: return an archive of them"
                    )
                lying = output.place or shared.get(item)
                if lying is not None:
                    places.append((len(together), lying))
                    together.append(report(item, b"", files))
                elif output.size <= left:
                    groups.append(_group(report(item, b"".join(output.parts), files)))
                else:
                    path = self.slot.writer.to_file(output.parts).path
                    whole = FileRef(path, path, _JSON, is_output=True)
                    groups.append(_group(report(item, b"", (*files, whole))))
            except Exception as error:  # noqa: BLE001 - e.g. a disk that is full; it concerns this item only
                failures[item] = error
        return [_Group(tuple(together), 0, tuple(places)), *groups] if together else groups, failures

    def _share(self, outputs: Mapping[int, OutputBytes]) -> dict[int, Handle]:
        """Leave packed outputs in shared memory; return the items whose output is there."""
        chosen = {
            item: out
            for item, out in outputs.items()
            if out.packed and out.place is None and (not out.files or len(outputs) == 1)
        }
        if not chosen:
            return {}
        placed = self.slot.writer.share([output.parts for output in chosen.values()])
        return {item: payload for item, payload in zip(chosen, placed, strict=True) if payload is not None}

    def _send_groups(self, groups: Sequence[_Group], *, idle: bool = False) -> None:
        frames = list(_frames(groups))
        shared = groups[0].shared if groups else ()
        try:
            self.send(frames[0], idle=idle and len(frames) == 1, shared=shared)
        except BaseException:
            if any(place.path in self.slot.regions for _, place in shared):
                self.slot.writer.withdraw()
            raise
        for frame in frames[1:-1]:
            self.send(frame)
        if len(frames) > 1:
            self.send(frames[-1], idle=idle)
        self.slot.files.hand_over(
            [file.filename for group in groups for report in group.reports for file in report.files]
        )


def failure_reports(failures: Iterable[tuple[int, BaseException]]) -> list[Report]:
    """Return the reports of items that failed, each with the traceback in its logs."""
    reports: list[Report] = []
    for item, error in failures:
        log = Log("stderr", format_error(error))
        reports += (ItemEvent(item, log), ItemEnd(item, Failed(describe_error(error), code_of(error))))
    return reports


def _frames(groups: Sequence[_Group]) -> Iterator[tuple[Report, ...]]:
    """Put groups together into frames, at least one; it may be empty."""
    frame: list[Report] = []
    size = 0
    for group in groups:
        if frame and size + group.size > INLINE_LIMIT:
            yield tuple(frame)
            frame, size = [], 0
        frame += group.reports
        size += group.size
    yield tuple(frame)


def _group(report: Report) -> _Group:
    """Return a group of one report, and about as many bytes as it takes in a frame, at most."""
    size = sum(map(_size_of_file, report.files))
    match report:
        case ItemEvent(_, Output(data)) | ItemEnd(_, Succeeded(bytes() as data)):
            size += len(data)
        case ItemEvent(_, Log(_, text)) | ItemEnd(_, Failed(text)):
            size += _SMALL + 4 * len(text)
        case _:
            size += _SMALL
    return _Group((report,), size)


def _size_of_file(file: FileRef) -> int:
    texts = (file.filename, file.mime_type, file.token, *file.temporary_files)
    return _SMALL + sum([len(text.encode()) for text in texts])


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
            self.reports.send((ItemEvent(self.item, Log(source, data)),))

    def tell_dropped(self, control: Channel) -> None:
        """Tell the client, and the operator, how many lines were dropped because there were too many."""
        note = f"[geartrain: {self.dropped} more lines were dropped; a prediction may log {MAX_LOGS >> 20} MiB]\n"
        self.reports.send((ItemEvent(self.item, Log("stderr", note)),))
        control.send(DroppedLogs(self.dropped, int(self.reports.elapsed() * 1000)))


NO_FAILURES: Final[Mapping[int, BaseException]] = {}


class SmallOutput(msgspec.Struct, gc=False, eq=False):
    """The output of a call of one item, which fits into the message: nearly all of them.

    `output` is JSON, `framing.INLINE_LIMIT` bytes at most.
    """

    output: bytes

    def end(self, reports: ReportSender, *, idle: bool) -> None:
        """Send the output, with which the item ends. With `idle` the call is over."""
        reports.end_first(self.output, idle=idle)


class SmallOutputs:
    """Outputs of several items that fit into one message together."""

    __slots__ = ("_items", "_outputs")

    def __init__(self, items: Sequence[int], outputs: Sequence[bytes]) -> None:
        """`outputs` are JSON or packed, `framing.INLINE_LIMIT` bytes at most in all."""
        self._items = items
        self._outputs = outputs

    def end(self, reports: ReportSender, *, idle: bool) -> None:
        """Send the outputs, with which the items end. With `idle` the call is over."""
        elapsed = reports.elapsed()
        ends = [
            ItemEnd(item, Succeeded(output, elapsed)) for item, output in zip(self._items, self._outputs, strict=True)
        ]
        reports.send(tuple(ends), idle=idle)


class LargeOutputs:
    """Outputs of any size, with tensors or files, and the items that have none because they failed."""

    __slots__ = ("_failures", "_outputs")

    def __init__(self, outputs: Mapping[int, OutputBytes], failures: Mapping[int, BaseException] = NO_FAILURES) -> None:
        self._outputs = outputs
        self._failures = failures

    def end(self, reports: ReportSender, *, idle: bool) -> None:
        """Send the outputs, with which the items end. With `idle` the call is over."""
        reports.send_ends(self._outputs, self._failures, idle=idle)


Outputs = SmallOutput | SmallOutputs | LargeOutputs
"""The outputs of the items of a call, made of the value that `run()` has returned."""


def encode_output(encoder: OutputEncoder, value: Any, slot: Slot, *, apart: bool) -> OutputBytes:
    """Encode one item's output, with its tensors `apart` from the JSON or within. Raises `OutputError`."""
    files = slot.files
    json, of_value, tensors = encoder.encode(value, files.new_folder, files.temporary_files_of, apart=apart)
    if tensors is None:
        return OutputBytes([json], len(json), packed=False, files=of_value)
    if slot.answers is not None and not of_value:
        place = slot.answers.place_of(json, tensors)
        if place is not None:
            return OutputBytes((), place.size, packed=True, place=place)
    is_large = bool(tensors) and len(tensors[0].data) >= MAPPED_FROM
    parts = pack(json, tensors, room=_ROOM if is_large else 0)
    return OutputBytes(parts, sum(map(len, parts)), packed=True, files=of_value)
