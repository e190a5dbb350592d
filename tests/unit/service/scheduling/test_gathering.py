"""How long a free slot waits for more: a simulation of one slot, its queue, and clients of every kind."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from math import inf

import pytest

from geartrain.domain.predictions.batching import BatchPolicy
from geartrain.service.scheduling.cutting import Size
from geartrain.service.scheduling.queue import BatchQueue

EAGER = BatchPolicy(max_size=32, learn_delay=False)
LEARNED = BatchPolicy(max_size=32)
RUNS = [0.0005, 0.001, 0.005, 0.02, 0.1]  # seconds
CALLS = 1000  # of one simulation

Back = Callable[[int, random.Random], float]
"""After which time the client of the n-th answer of a call asks again, in seconds."""


Run = Callable[[int, random.Random], float]
"""The time of a call of so many rows, in seconds."""


def one_after_the_other(place: int, chance: random.Random) -> float:
    """As on a busy loopback interface: answers are written, and requests read, in turn."""
    return 0.0001 + 0.00008 * place + chance.expovariate(1 / 0.0001)


class Simulation:
    """A model that takes `run` seconds for a call, or as many as that returns.

    What comes by itself, at `arrivals`, comes once.
    """

    def __init__(
        self,
        policy: BatchPolicy,
        run: float | Run,
        arrivals: Iterable[float] = (),
        *,
        clients: int = 0,
        back: Back = one_after_the_other,
    ) -> None:
        """`clients` ask again whenever they have been answered."""
        self.times: list[float] = []  # from a request to its answer
        self.answered = 0
        self.now = 0.0
        self._queue: BatchQueue[int] = BatchQueue(policy)
        self._run = run
        self._back = back
        self._chance = random.Random(1)  # noqa: S311 - a simulation
        self._numbers = itertools.count()
        self._asked: dict[int, tuple[float, bool]] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._is_busy = False
        for moment in arrivals:
            self._at(moment, lambda: self._ask(returns=False))
        for _ in range(clients):
            self._at(self._chance.random() * 0.001, lambda: self._ask(returns=True))

    def _at(self, moment: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), event))

    def go_on(self, until: float = inf) -> Simulation:
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
            if not self._is_busy and self._queue:
                self._serve()
        return self

    def _serve(self) -> None:
        members = self._queue.take(self.now)
        if members:
            self._is_busy = True
            took = self._run(len(members), self._chance) if callable(self._run) else self._run
            self._at(self.now + took, lambda: self._end(members, took))
        else:
            due = self._queue.due()
            assert due is not None
            assert due > self.now, "nobody waits for a moment that has passed"
            self._at(due, lambda: None)

    def _ask(self, *, returns: bool) -> None:
        number = next(self._numbers)
        self._asked[number] = self.now, returns
        self._queue.add(number, (), Size(1), now=self.now)

    def _end(self, members: list[int], took: float) -> None:
        self._is_busy = False
        returning = 0
        for member in members:
            asked, returns = self._asked.pop(member)
            self.times.append(self.now - asked)
            self.answered += 1
            if returns:
                self._at(self.now + self._back(returning, self._chance), lambda: self._ask(returns=True))
                returning += 1
        self._queue.end_call(len(members), took=took, now=self.now)

    @property
    def rate(self) -> float:
        return self.answered / self.now

    def percentile(self, part: float) -> float:
        return sorted(self.times)[int(part * (len(self.times) - 1))]


def by_chance(rate: float, seconds: float, seed: int) -> Iterator[float]:
    """Arrivals that know nothing of each other: a Poisson process."""
    chance, moment = random.Random(seed), 0.0  # noqa: S311 - a simulation
    while (moment := moment + chance.expovariate(rate)) < seconds:
        yield moment


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("load", [0.1, 0.5, 1, 2, 8])
def test_nobody_waits_longer_for_arrivals_by_chance(run: float, load: float) -> None:
    """`load`: how many come in the time of a call."""
    arrivals = list(by_chance(load / run, CALLS * run, seed=7))
    eager, learned = (Simulation(policy, run, arrivals).go_on() for policy in (EAGER, LEARNED))
    assert learned.percentile(0.5) <= 1.05 * eager.percentile(0.5)
    assert learned.percentile(0.99) <= 1.05 * eager.percentile(0.99)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(("size", "load"), [(4, 0.5), (8, 2), (16, 4)])
def test_nobody_waits_longer_for_bursts(run: float, size: int, load: float) -> None:
    chance = random.Random(3)  # noqa: S311 - a simulation
    bursts = by_chance(load / run / size, CALLS * run, seed=9)
    arrivals = [moment + chance.random() * 0.0002 for moment in bursts for _ in range(size)]
    eager, learned = (Simulation(policy, run, arrivals).go_on() for policy in (EAGER, LEARNED))
    assert learned.percentile(0.5) <= 1.05 * eager.percentile(0.5)
    assert learned.percentile(0.99) <= 1.05 * eager.percentile(0.99)


@pytest.mark.parametrize(
    ("run", "clients", "of_limit"),
    [
        (0.005, 1, 0.9),
        (0.005, 2, 0.9),
        (0.005, 4, 0.85),
        (0.005, 16, 0.75),
        (0.005, 64, 0.95),
        (0.02, 16, 0.9),
        (0.1, 16, 0.95),
    ],
)
def test_clients_that_come_back_together_share_their_calls(run: float, clients: int, of_limit: float) -> None:
    simulation = Simulation(LEARNED, run, clients=clients).go_on(CALLS * run)
    assert simulation.rate >= of_limit * min(clients, 32) / run


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("clients", [1, 2, 4, 16, 64])
def test_clients_that_come_back_together_are_never_served_worse(run: float, clients: int) -> None:
    """Also where a call is over before they have all come back."""
    eager, learned = (Simulation(policy, run, clients=clients).go_on(CALLS * run) for policy in (EAGER, LEARNED))
    assert learned.rate >= 0.99 * eager.rate
    assert learned.percentile(0.5) <= 1.05 * eager.percentile(0.5)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(("clients", "load"), [(4, 4), (8, 1), (16, 0.5)])
def test_both_kinds_at_once(run: float, clients: int, load: float) -> None:
    arrivals = list(by_chance(load / run, CALLS * run, seed=5))
    eager, learned = (
        Simulation(policy, run, arrivals, clients=clients).go_on(CALLS * run) for policy in (EAGER, LEARNED)
    )
    assert learned.rate >= 0.99 * eager.rate
    assert learned.percentile(0.5) <= 1.05 * eager.percentile(0.5)


def slowly(seconds: float, clients: int) -> Back:
    """As on a slow machine: the last of so many comes back after about `seconds`."""

    def back(place: int, chance: random.Random) -> float:
        return seconds * (0.1 + 0.8 * place / clients) + chance.expovariate(20 / seconds)

    return back


def constant(_rows: int, _chance: random.Random) -> float:
    return 0.005


def by_rows(rows: int, _chance: random.Random) -> float:
    return 0.001 + 0.00025 * rows


def uneven(_rows: int, chance: random.Random) -> float:
    return 0.005 * chance.lognormvariate(0, 0.25)


def of_two_kinds(_rows: int, chance: random.Random) -> float:
    return 0.009 if chance.random() < 0.5 else 0.001


ANY_RUN = [constant, by_rows, uneven, of_two_kinds]


@pytest.mark.parametrize("run", [constant, uneven])
@pytest.mark.parametrize("clients", [4, 16])
@pytest.mark.parametrize(("seconds", "gain"), [(0.001, 1.6), (0.002, 1.4), (0.003, 1.2)])
def test_clients_of_a_slow_machine_share_their_calls(run: Run, clients: int, seconds: float, gain: float) -> None:
    """They take up to three fifths of a call to come back."""
    back = slowly(seconds, clients)
    eager, learned = (Simulation(policy, run, clients=clients, back=back).go_on(6) for policy in (EAGER, LEARNED))
    assert learned.rate >= gain * eager.rate
    assert learned.percentile(0.5) <= 0.8 * eager.percentile(0.5)
    assert learned.percentile(0.99) <= 1.05 * eager.percentile(0.99)


@pytest.mark.parametrize("run", ANY_RUN)
@pytest.mark.parametrize("clients", [2, 4, 8, 16, 24, 64])
@pytest.mark.parametrize("seconds", [0.0005, 0.001, 0.002, 0.003, 0.0035, 0.004, 0.005, 0.007])
def test_no_kind_of_call_is_slower_for_a_wait(run: Run, clients: int, seconds: float) -> None:
    """Also where a row costs so much that two small calls take hardly longer than a large one."""
    back = slowly(seconds, min(clients, 32))
    eager, learned = (Simulation(policy, run, clients=clients, back=back).go_on(6) for policy in (EAGER, LEARNED))
    assert learned.rate >= 0.98 * eager.rate
    assert learned.percentile(0.5) <= 1.05 * eager.percentile(0.5)


@pytest.mark.parametrize("run", ANY_RUN)
@pytest.mark.parametrize("rate", [50, 200, 400, 800, 1600])
@pytest.mark.parametrize("seed", [1, 2])
def test_nobody_waits_longer_for_arrivals_by_chance_at_calls_of_any_kind(run: Run, rate: float, seed: int) -> None:
    arrivals = list(by_chance(rate, 6, seed))
    eager, learned = (Simulation(policy, run, arrivals).go_on() for policy in (EAGER, LEARNED))
    assert learned.percentile(0.5) <= 1.05 * eager.percentile(0.5)
    assert learned.percentile(0.99) <= 1.05 * eager.percentile(0.99)


def test_clients_that_think_for_a_while_are_not_waited_for() -> None:
    think = 0.004  # seconds, of a call of 5 ms
    eager, learned = (
        Simulation(policy, 0.005, clients=16, back=lambda _, chance: think + chance.expovariate(1 / think)).go_on(5)
        for policy in (EAGER, LEARNED)
    )
    assert learned.percentile(0.99) <= 1.05 * eager.percentile(0.99)


def test_clients_that_have_gone_are_soon_forgotten() -> None:
    """Sixteen clients that come back together, and then arrivals by chance alone."""
    run, end = 0.005, 5.0
    chance = [end + moment for moment in by_chance(100, 5.0, seed=2)]
    answers = itertools.count()

    def until_the_end(place: int, chance: random.Random) -> float:
        return inf if next(answers) > 10_000 else one_after_the_other(place, chance)

    both = Simulation(LEARNED, run, chance, clients=16, back=until_the_end)
    both.go_on(end)
    before = len(both.times)
    both.go_on(end + 5.0)
    alone = Simulation(EAGER, run, chance).go_on()
    later = sorted(both.times[before + 50 :])
    assert later[len(later) // 2] <= 1.05 * alone.percentile(0.5)
