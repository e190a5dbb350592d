"""The bytes of calls on the parent's side: inputs and outputs in messages, in files and in shared memory."""

from __future__ import annotations

import itertools
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from geartrain.bridge.resources import free_memory
from geartrain.domain.predictions import calls, events
from geartrain.domain.predictions.calls import CallInput, FileRef, ItemInput
from geartrain.domain.tensors.tensor import Buffer, Tensor, contents_at, pack, stack
from geartrain.ipc.framing import FrameError, frame
from geartrain.ipc.memory import HEADER, Region, kept_by_each, lease_of, place_head
from geartrain.ipc.messages import CallItem, Handle, Payload, Predict, Reports, encode
from geartrain.ipc.payload import PayloadWriter, RegionOpener

if TYPE_CHECKING:
    from geartrain.bridge.model_calls import WorkerModelCalls


class WorkerFolder:
    """The folder is made at once, and removed by `close` as soon as none of its output files is being read.

    A worker puts each output file into a folder of its own in `outputs`, so that the file can keep its name.
    """

    def __init__(self) -> None:
        self._path = Path(tempfile.mkdtemp(prefix="geartrain-"))
        self._outputs = self._path / "outputs"
        self._outputs.mkdir()
        self.outputs = str(self._outputs)  # the worker's folder of output files
        self._numbers = itertools.count(1)
        self._lent: set[str] = set()
        self._closed = False

    def new_input(self) -> Path:
        """A file for an input; it does not exist yet, and the worker deletes it when it has read it."""
        return self._path / f"input-{next(self._numbers)}.json"

    def lend(self, file: FileRef) -> None:
        """An output file is about to be read: it stays until it is discarded, also when the worker has died."""
        self._lent.add(file.filename)

    def discard(self, files: Iterable[FileRef]) -> None:
        """Remove output files: they have been read, or are not needed. Files outside of this folder are left alone."""
        for file in files:
            folder = Path(file.filename).parent
            if folder.parent == self._outputs and folder.name != "..":
                shutil.rmtree(folder, ignore_errors=True)
            self._lent.discard(file.filename)
        if self._closed and not self._lent:
            self._remove()

    def close(self, *, now: bool) -> None:
        """Remove everything, because the worker is gone: at once, or when no output file is being read any more."""
        self._closed = True
        if now or not self._lent:
            self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


def delete_temporary_files(paths: Iterable[str]) -> None:
    """Delete an author's temporary files and then their folders, in the order of a `FileRef`; never raises."""
    for name in paths:
        path = Path(name)
        with suppress(OSError):  # gone already, or a folder that holds something else
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()


_OF_FREE: Final = 0.9  # of the free memory, for a probe: other processes need some meanwhile
LONG_TEXT: Final = 262_144  # bytes of JSON that are handed over faster in shared memory than through a socket


def wants_memory(call: CallInput) -> bool:
    """Return True if shared memory is worth having for a call: its input is packed, or one long text."""
    items = call.items
    return any(item.tensors is not None for item in items) or (len(items) == 1 and len(items[0].input) > LONG_TEXT)


def parts_of(call: CallInput) -> Sequence[Buffer]:
    """Return the input of a call as it travels, in parts; see `Predict`."""
    if len(call.items) == 1:
        item = call.items[0]
        return (item.input,) if item.tensors is None else pack(item.input, item.tensors)
    json = b"[" + b",".join([item.input for item in call.items]) + b"]"
    if call.apart:
        return pack(json, _apart(call.items))
    return stack(json, [item.tensors for item in call.items if item.tensors is not None])


def _apart(items: Sequence[ItemInput]) -> list[Tensor]:
    """Return the tensors of all items, named after their item too."""
    return [
        Tensor(f"{index}:{tensor.name}", tensor.datatype, tensor.shape, tensor.data)
        for index, item in enumerate(items)
        for tensor in item.tensors or ()
    ]


def received_in_place(call: CallInput) -> Handle | None:
    """Return the input of a call as it travels where its body was received, None if it does not lie there.

    It lies there as long as the contents of its tensor are held.
    """
    tensors = call.items[0].tensors
    if len(call.items) != 1 or tensors is None or len(tensors) != 1 or lease_of(tensors[0].data) is None:
        return None
    head, contents = pack(call.items[0].input, tensors)
    return place_head(contents, bytes(head))


def predict_of(
    call: CallInput, place: tuple[int, int], payload: Payload, *, output_dir: str, regions: tuple[str, ...] = ()
) -> Predict:
    """Return the message that starts a call whose input is `payload`; `place` is its slot and its serial number."""
    items = call.items
    described = tuple(map(_item, items))
    slot, serial = place
    return Predict(
        call.id, slot, serial, described, payload, output_dir, regions, call.prefetch, _room() if call.probe else 0
    )


def _room() -> int:
    """Return the bytes that a probe may take; a very large number where the free memory is unknown."""
    return int(free_memory() * _OF_FREE) or sys.maxsize


def _item(item: ItemInput) -> CallItem:
    request = item.request
    return CallItem(
        item.id,
        item.rows,
        item.tensors is not None,
        item.context,
        item.parameters,
        request.request_id,
        request.traceparent,
        request.tracestate,
        item.pieces,
    )


