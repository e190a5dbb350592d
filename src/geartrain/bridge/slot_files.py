"""The inputs and outputs of a slot that travel in files or in shared memory, on the parent's side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from geartrain.bridge.call_messages import parts_of, predict_of, received_in_place
from geartrain.bridge.folder import WorkerFolder, delete_temporary_files
from geartrain.bridge.lent_outputs import LentOutputs
from geartrain.bridge.slot_memory import SharedSlotMemory
from geartrain.domain.predictions import calls
from geartrain.domain.tensors.tensor import Buffer
from geartrain.ipc.framing import FrameError, frame
from geartrain.ipc.messages import Done, FileOutput, InFile, Inline, InputPayload, Output, Payload, Report, encode
from geartrain.ipc.payload import PayloadReader, PayloadWriter

_JSON: Final = "application/json"


class SlotFiles:
    """The inputs and outputs of one slot: where they travel, and the files among them."""

    def __init__(self, slot: int, folder: WorkerFolder, memory: SharedSlotMemory) -> None:
        self._slot = slot  # its number
        self._memory = memory
        self.reader = PayloadReader(memory.outputs)
        self.lent = LentOutputs(memory.outputs)
        self._writer = PayloadWriter(memory.inputs, folder.new_input)
        self._folder = folder
        self.temporary_files: list[str] = []  # the author's own, as `FileOutput` has them

    def place(self, call: calls.CallInput, *, may_share: bool) -> InputPayload | None:
        """Put the input of a call where it travels best, or leave it there; None if it has to go into a file.

        `may_share`: it may go into shared memory. Then no call is on the slot, so the one before has read its input, or
        never will.
        """
        if self._memory.is_possible:
            received = received_in_place(call)
            if received is not None:
                return received
        return self._writer.place(parts_of(call), may_share=may_share, is_stale=True)

    def to_file(self, call: calls.CallInput) -> Payload:
        """Write the input of a call into a file. Raises `OSError`."""
        return self._writer.to_file(parts_of(call))

    def message(self, call: calls.CallInput, serial: int, payload: InputPayload, *, packed: bool) -> bytes:
        """Return the frame that tells the worker of a call, whose input is `payload`; `packed`: it has tensors."""
        memory = self._memory.message() if packed else None
        return frame(
            encode(predict_of(call, (self._slot, serial), payload, output_dir=self._folder.outputs, memory=memory))
        )

    def read(self, payload: Payload, item: int, files: dict[int, list[calls.FileRef]], *, is_whole: bool) -> Buffer:
        """Return an output; one in a file is empty, and the file is among those of its item.

        `is_whole`: it is no chunk of a stream, and is not kept for longer than a client takes to read it.
        """
        if isinstance(payload, Inline):
            return payload.data
        if isinstance(payload, InFile):
            reference = calls.FileRef(payload.path, payload.path, _JSON, is_output=True)
            self._folder.lend(reference)
            files.setdefault(item, []).append(reference)
            return b""
        try:
            return self.lent.read(payload, may_lend=is_whole)
        except OSError as error:
            raise FrameError(str(error)) from error

    def take(self, report: FileOutput) -> calls.FileRef:
        """Take over a file of an output."""
        reference = calls.FileRef(report.token, report.filename, report.mime_type)
        self._folder.lend(reference)
        self.temporary_files += report.temporary_files
        return reference

    def discard(self, reports: Iterable[Report]) -> None:
        """Release the files and the memory of outputs without a reader."""
        for report in reports:
            if isinstance(report, FileOutput):
                self._folder.discard((calls.FileRef(report.token, report.filename, report.mime_type),))
            elif isinstance(report, (Output, Done)) and report.output is not None:
                if isinstance(report.output, InFile):
                    self._folder.discard((calls.FileRef("", report.output.path, _JSON, is_output=True),))
                else:
                    self.reader.discard(report.output)

    def delete_temporary_files(self) -> None:
        """Delete what a worker that has died can no longer delete."""
        temporary_files, self.temporary_files = self.temporary_files, []
        delete_temporary_files(temporary_files)
