"""How the outputs of a job get to the parent: with their files, through shared memory, in a frame, or in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from geartrain.bridge.framing import INLINE_LIMIT
from geartrain.bridge.messages import Message, SlotMemory
from geartrain.domain.tensors import Buffer, pack
from geartrain.worker.channel import Channel
from geartrain.worker.jobfiles import JobFiles
from geartrain.worker.outfiles import OutputFile
from geartrain.worker.outputs import NO_MORE, OutputEncoder
from geartrain.worker.parcels import SharedMemory


class Packet(NamedTuple):
    """An output as it travels: JSON, or that and its tensors in one piece, and the files that it refers to."""

    parts: Sequence[Buffer]
    size: int  # bytes of all parts
    packed: bool = False
    files: tuple[OutputFile, ...] = ()


class OutputSender:
    """Encodes and sends the outputs of one call of `run()`."""

    __slots__ = ("_channel", "_encoder", "_memory", "_shared", "files")

    def __init__(
        self,
        channel: Channel,
        encoder: OutputEncoder,
        files: JobFiles,
        *,
        memory: SlotMemory | None,
        shared: SharedMemory,
    ) -> None:
        """`files` are those of the call; `memory` names what `shared` opens, if parent and worker share some."""
        self._channel = channel
        self._encoder = encoder
        self.files = files
        self._memory = memory
        self._shared = shared

    def packet(self, value: Any, plain: bytes | None, *, apart: bool, chunk: bool = False) -> Packet:
        """As `encode`; `plain` is what `OutputEncoder.encode_plain` has made of the value, None if it takes more."""
        return self.encode(value, apart=apart, chunk=chunk) if plain is None else Packet([plain], len(plain))

    def encode(self, value: Any, *, apart: bool, chunk: bool = False) -> Packet:
        """Encode a value, with its tensors `apart` from the JSON or within; `chunk`: it is one of a stream.

        Raises `OutputError`.
        """
        files, encoder = self.files, self._encoder.chunks if chunk else self._encoder
        json, of_value, tensors = encoder.encode(value, files.new_folder, files.originals_of, apart=apart)
        if tensors is None:
            return Packet([json], len(json), packed=False, files=of_value)
        parts = self._encoder.heads.pack(tensors) if tensors and json is NO_MORE else pack(json, tensors)
        return Packet(parts, sum(map(len, parts)), packed=True, files=of_value)

    def send(self, packet: Packet, report: Callable[[bytes, int], Message], *, may_wait: bool = False) -> None:
        """Announce the files of an output, and send what `report` makes of it: of its text, or of its size in memory.

        It goes into a file of its own where it is too large for either. `may_wait` as of `Channel.send`.
        """
        parts = packet.parts
        if packet.files:
            self.files.announce(packet.files)
        if packet.packed and self.share(parts, lambda size: report(b"", size)):
            return
        if packet.size <= INLINE_LIMIT:
            self._channel.send(report(b"".join(parts), 0), may_wait=may_wait)
        else:
            self.files.spill(parts)
            self._channel.send(report(b"", 0), may_wait=may_wait)

    def share(self, parts: Sequence[Buffer], report: Callable[[int], Message]) -> bool:
        """Leave something in shared memory, and send what `report` makes of its size; False if that cannot be."""
        if self._memory is None:
            return False
        with self._channel.shield:  # once it is taken, the parent has to hear of it
            size = self._shared.leave(self._memory, parts)
            if not size:
                return False
            try:
                self._channel.send(report(size))
            except BaseException:
                self._shared.withdraw()
                raise
        return True