logger = logging.getLogger(__name__)

_FOR_OUTPUTS: Final = 2  # regions: one output may be on its way to a client while the next one is written
MOST_FOR_OUTPUTS: Final = 4  # regions, where other models hold outputs


class SlotMemory:
    """The regions of one slot, for inputs and for outputs: made for the first call with tensors, and held as long."""

    def __init__(self, *, is_possible: bool) -> None:
        self.is_possible = is_possible  # true if the worker can open what is made here
        self.paths: tuple[str, ...] = ()  # of the regions for outputs
        self.is_to_trim = False  # the input of the call that runs takes more than is kept
        self.is_for_calls = False  # the worker calls other models, with inputs that may lie in its regions for outputs
        self.kept = kept_by_each(1)  # bytes of inputs that stay between two calls
        self._slots = 1  # of the worker
        self._inputs: list[Region] = []
        self._outputs: list[Region] = []

    def share(self, slots: int) -> None:
        """Note how many slots the worker has: what stays of their memory when it has been read is bounded."""
        self.kept, self._slots = kept_by_each(slots), slots

    def inputs(self) -> list[Region]:
        """Return the region for inputs; none if parent and worker cannot share any."""
        if not self._inputs and self.is_possible:
            try:
                self._inputs.append(Region.create())
                self._add_outputs(_FOR_OUTPUTS)
            except OSError as error:
                logger.info("tensors travel without shared memory: %s", error)
                self.close()
        return self._inputs

    def _add_outputs(self, count: int) -> None:
        self._outputs += [Region.create() for _ in range(count)]
        kept = kept_by_each(len(self._outputs) * self._slots)
        for region in self._outputs:
            region.kept = kept
        self.paths = tuple(region.path for region in self._outputs)

    @property
    def may_lend(self) -> int:
        """The number of regions for outputs that may be lent at a time: the worker writes to another one."""
        return max(len(self._outputs), _FOR_OUTPUTS) - 1

    def spare(self, lent: int) -> bool:
        """Make room for another output beside those that are lent and one to be written; return False if there is none.

        The worker knows of new memory from its next call on.
        """
        wanted = lent + 2
        if wanted > MOST_FOR_OUTPUTS or not self.is_possible:
            return False
        if wanted > len(self._outputs):
            try:
                self._add_outputs(wanted - len(self._outputs))
            except OSError:
                return False
        return True

    def output(self, path: str) -> Region:
        """Return the region for outputs of a path. Raises `OSError` if there is none."""
        for region in self._outputs:
            if region.path == path:
                return region
        msg = "an output is said to lie in shared memory, and there is none"
        raise OSError(msg)

    def trim(self) -> None:
        """Give the system the memory of an input beyond what is kept: its call is over."""
        self.is_to_trim = False
        for region in self._inputs:
            region.trim(self.kept)

    def close(self) -> None:
        """Close the memory, and make no more."""
        self.is_possible = False
        for region in (*self._inputs, *self._outputs):
            region.close()
        self._inputs, self._outputs, self.paths = [], [], ()


def new_probe() -> Region | None:
    """Return memory for a worker to try whether it can open the parent's; None where there is no such memory."""
    try:
        return Region.create()
    except OSError as error:
        logger.info("tensors travel without shared memory: %s", error)
        return None


_WORTHWHILE: Final = 64 * 1024  # bytes; what is smaller is copied faster
_NOTHING: Final = memoryview(b"")


class LentOutputs:
    """Reads the outputs of a slot, frame by frame: `read` each one, then `finish`.

    A large one is lent: it is read where it lies, and the region that holds it is free again when no view of it is
    left. Until then the worker writes to another region, and what it writes to the last one is copied, so that it never
    waits for a client that is slow to read.
    """

    def __init__(self, open_region: RegionOpener, memory: SlotMemory | None = None) -> None:
        """`memory` is that of the slot, if it may grow; without it there are two regions."""
        self._open = open_region
        self._memory = memory
        self._lent: set[Region] = set()
        self._frame = _NOTHING  # source of the lent outputs of the current frame
        self._copied: list[Region] = []  # the region of the frame, if it is not lent

    def read(self, place: Handle, *, may_lend: bool, is_input: bool = False) -> Buffer:
        """Return an output. Raises `OSError` if it is not where it is said to be.

        `is_input`: it is the packed input of another model, whose worker may read its first tensor where it lies.
        """
        begin, end = place.offset, place.offset + place.size
        region = self._open(place.path)
        contents = region.view(end)
        if may_lend and not self._frame and not self._copied and place.size >= _WORTHWHILE and self._may_lend:
            self._frame = self._lend(region, end, begin + contents_at(contents[begin:]) if is_input else 0)
        if may_lend and end <= len(self._frame):
            return self._frame[begin:end]
        if not self._frame:
            self._copied = [region]
        return bytes(contents[begin:])

    def finish(self) -> None:
        """Let the worker write again where nothing is lent. Harmless if nothing has been read."""
        self._frame = _NOTHING
        copied, self._copied = self._copied, []
        for region in copied:
            region.free()

    def _lend(self, region: Region, size: int, contents_at: int) -> memoryview:
        """Return all that lies in a region, which is `size` bytes or more; see `Lease` for `contents_at`."""
        self._lent.add(region)
        memory = region.memory(size)
        lent = region.lend(memory, lambda: self._take_back(region), contents_at=HEADER + contents_at)[HEADER:]
        lease = lease_of(lent)
        if lease is not None and self._memory is not None:
            lease.hold = self._hold
        return lent

    @property
    def _is_lent(self) -> bool:
        """True while a region is."""
        return bool(self._lent)

    @property
    def _may_lend(self) -> bool:
        return len(self._lent) < (1 if self._memory is None else self._memory.may_lend)

    def _hold(self) -> bool:
        """See `Lease.hold`."""
        return self._memory is not None and self._memory.spare(len(self._lent))

    def _take_back(self, region: Region) -> None:
        """Let the worker write there again. Called by any thread."""
        with suppress(OSError, ValueError):  # it may have been closed
            region.free()
        self._lent.discard(region)


