"""Stored predictions: rows, their states and steps, leases, webhooks to be delivered, replicas.

No clock and no database. Times are in seconds since the epoch, spans of time in seconds.

A replica is one server process; its name (`owner`) is never used again by another process. Replicas hold leases, and
rows do not: a row is safe while the lease of its owner runs. An epoch is a fencing token: it grows by one each time a
row changes hands, and a write with an older one has no effect.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import CLIENT_LEFT, Webhook
from geartrain.domain.principal import ANYONE, Principal

Retry = Literal["always", "never"]
"""Policy for a prediction whose server was lost: run it again or fail it."""

LISTED_ECHO: Final = 2_000
"""Bytes of an input that a list shows; a longer one is left out."""

LOST_ERROR: Final = "Its server was lost."
"""Error of a prediction whose server was lost and whose `Retry` is `never`."""

UNREADABLE_ERROR: Final = "Its server was lost, and its input cannot be decrypted with the key of this one."
"""Error of a prediction whose stored input was encrypted with a key that no replica has any more."""


LONGEST_PAUSE: Final = 3600.0
"""Seconds after which a webhook that has failed is tried again, at most."""


class LeaseEndedError(GeartrainError):
    """The lease of the claimant has ended: it has to renew the lease, and may then claim again."""

    def __init__(self) -> None:
        message = "The store of predictions cannot be used: the lease of this server has ended. Try again later."
        super().__init__(Code.STORE_UNAVAILABLE, message, retry_after=2)


class RowState(StrEnum):
    """State of a prediction's row."""

    ABSENT = "absent"  # there is no row
    CLAIMED = "claimed"  # the id is taken; the input is not stored, so the prediction ends with its owner
    ACCEPTED = "accepted"  # the input is stored: another replica can run the prediction
    ENDED = "ended"


class RowStep(StrEnum):
    """Steps of a row."""

    CLAIM = "claim"
    ACCEPT = "accept"
    CHECKPOINT = "checkpoint"
    CANCEL = "cancel"
    TAKE_OVER = "take_over"
    FINISH = "finish"
    RELEASE = "release"
    REMOVE = "remove"


ROW_STEPS: Final[dict[RowState, dict[RowStep, RowState]]] = {
    RowState.ABSENT: {RowStep.CLAIM: RowState.CLAIMED, RowStep.ACCEPT: RowState.ACCEPTED},
    RowState.CLAIMED: {
        RowStep.CLAIM: RowState.CLAIMED,  # the lease of its owner has ended: epoch + 1
        RowStep.ACCEPT: RowState.ACCEPTED,  # by its owner; or as for a claim
        RowStep.CHECKPOINT: RowState.CLAIMED,
        RowStep.CANCEL: RowState.CLAIMED,
        RowStep.TAKE_OVER: RowState.CLAIMED,  # only to be ended: its input is nowhere
        RowStep.FINISH: RowState.ENDED,
        RowStep.RELEASE: RowState.ABSENT,
    },
    RowState.ACCEPTED: {
        RowStep.CHECKPOINT: RowState.ACCEPTED,
        RowStep.CANCEL: RowState.ACCEPTED,
        RowStep.TAKE_OVER: RowState.ACCEPTED,
        RowStep.FINISH: RowState.ENDED,
        RowStep.RELEASE: RowState.ABSENT,
    },
    RowState.ENDED: {
        RowStep.CLAIM: RowState.CLAIMED,  # if its client left, or the claim says so (`Claim.reuse`): epoch + 1
        RowStep.ACCEPT: RowState.ACCEPTED,  # likewise
        RowStep.REMOVE: RowState.ABSENT,
    },
}


def states_before(step: RowStep) -> tuple[RowState, ...]:
    """Return the states in which a step can be done."""
    return tuple(state for state, steps in ROW_STEPS.items() if step in steps)


class Key(msgspec.Struct, frozen=True, order=True):
    """Key of a row. The ids of a model's predictions are its own: two models may both have an id `a`.

    `model` is the name of the table of ids: the service chooses it for trainings.
    """

    model: str
    id: str


class Ownership(msgspec.Struct, frozen=True):
    """The right to write a row: its key, its owner, and the epoch in which that owner got it (1 for the first)."""

    key: Key
    owner: str
    epoch: int


class Claim(msgspec.Struct, frozen=True):
    """An id that a replica wants for a prediction that it is about to run.

    Attributes:
        version: of the model.
        created_at: as clients are shown it.
        echo: the input as clients are shown it, JSON text, with secrets masked.
        reuse: whether the id may be taken from a prediction that has ended, which is then forgotten.
        principal: the name of the client that the prediction belongs to; empty on a server without keys.
        request: as in `Submission`, of a prediction that only its owner can run: the webhook that tells of its end.
            Empty without one.
    """

    key: Key
    owner: str
    version: str = ""
    created_at: float = 0.0
    echo: bytes = b"{}"
    reuse: bool = False
    principal: str = ""
    request: bytes = b""


class Submission(msgspec.Struct, frozen=True):
    """Stored data that lets any replica run the prediction; written before a 202 leaves.

    Attributes:
        request: all that a run needs, in the service's own form. It is encrypted where the operator has given a key.
        has_secret: true if `request` holds the value of an input of type `Secret`.
        retry: true if it runs again after the loss of its server.
        attempts: most runs, the first included.
    """

    request: bytes
    has_secret: bool = False
    retry: Retry = "always"
    attempts: int = 3


