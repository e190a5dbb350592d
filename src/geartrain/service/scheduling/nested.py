"""Predictions of models that other predictions call: who waits for whom.

No two wait for each other: a prediction that would wait for slots whose runs all wait, directly or not, for it or for
each other is found by `can_proceed`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from geartrain.domain.errors import Code
from geartrain.domain.predictions.calls import ModelCallPort
from geartrain.domain.predictions.lifecycle import ExecutionState, Status
from geartrain.domain.predictions.prediction import MAX_CALL_TEXT, CallRecord, CallRecords, Prediction
from geartrain.service.ports import FolderPort

if TYPE_CHECKING:
    from geartrain.service.scheduling.call import Call
    from geartrain.service.scheduling.execution import Execution
    from geartrain.service.scheduling.scheduler import Scheduler

HIDDEN_ERROR: Final = (
    "It failed (%s). Its error is shown to nobody, because the call was made for requests of several keys."
)
_WAITING: Final = frozenset({ExecutionState.PREPARING, ExecutionState.ADMITTED, ExecutionState.WAITING})
_removing: Final[set[asyncio.Task[None]]] = set()  # folders; a loop by itself would forget its tasks


@dataclasses.dataclass(frozen=True)
class Caller:
    """The prediction, or the setup, that calls a model.

    Attributes:
        model: its name.
        version: of the model.
        allowed: the names of the models that it may call; None for all.
        execution: None for a setup.
        call: the run that makes it; None for a setup.
    """

    model: str
    version: str = ""
    allowed: frozenset[str] | None = None
    execution: Execution | None = None
    call: Call | None = None


class EdgeCounts(msgspec.Struct):
    """Figures of the calls from one model to another: ended ones by outcome, and their seconds in all."""

    outcomes: dict[str, int] = msgspec.field(default_factory=dict)
    seconds: float = 0.0
    running: int = 0


class NestedRun:
    """A prediction that was made for a call of a model, from the call to the end."""

    __slots__ = (
        "began",
        "caller",
        "depth",
        "edge",
        "execution",
        "folder",
        "hides_errors",
        "is_over",
        "is_packed",
        "model",
        "names",
        "port",
        "records",
        "roots",
        "task",
    )

    def __init__(self, port: ModelCallPort, caller: Caller, edge: EdgeCounts) -> None:
        before = None if caller.execution is None else caller.execution.nested
        self.port = port
        self.caller = caller
        self.edge = edge
        self.model = port.model
        self.depth: int = 1 if before is None else before.depth + 1
        self.names: frozenset[str] = frozenset({caller.model}) if before is None else before.names | {caller.model}
        self.execution: Execution | None = None  # once it has been admitted
        self.task: asyncio.Task[None] | None = None  # waits for a model that is being loaded
        self.folder: ResultFolder | None = None  # of its output files
        self.is_over = False  # its caller has the answer
        self.is_packed = False  # its outputs are JSON and tensors in one piece
        self.began = time.perf_counter()
        self.roots: tuple[Prediction, ...] = ()  # the outermost predictions whose clients may ask for the call
        self.hides_errors = False  # they belong to several keys
        self.records: list[CallRecord] = []
        if caller.call is not None:
            self._begin_records(caller.call)

    def _begin_records(self, call: Call) -> None:
        """Add the call to those of each outermost prediction that it is made for.

        A batch calls for all of its members. Each member that was made for a call has a record of its own below that.
        """
        members = call.members
        roots = [roots_of(member) for member in members]
        if not any(roots):
            return
        self.roots = tuple({id(root): root for each in roots for root in each}.values())
        self.hides_errors = _have_several_keys(call, members)
        made: dict[str, CallRecord] = {}  # by parent
        at = members[0].scheduler.context.clock()
        for member, outermost in zip(members, roots, strict=True):
            before = member.nested
            parent, depth = ("", 1) if before is None else (member.prediction.id, before.depth + 1)
            record = made.get(parent)
            if record is None:
                record = made[parent] = CallRecord(parent, self.model[:MAX_CALL_TEXT], depth, at, shared=call.size)
            for root in outermost:
                if root.is_terminal:
                    continue
                if root.calls is None:
                    root.calls = CallRecords()
                root.calls.add(record)
        self.records = [*made.values()]

    def end_records(self, outcome: str, error: str) -> None:
        """Note the end: `succeeded`, or the code of an error, which is no reason of its own if it was canceled."""
        execution = self.caller.execution
        if execution is None:
            return
        at, status = execution.scheduler.context.clock(), Status.FAILED
        if outcome == Status.SUCCEEDED:
            status = Status.SUCCEEDED
        elif outcome == Code.RUN_CANCELED:
            status, error = Status.CANCELED, ""
        elif self.hides_errors:
            error = HIDDEN_ERROR % outcome
        for record in self.records:
            record.end(status, error, at)

    def cancel(self) -> None:
        """Cancel it, unless it has ended."""
        if self.task is not None:
            self.task.cancel()
        execution = self.execution
        if execution is not None and execution.state is not ExecutionState.OVER:
            execution.cancel()


def roots_of(execution: Execution) -> tuple[Prediction, ...]:
    """Return the outermost predictions of an execution whose clients may ask for its calls: others need no records."""
    if execution.nested is not None:
        return execution.nested.roots
    if execution.is_kept or execution.has_row or execution.shared is not None:
        return (execution.prediction,)
    return ()


def _have_several_keys(call: Call, members: Sequence[Execution]) -> bool:
    """Return True if an error of what the members of a call have called may quote the input of another key."""
    if any(member.nested is not None and member.nested.hides_errors for member in members):
        return True
    if call.size == 1:
        return False
    names = {member.prediction.principal for member in members if member.is_listed}
    return len(names) > 1 or (len(members) < call.size and names != {""})  # of those that have ended nothing is known


class ResultFolder:
    """The folder of the output files of a nested prediction: its caller reads them until its own end."""

    def __init__(self, folder: FolderPort) -> None:
        self._folder = folder
        self.made: Path | None = None

    def path(self) -> Path:
        """The directory; it exists."""
        self.made = self._folder.path()
        return self.made

    async def remove(self) -> None:
        """Remove it with all it holds."""
        await self._folder.remove()

    def files(self) -> tuple[str, ...]:
        """Return the paths of the files in it."""
        return () if self.made is None else tuple(str(path) for path in self.made.iterdir())


class NestedCalls:
    """The predictions that one run has called and waits for, and the files that they have given it."""

    __slots__ = ("_folders", "is_cut", "is_over", "live")

    def __init__(self) -> None:
        self.live: set[NestedRun] = set()
        self.is_over = False
        self.is_cut = False  # one that ran was canceled with the run
        self._folders: list[ResultFolder] = []

    def add(self, nested: NestedRun) -> None:
        """Note one that begins."""
        self.live.add(nested)

    def remove(self, nested: NestedRun) -> None:
        """Note that one has ended; its files stay until the run is over."""
        self.live.discard(nested)
        folder = nested.folder
        if folder is not None and self.is_over:  # its cancel took longer than the run
            remove_later(folder)
        elif folder is not None and folder.made is not None:
            self._folders.append(folder)

    def end(self) -> None:
        """Cancel those that run, and remove the files: the run is over, or is to stop."""
        self.is_over = True
        for nested in tuple(self.live):
            self.is_cut = True
            nested.cancel()
        folders, self._folders = self._folders, []
        for folder in folders:
            remove_later(folder)


def remove_later(folder: ResultFolder) -> None:
    """Remove a folder in a task."""
    if folder.made is not None:
        task = asyncio.ensure_future(folder.remove())
        _removing.add(task)
        task.add_done_callback(_removing.discard)


def time_left(caller: Caller) -> float | None:
    """Return the seconds that the caller's prediction has left; None for no limit."""
    return None if caller.execution is None else caller.execution.seconds_left


