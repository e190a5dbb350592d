"""Makes the `Predict` message of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from geartrain.domain.predictions.calls import CallInput, ItemInput
from geartrain.domain.tensors.tensor import Buffer, pack, stack
from geartrain.ipc.body_memory import is_received, received
from geartrain.ipc.messages import CallItem, InputPayload, Predict, Received, SlotMemory

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
    return stack(json, [item.tensors for item in call.items if item.tensors is not None])


def received_in_place(call: CallInput) -> Received | None:
    """Return the input of a call as it travels where its body was received, None if it does not lie there.

    It lies there as long as the contents of its tensor are held.
    """
    item = call.items[0]
    tensors = item.tensors
    if len(call.items) != 1 or tensors is None or len(tensors) != 1 or not is_received(tensors[0].data):
        return None
    head, contents = pack(item.input, tensors)
    return received(contents, bytes(head))


def predict_of(
    call: CallInput, place: tuple[int, int], payload: InputPayload, *, output_dir: str, memory: SlotMemory | None
) -> Predict:
    """Return the message that starts a call whose input is `payload`; `place` is its slot and its serial number."""
    items = call.items
    # To map costs a call of one more than all that is done for it here.
    described = (_item(items[0]),) if len(items) == 1 else tuple(map(_item, items))
    slot, serial = place
    return Predict(call.id, slot, serial, described, payload, output_dir, memory, call.prefetch)


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
    )
