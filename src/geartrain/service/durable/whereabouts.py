"""Who answers for a prediction that a store knows: this server from the store, or the server that runs it."""

from __future__ import annotations

from typing import Final

import msgspec

from geartrain.domain.predictions.ledger import Row, RowState


class Elsewhere(msgspec.Struct, frozen=True):
    """Another server runs it, and can be asked at this address, `HOST:PORT`."""

    address: str


class InStore(msgspec.Struct, frozen=True):
    """What the store has of it is all that is known: it has ended, or no server can be asked."""


IN_STORE: Final = InStore()
Whereabouts = Elsewhere | InStore


def whereabouts(row: Row, *, owner: str) -> Whereabouts:
    """Return who answers for a prediction that does not run in this server, whose name is `owner`."""
    if row.state is RowState.ENDED or row.ownership.owner == owner:
        return IN_STORE
    if row.is_owner_alive and row.owner_address:
        return Elsewhere(row.owner_address)
    return IN_STORE