# liveness


def can_proceed(execution: Execution) -> bool:
    """True if an execution that waits in a queue will have a slot some time.

    That is so if the run of some slot of its model goes on: it waits for no other prediction, or each that it waits for
    goes on. The runs that go on are found step by step: first those that wait for none, then those that wait for them.
    """
    scheduler = execution.scheduler
    if any(not _awaited(call) for call in scheduler.running) or scheduler.has_free_slot:
        return True
    calls = _reached(scheduler)
    live: set[Call] = set()
    while True:
        found = {call for call in calls - live if all(_goes_on(each.execution, live) for each in _awaited(call))}
        if not found:
            return any(call in live for call in scheduler.running)
        live |= found


def _goes_on(execution: Execution | None, live: set[Call]) -> bool:
    if execution is None or execution.state not in _WAITING:
        call = None if execution is None else execution.call
        return call is None or call in live or not _awaited(call)
    scheduler = execution.scheduler
    return scheduler.has_free_slot or any(call in live or not _awaited(call) for call in scheduler.running)


def _reached(scheduler: Scheduler) -> set[Call]:
    """Return the runs that may keep the slots of a scheduler, directly or through those that they wait for."""
    found: set[Call] = set()
    schedulers: list[Scheduler] = [scheduler]
    seen: set[Scheduler] = set()
    while schedulers:
        one = schedulers.pop()
        if one in seen:
            continue
        seen.add(one)
        for call in one.running:
            found.add(call)
            schedulers += [each.execution.scheduler for each in _awaited(call) if each.execution is not None]
    return found


def _awaited(call: Call) -> set[NestedRun]:
    """Return the predictions that a run waits for."""
    return set() if call.nested is None else call.nested.live
