"""A batch in the child: several predictions in one call of `run()`, or in several where the first one failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from geartrain.bridge.messages import ItemEnd, Log, PredictBatch
from geartrain.domain.batching import Batching
from geartrain.domain.signature import Signature
from geartrain.domain.tensors import Buffer
from geartrain.worker.batch_arguments import BatchBinder
from geartrain.worker.batch_ends import EndSender
from geartrain.worker.batch_outputs import Splitter
from geartrain.worker.channel import Channel
from geartrain.worker.introspect import Parameter
from geartrain.worker.job import JobTools, clip, describe_error, format_error
from geartrain.worker.parcels import read_input, remove_input
from geartrain.worker.sending import OutputSender, Packet
from geartrain.worker.tensor_outputs import tensor_types


class BatchTools:
    """What all batches of a worker share, beside the tools of every job."""

    def __init__(self, parameters: Sequence[Parameter], signature: Signature, batching: Batching) -> None:
        """`parameters` and `signature` are those of one request."""
        output = signature.output
        self.binder = BatchBinder(parameters, batching)
        self.splitter = Splitter(by_rows=batching.by_rows, nullable=output.type.nullable)
        self.packer = None
        self.retry_singly = batching.policy.retry_singly
        if tensor_types(output.type):
            from geartrain.worker.tensor_packing import TensorPacker

            self.packer = TensorPacker(output, by_rows=batching.by_rows)


class Batch:
    """The predictions of one message, from their input to the end of each. Items are told by their index in it."""

    def __init__(self, message: PredictBatch, channel: Channel, tools: JobTools) -> None:
        if tools.batch is None:
            msg = "a batch came to a model that takes none"
            raise RuntimeError(msg)
        self.message = message
        self.channel = channel
        self.tools = tools
        self.own = tools.batch
        self.left = set(range(len(message.items)))  # whose end has not been told
        self.given: set[int] = set()  # those that have had an output of a stream
        self.waiting: list[Sequence[int]] = []  # the items of each call that is to follow
        self.ends = EndSender(message.id, channel)
        self._input: Buffer | None = None

    def input(self) -> Buffer:
        """The input of all items, packed."""
        if self._input is None:
            self._input = read_input(self.message, self.tools.memory_of(self.channel))
        return self._input

    def is_over(self) -> bool:
        """Whether nothing is left to be run."""
        return not self.left

    def give_small(self, items: Sequence[int], outputs: Sequence[bytes]) -> None:
        """End items with outputs that fit into one message; a call is over."""
        self.left.difference_update(items)
        self._close_if_over()
        self.ends.send_small(items, outputs, last=self.is_over())

    def give(self, packets: Mapping[int, Packet], failures: Mapping[int, BaseException], sender: OutputSender) -> None:
        """End items with their outputs, and others with what made them fail; a call is over."""
        ends = self._fail(failures)
        self.left -= packets.keys()
        self._close_if_over()
        self.ends.send_outputs(packets, ends, sender, last=self.is_over())

    def end_stream(self, items: Sequence[int]) -> None:
        """End items whose stream is over; a call is."""
        ends = [ItemEnd(item) for item in items if item in self.left]
        self.left -= set(items)
        self._close_if_over()
        self.ends.send(ends, last=self.is_over(), is_stream=True)

    def fail(self, failures: Mapping[int, BaseException | str], *, running: bool = False) -> None:
        """End items with errors; `running`: in the midst of a call, so that not even the last one is the end."""
        ends = self._fail(failures)
        if not running:
            self._close_if_over()
        self.ends.send(ends, last=self.is_over() and not running)

    def cancel(self) -> None:
        """End all that is left: it was canceled."""
        ends = [ItemEnd(item, canceled=True) for item in sorted(self.left)]
        self.left.clear()
        self.close()
        self.ends.send(ends, last=True)

    def close(self) -> None:
        """Run nothing more, and let go of the input."""
        self.waiting.clear()
        self._input = None
        remove_input(self.message)

    def _close_if_over(self) -> None:
        if self.is_over():
            self.close()

    def _fail(self, failures: Mapping[int, BaseException | str]) -> list[ItemEnd]:
        """The ends of items that failed; where it was an exception, its traceback goes to the item's logs."""
        ends = []
        for item, error in failures.items():
            if item not in self.left:
                continue
            self.left.discard(item)
            if isinstance(error, str):
                ends.append(ItemEnd(item, error=clip(error)))
            else:
                self.channel.send(Log("stderr", format_error(error), item))
                ends.append(ItemEnd(item, error=describe_error(error)))
        return ends
