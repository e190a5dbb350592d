"""Tells the parent how the predictions of a batch ended, in as few messages as they fit into."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from geartrain.bridge.arena import WORTHWHILE
from geartrain.bridge.framing import INLINE_LIMIT
from geartrain.bridge.messages import Ended, ItemEnd
from geartrain.worker.channel import Channel
from geartrain.worker.job import describe_error
from geartrain.worker.sending import OutputSender, Packet


class EndSender:
    """Sends the ends of one batch, each of which names its item by the index."""

    def __init__(self, batch_id: str, channel: Channel) -> None:
        self._id = batch_id
        self._channel = channel
        self._began = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds since the batch came."""
        return time.perf_counter() - self._began

    def send_small(self, items: Sequence[int], outputs: Sequence[bytes], *, last: bool) -> None:
        """Send the outputs of some items, which fit into one message."""
        self._channel.send(self._ended(tuple(map(ItemEnd, items, outputs)), last=last))

    def send_outputs(
        self, packets: Mapping[int, Packet], others: Sequence[ItemEnd], sender: OutputSender, *, last: bool
    ) -> None:
        """Send the outputs of some items, and how others ended; `last`: the batch is over."""
        left = dict(packets)
        shared = [(item, packet) for item, packet in packets.items() if packet.packed and not packet.files]
        if sum([packet.size for _, packet in shared]) > WORTHWHILE:
            is_all = len(shared) == len(packets) and not others
            ends = tuple([ItemEnd(item, b"", shared=packet.size) for item, packet in shared])
            parts = [part for _, packet in shared for part in packet.parts]
            if sender.share(parts, lambda _: self._ended(ends, last=last and is_all)):
                if is_all:
                    return
                for item, _ in shared:
                    del left[item]
        alone = [item for item, packet in left.items() if packet.files or packet.size > INLINE_LIMIT]
        is_all = len(alone) == len(left) > 0 and not others
        for item in alone:
            self._send_alone(item, left.pop(item), sender, last=last and is_all and item == alone[-1])
        if not is_all:
            self.send([*others, *[ItemEnd(item, b"".join(packet.parts)) for item, packet in left.items()]], last=last)

    def send(self, ends: Sequence[ItemEnd], *, last: bool, is_stream: bool = False) -> None:
        """Send how some items ended; those of a stream have no output. With the `last` there may be none at all."""
        if not ends and not last:
            return
        frames = list(_frames(ends))
        for frame in frames[:-1]:
            self._channel.send(self._ended(frame, is_stream=is_stream))
        self._channel.send(self._ended(frames[-1], last=last, is_stream=is_stream))

    def _send_alone(self, item: int, packet: Packet, sender: OutputSender, *, last: bool) -> None:
        def report(output: bytes, size: int) -> Ended:
            return self._ended((ItemEnd(item, output, shared=size),), last=last)

        try:
            sender.send(packet, report)
        except Exception as error:  # noqa: BLE001 - e.g. a disk that is full
            self.send([ItemEnd(item, error=describe_error(error))], last=last)

    def _ended(self, ends: tuple[ItemEnd, ...], *, last: bool = False, is_stream: bool = False) -> Ended:
        return Ended(self._id, ends, self.elapsed, is_stream=is_stream, last=last)


def _frames(ends: Sequence[ItemEnd]) -> Iterator[tuple[ItemEnd, ...]]:
    """Cut ends into pieces that each fit into a frame; one piece at least, which may be empty."""
    if sum(map(_size, ends)) <= INLINE_LIMIT:
        yield tuple(ends)
        return
    frame: list[ItemEnd] = []
    size = 0
    for end in ends:
        own = _size(end)
        if frame and size + own > INLINE_LIMIT:
            yield tuple(frame)
            frame, size = [], 0
        frame.append(end)
        size += own
    yield tuple(frame)


def _size(end: ItemEnd) -> int:
    """About as many bytes as this takes in a frame."""
    return len(end.output or b"") + 4 * len(end.error or "")