class Row(msgspec.Struct, frozen=True):
    """Stored state of a prediction, without its events and its stored request.

    Attributes:
        state: never `ABSENT`.
        status: of the run that `ownership.epoch` stands for.
        echo: as in `Claim`; empty in a `Page` if it is longer than `LISTED_ECHO`.
        attempts: number of runs begun, or to begin; 1 for the first.
        is_cancel_requested: see `LedgerPort.cancel`.
        started_at, completed_at: None until then.
        error: empty if there is none.
        owner_address: address of the owner for other servers, from `ReplicasPort.renew`; empty if it has none.
        is_owner_alive: true while the lease of the owner runs.
        principal: as in `Claim`.
    """

    ownership: Ownership
    state: RowState
    status: Status
    version: str
    created_at: float
    echo: bytes
    attempts: int
    is_cancel_requested: bool
    started_at: float | None
    completed_at: float | None
    error: str
    owner_address: str
    is_owner_alive: bool
    principal: str = ""

    @property
    def is_abandoned(self) -> bool:
        """True if it was canceled only because its client left: any claim may take the id."""
        return self.state is RowState.ENDED and self.status is Status.CANCELED and self.error == CLIENT_LEFT


class ClaimResult(msgspec.Struct, frozen=True):
    """Result of a claim: the row as it is now, and true if this claim has got it."""

    row: Row
    is_granted: bool


class Checkpoint(msgspec.Struct, frozen=True):
    """Progress of a run since its last checkpoint.

    Attributes:
        status: `STARTING` or `PROCESSING`.
        started_at: begin of the run; None before it.
        events: the events since the last checkpoint (outputs, logs, metrics), in the service's own form. The store adds
            them to those that it has; empty adds nothing.
        part: the number of these events, from 0 in each epoch. A part that was written already stays as it is, so a
            call that was not answered may be repeated.
    """

    status: Status
    started_at: float | None = None
    events: bytes = b""
    part: int = 0


class Delivery(msgspec.Struct, frozen=True):
    """A terminal webhook: to whom it goes, and its body."""

    webhook: Webhook
    body: bytes


class End(msgspec.Struct, frozen=True):
    """The terminal state of a prediction.

    Attributes:
        status: a terminal one.
        started_at: as in `Checkpoint`.
        error: why it failed; empty for none.
        events, part: as in `Checkpoint`; the last ones.
        deliveries: the webhooks that tell of the end; none for most.
    """

    status: Status
    completed_at: float
    started_at: float | None = None
    error: str = ""
    events: bytes = b""
    part: int = 0
    deliveries: tuple[Delivery, ...] = ()


class Hold(StrEnum):
    """Answer to a replica that writes a row."""

    HELD = "held"  # the row is its own
    CANCELING = "canceling"  # held, with a request to cancel the prediction
    FENCED = "fenced"  # nothing was written: the row has ended, has another owner, or is gone


class Owned(msgspec.Struct, frozen=True):
    """A row that has not ended, as its owner is told of it."""

    ownership: Ownership
    state: RowState
    is_cancel_requested: bool


class Verdict(StrEnum):
    """Decision about a row that was taken over."""

    RUN = "run"
    CANCEL = "cancel"  # a client had asked for its end: to be finished as canceled
    LOST = "lost"  # to be finished as failed with `LOST_ERROR`
    UNREADABLE = "unreadable"  # to be finished as failed with `UNREADABLE_ERROR`


class TakenOver(msgspec.Struct, frozen=True):
    """A row that has got another owner, with its new epoch, and what that owner has to do.

    `request` is that of its `Submission` or `Claim`, whatever the verdict: it names the webhook that tells of the end.
    It is empty if there is none, or none that can be decrypted.
    """

    row: Row
    verdict: Verdict
    request: bytes


def judge(row: Row, *, retry: Retry, most_attempts: int) -> Verdict:
    """Decide about a row that was just taken over; `row.attempts` counts the run to come."""
    if row.is_cancel_requested:
        return Verdict.CANCEL
    if row.state is RowState.CLAIMED or retry == "never" or row.attempts > most_attempts:
        return Verdict.LOST
    return Verdict.RUN


class RowFilter(msgspec.Struct, frozen=True):
    """The rows of a list: those of one model (empty: of all), in one of some states (empty: in any).

    `principal` sees each of them.
    """

    model: str = ""
    statuses: frozenset[Status] = frozenset()
    principal: Principal = ANYONE


class Page(msgspec.Struct, frozen=True):
    """Some rows of a list, the newest first. `cursor` asks for the next ones; empty if there are none."""

    rows: tuple[Row, ...]
    cursor: str


class OutboxEntry(msgspec.Struct, frozen=True):
    """A terminal webhook that has not arrived.

    `attempts`: how often it has been tried, this time included. A try whose server was lost meanwhile does not count.
    """

    number: int
    key: Key
    delivery: Delivery
    attempts: int


class Replica(msgspec.Struct, frozen=True):
    """A server process whose lease runs: its name, where it can be asked, and for how long its lease runs yet."""

    owner: str
    address: str
    lease: float


class WantedModel(msgspec.Struct, frozen=True):
    """Last request of an administrator: a model is to be loaded, or unloaded.

    `revision` grows with each request, over all models: a model that is asked for again is to be loaded again.
    """

    model: str
    is_wanted: bool
    revision: int


class Retention(msgspec.Struct, frozen=True):
    """Limits for predictions that have ended: seconds that they are kept, and bytes in all."""

    seconds: float
    bytes: int
