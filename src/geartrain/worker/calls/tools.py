"""Shared tools of all calls of a worker: made once, after the model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from geartrain.domain.predictions.batching import Batching
from geartrain.domain.signature.types import Signature
from geartrain.worker.calls.codec import CallCodec, NoBatchInvocation, SingleInvocation, SingleTools
from geartrain.worker.channels.channel import Channel
from geartrain.worker.loading.signature import Parameter
from geartrain.worker.stdio.router import Router
from geartrain.worker.values.arguments import ArgumentBinder
from geartrain.worker.values.outputs import OutputEncoder


class CallTools:
    """The codecs of one model, the router of what it prints, and the control channel."""

    __slots__ = ("control", "of_one", "of_several", "router")

    def __init__(self, of_one: CallCodec, of_several: CallCodec, *, router: Router, control: Channel) -> None:
        """`of_one` is the codec of calls of one item, `of_several` that of all others."""
        self.of_one = of_one
        self.of_several = of_several
        self.router = router
        self.control = control


def tools_of_model(
    parameters: Sequence[Parameter],
    signature: Signature,
    batching: Batching | None,
    *,
    encoder: OutputEncoder,
    router: Router,
    control: Channel,
) -> CallTools:
    """Make the tools for a model; `parameters`, `signature` and `encoder` are those of one prediction.

    `batching` is None for a model that takes one prediction at a time.
    """
    single = SingleTools(ArgumentBinder(parameters), encoder)
    of_one: CallCodec = partial(SingleInvocation, single)
    if batching is None:
        return CallTools(of_one, partial(NoBatchInvocation, single), router=router, control=control)
    from geartrain.worker.calls.batch_codec import BatchCodec  # few models need it

    of_several = BatchCodec(parameters, signature, batching, encoder=encoder, router=router)
    return CallTools(of_one if batching.takes_singles else of_several, of_several, router=router, control=control)
