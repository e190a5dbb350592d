"""The server that answers for a durable prediction: this one from the store, or the one that runs it."""

from __future__ import annotations

from typing import Final

import msgspec

from geartrain.domain.predictions.ledger import Row, RowState


class Elsewhere(msgspec.Struct, frozen=True):
    """Another server runs it, and can be asked at this address, `HOST:PORT`."""

    address: str


class InStore(msgspec.Struct, frozen=True):
    """The stored state is final or the best known: the prediction has ended, or its server cannot be asked."""


IN_STORE: Final = InStore()
Whereabouts = Elsewhere | InStore


def whereabouts(row: Row, *, owner: str) -> Whereabouts:
    """Return the place that answers for a prediction that does not run in this server, which is called `owner`."""
    if row.state is RowState.ENDED or row.ownership.owner == owner:
        return IN_STORE
    if row.is_owner_alive and row.owner_address:
        return Elsewhere(row.owner_address)
    return IN_STORE
