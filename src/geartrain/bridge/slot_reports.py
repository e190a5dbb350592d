"""Reports of a worker on a call, passed to the call's listener."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from geartrain.bridge.slot_files import SlotFiles
from geartrain.domain.errors import Code
from geartrain.domain.predictions import calls, events
from geartrain.domain.tensors.tensor import Buffer
from geartrain.ipc.messages import (
    Cancelled,
    Done,
    Failed,
    FileOutput,
    Inline,
    InMemory,
    Log,
    Metric,
    Output,
    Payload,
    Report,
)

logger = logging.getLogger(__name__)

_CANCELED = calls.Canceled()
_LISTENER_FAILED: Final = "the listener of a call has failed"


class NoListener:
    """Listens while no call runs."""

    def on_begin(self) -> None:
        """Do nothing: the call has no listener."""

    on_unstarted = on_idle = on_begin

    def on_output(self, _item: int, _chunk: bytes, _files: tuple[calls.FileRef, ...]) -> None:
        """Do nothing: the call has no listener."""

    def on_log(self, _item: int, _source: object, _data: str) -> None:
        """Do nothing: the call has no listener."""

    def on_metric(self, _item: int, _metric: object) -> None:
        """Do nothing: the call has no listener."""

    def on_end(self, _ends: object, *, idle: bool) -> None:
        """Do nothing: the call has no listener."""


def tell_reports(reports: Iterable[Report], listener: calls.CallListener, outputs: SlotFiles) -> list[calls.ItemEnd]:
    """Tell a listener of all reports but the ends, which are returned.

    `outputs` reads what does not lie in the messages.
    """
    ends: list[calls.ItemEnd] = []
    given: Buffer
    files: dict[int, list[calls.FileRef]] = {}  # by the item whose output follows
    in_memory = False
    own: tuple[calls.FileRef, ...]
    payload: Payload | None
    for report in reports:
        if type(report) is Output:
            payload = report.output
            if type(payload) is Inline and not files:  # nearly all of a stream
                chunk, own = payload.data, ()
            else:
                chunk = bytes(outputs.read(report.output, report.item, files, is_whole=False))
                in_memory = in_memory or type(payload) is InMemory
                own = tuple(files.pop(report.item, ()))
            try:
                listener.on_output(report.item, chunk, own)
            except Exception:
                logger.exception(_LISTENER_FAILED)
        elif type(report) is Done:
            payload = report.output
            if type(payload) is Inline and not files:  # nearly all
                given, own = payload.data, ()
            else:
                given = b"" if payload is None else outputs.read(payload, report.item, files, is_whole=True)
                in_memory = in_memory or type(payload) is InMemory
                own = tuple(files.pop(report.item, ()))
            outcome = calls.Succeeded(None if report.is_stream else given, report.predict_time)
            ends.append(calls.ItemEnd(report.item, outcome, own))
        else:
            _tell_other(report, listener, ends, files=files, outputs=outputs)
    if in_memory:
        outputs.lent.finish()
    return ends


def _tell_other(
    report: Report,
    listener: calls.CallListener,
    ends: list[calls.ItemEnd],
    *,
    files: dict[int, list[calls.FileRef]],
    outputs: SlotFiles,
) -> None:
    """Tell the listener of a report that has no output, or add it to the ends or to the files."""
    match report:
        case Log(item, source, data):
            tell(listener.on_log, item, source, data)
        case Metric(item, name, value, mode):
            tell(listener.on_metric, item, events.Metric(name, value, mode))
        case FileOutput():
            files.setdefault(report.item, []).append(outputs.take(report))
        case Failed(item, error, code):
            ends.append(calls.ItemEnd(item, calls.Failed(error, Code(code) if code else None)))
        case Cancelled(item):
            ends.append(calls.ItemEnd(item, _CANCELED))


def tell(listener: Callable[..., None], *arguments: object) -> None:
    """Call a listener. What it raises is a bug in the server: it is logged, and reaches neither the slot nor others."""
    try:
        listener(*arguments)
    except Exception:
        logger.exception(_LISTENER_FAILED)


def tell_begin(listener: calls.CallListener) -> None:
    """Tell a listener that its call begins; as `tell`."""
    try:
        listener.on_begin()
    except Exception:
        logger.exception(_LISTENER_FAILED)


def tell_end(listener: calls.CallListener, ends: Sequence[calls.ItemEnd], *, idle: bool) -> None:
    """Tell a listener that items have ended; as `tell`."""
    try:
        listener.on_end(ends, idle=idle)
    except Exception:
        logger.exception(_LISTENER_FAILED)