class SlotFiles:
    """The inputs and outputs of one slot: where they travel, and the files among them."""

    def __init__(self, slot: int, folder: WorkerFolder, memory: SlotMemory) -> None:
        self._slot = slot  # its number
        self._memory = memory
        self.lent = LentOutputs(memory.output, memory)
        self.answers: WorkerModelCalls | None = None  # of other models, once the worker has called one
        self._writer = PayloadWriter(memory.inputs, folder.new_input)
        self._folder = folder
        self.temporary_files: list[str] = []  # the author's own, as `FileRef` has them

    def received(self, call: calls.CallInput) -> Handle | None:
        """Return the input of a call where its body was received, None if it does not lie there for the worker."""
        return received_in_place(call) if self._memory.is_possible else None

    def place(self, call: calls.CallInput, *, may_share: bool) -> Payload | None:
        """Put the input of a call where it travels best; None if it has to go into a file.

        `may_share`: it may go into shared memory. Then no call is on the slot, so the one before has read its input, or
        never will.
        """
        payload = self._writer.place(parts_of(call), may_share=may_share, is_stale=True)
        if type(payload) is Handle and payload.size > self._memory.kept:
            self._memory.is_to_trim = True  # when the call is over
        return payload

    def to_file(self, call: calls.CallInput) -> Payload:
        """Write the input of a call into a file. Raises `OSError`."""
        return self._writer.to_file(parts_of(call))

    def message(self, call: calls.CallInput, serial: int, payload: Payload, *, packed: bool) -> bytes:
        """Return the frame that tells the worker of a call, whose input is `payload`; `packed`: it has tensors."""
        packed = packed or self._memory.is_for_calls
        if packed:
            self._memory.inputs()  # makes the regions, those for outputs too
        regions = self._memory.paths if packed else ()
        return frame(
            encode(predict_of(call, (self._slot, serial), payload, output_dir=self._folder.outputs, regions=regions))
        )

    def read(self, message: Reports) -> list[calls.Report]:
        """Return the reports of a frame, with the outputs that lie in shared memory.

        A chunk of a stream is copied. Raises `FrameError` if an output is not where it is said to be.
        """
        found = list(message.reports)
        try:
            for index, place in message.shared:
                match found[index]:
                    case calls.ItemEvent(item, events.Output(_, position), files):
                        chunk = bytes(self._read(place, may_lend=False))
                        found[index] = calls.ItemEvent(item, events.Output(chunk, position), files)
                    case calls.ItemEnd(item, calls.Succeeded(_, predict_time), files):
                        output = self._read(place, may_lend=True)
                        found[index] = calls.ItemEnd(item, calls.Succeeded(output, predict_time), files)
        except OSError as error:
            raise FrameError(str(error)) from error
        self.lent.finish()
        return found

    def _read(self, place: Handle, *, may_lend: bool) -> Buffer:
        """Return an output: where an answer to the worker lies that it has passed on, or from the slot's memory."""
        passed = None if self.answers is None else self.answers.held(place)
        return self.lent.read(place, may_lend=may_lend) if passed is None else passed

    def read_input(self, place: Handle) -> Buffer:
        """Return an input for another model, which the worker has left in shared memory. Raises `OSError`."""
        data = self.lent.read(place, may_lend=True, is_input=True)
        self.lent.finish()
        return data

    def take(self, files: Iterable[FileRef]) -> None:
        """Take over the files of an output."""
        for file in files:
            self._folder.lend(file)
            self.temporary_files += file.temporary_files

    def discard(self, message: Reports) -> None:
        """Release the files and the memory of outputs without a reader."""
        for report in message.reports:
            self._folder.discard(report.files)
        for path in {place.path for _, place in message.shared}:
            with suppress(OSError):  # it is an answer to the worker that it has passed on
                self._memory.output(path).free()

    def delete_temporary_files(self) -> None:
        """Delete what a worker that has died can no longer delete."""
        temporary_files, self.temporary_files = self.temporary_files, []
        delete_temporary_files(temporary_files)
