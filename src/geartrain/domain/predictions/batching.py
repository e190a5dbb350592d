"""Settings of batches: how a model's requests are gathered, and which of them can share one call.

A batch is one call of `run()` for several requests. Sizes count rows: those that a request's tensors bring along their
first dimension, or 1 for a request of a model without tensor inputs.
"""

from __future__ import annotations

from typing import Final

import msgspec

DEFAULT_MAX_SIZE: Final = 32


class BatchPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """Policy for gathering requests into batches.

    A free worker waits up to `max_delay` seconds for more. Without one, and with `learn_delay`, it waits where clients
    have been seen to come back together, as long as that pays (`service.scheduling.gathering`). `preferred_sizes`,
    ascending, are the sizes to cut a longer queue at. `pad_to`, ascending, are the only sizes that the model is called
    with: a batch is filled up to the next one, with copies of its last row. `retry_singly`: a batch that raised is run
    again one by one. `refuse_larger`: a request of more than `max_size` rows is an error; otherwise it runs by itself.
    Without `gather`, each request is a batch by itself.
    """

    max_size: int = DEFAULT_MAX_SIZE
    max_delay: float = 0.0
    preferred_sizes: tuple[int, ...] = ()
    pad_to: tuple[int, ...] = ()
    retry_singly: bool = False
    refuse_larger: bool = True
    learn_delay: bool = True
    gather: bool = True


class Batching(msgspec.Struct, frozen=True, omit_defaults=True):
    """Batching of a model: the policy, and the reading of its signature.

    `by_rows`: it has tensor inputs. Their first dimension is the batch, which a client sees too: a request may bring
    several rows, and the lists among its inputs and outputs have an element for each. Otherwise a request is one item,
    and clients see neither dimension nor list. `shared` are the inputs that a whole batch has in common: only requests
    in which they are equal are run together. `takes_singles`: a request by itself may come as a plain prediction, since
    `run()` does nothing else with a batch of one.
    """

    policy: BatchPolicy
    by_rows: bool = False
    shared: tuple[str, ...] = ()
    takes_singles: bool = False
