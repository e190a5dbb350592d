"""The store as the service uses it: the runs that this server holds rows for, and the predictions of all servers."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.ledger import Key, Page, Retention, Row, RowFilter, RowState
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.principal import Principal
from geartrain.service.durable.history import restore
from geartrain.service.durable.runs import DurableRun, as_unavailable
from geartrain.service.ledger import StorePort


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


T = TypeVar("T")

STORE_FAULTS: Final = frozenset({Code.STORE_UNAVAILABLE, Code.STORE_VERSION, Code.NO_STORAGE})
_DAY: Final = 86_400.0
_LARGE: Final = 65_536  # bytes of a history that is read in a thread


class DurableSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a store. Times in seconds.

    Attributes:
        lease: time without a sign of life after which other servers take over the predictions of this one.
        attempts: most runs of an accepted prediction, the first included.
        retention: time that finished predictions are kept.
        has_key: true if inputs are encrypted with a key of the operator.
        address: `HOST:PORT` at which other servers reach this one, which then asks them as well; empty if they cannot.
    """

    lease: float = 15.0
    attempts: int = 3
    retention: Retention = Retention(_DAY, 1_000_000_000)
    has_key: bool = False
    address: str = ""


class Durability:
    """Creation and lookup of durable predictions; see `Runs`. Predictions without an id of the client do not use it."""

    def __init__(
        self, store: StorePort, *, owner: str, settings: DurableSettings, encode_end: Callable[[Prediction], bytes]
    ) -> None:
        """`owner`: the name of this server process, which no other one has ever had.

        `encode_end` makes the body of the webhook that tells of an end.
        """
        self.store = store
        self.owner = owner
        self.settings = settings
        self.encode_end = encode_end
        self.is_leaving = False
        self.fault = ""  # reason for which the store did not answer the last call, a sentence; empty if it did
        self.runs: dict[Key, DurableRun] = {}
        self._by_prediction: dict[Prediction, DurableRun] = {}
        self.telling: dict[Key, asyncio.Future[None]] = {}  # the webhooks before the last one of a prediction
        self.on_run_over: Callable[[DurableRun], None] = lambda _run: None
        self.on_delivery: Callable[[], None] = lambda: None
        self.on_batch: Callable[[], None] = lambda: None  # called when a batch was made
        self.renew: Callable[[], Awaitable[None]] = _no_renewal  # until there is a `Lease`

    # for the runs

    def note(self, error: GeartrainError | None) -> None:
        """Remember whether the store has answered, for the health of the server."""
        if error is None:
            self.fault = ""
        elif error.code in STORE_FAULTS:
            self.fault = error.message

    def add(self, run: DurableRun) -> None:
        """Know a run, whose row is being written."""
        self.runs[run.key] = self._by_prediction[run.prediction] = run

    def on_over(self, run: DurableRun) -> None:
        """Forget a run."""
        self._by_prediction.pop(run.prediction, None)
        if self.runs.get(run.key) is run:
            del self.runs[run.key]
        self.on_run_over(run)

    def follow(self, key: Key, telling: asyncio.Future[None]) -> None:
        """Let the webhook that tells of an end wait for those that come before it."""
        self.telling[key] = telling
        telling.add_done_callback(functools.partial(self._on_told, key))

    def _on_told(self, key: Key, told: asyncio.Future[None]) -> None:
        if self.telling.get(key) is told:  # the id may have been used again meanwhile
            del self.telling[key]

    # for the transports

    def run_of(self, prediction: Prediction) -> DurableRun | None:
        """Return the run of a live prediction, None if the store does not know it."""
        return self._by_prediction.get(prediction)

    async def find_row(self, key: Key, principal: Principal) -> Row | None:
        """Return the row of a prediction, None if there is none that `principal` may see."""
        row = await self.ask(self.store.ledger.find(key))
        return row if row is not None and principal.may_see(row.principal) else None

    def whereabouts(self, row: Row) -> Whereabouts:
        """Return the place that answers for a prediction that runs elsewhere; this server, if it has no address."""
        return whereabouts(row, owner=self.owner) if self.settings.address else IN_STORE

    async def restore(self, row: Row, *, history: int) -> Prediction:
        """Return the prediction of a row."""
        parts = await self.ask(self.store.ledger.read_events(row.ownership))
        if sum(map(len, parts)) <= _LARGE:
            return restore(row, parts, history=history)
        return await asyncio.to_thread(restore, row, parts, history=history)

    async def cancel(self, key: Key, principal: Principal) -> Row | None:
        """Note that the end of a prediction is asked for; return its row if it has not ended. See `LedgerPort`."""
        row = await self.ask(self.store.ledger.cancel(key, principal))
        return None if row is None or row.state is RowState.ENDED else row

    async def list_rows(self, rows: RowFilter, *, limit: int, cursor: str) -> Page:
        """See `LedgerPort.list_rows`."""
        return await self.ask(self.store.ledger.list_rows(rows, limit=limit, cursor=cursor))

    async def ask(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a call of the store, and remember if it gave an answer. Raises `GeartrainError`."""
        try:
            found = await call
        except GeartrainError as error:
            self.note(error)
            raise as_unavailable(error) from error
        self.note(None)
        return found

    # its end

    def leave(self) -> None:
        """From now on, what has not succeeded is left to the next server."""
        self.is_leaving = True

    async def drain(self, seconds: float) -> None:
        """Wait until every end is written, at most so many seconds; what is not is left to the next server."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while (writing := self._writing()) and clock() < until:
            await asyncio.wait(writing, timeout=until - clock())
        late = self._writing()
        for each in late:
            each.cancel()
        if late:
            await asyncio.wait(late)

    def _writing(self) -> list[asyncio.Future[Any]]:
        return [each for run in self._by_prediction.values() for each in run.writing]


async def _no_renewal() -> None:
    pass
