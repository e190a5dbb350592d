"""How a worker waits for its next call: awake for a moment where calls follow each other closely, or asleep."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from geartrain.ipc.framing import frame
from geartrain.worker.channels.channel import Adaptive, Blocking, Channel, Wakeup, _can_spin, wakeup_of

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture(params=[Adaptive, Blocking])
def waiting(request: pytest.FixtureRequest, pair: Pair) -> Wakeup:
    made: Wakeup = request.param(pair[0])
    return made


def test_what_is_there_is_read(waiting: Wakeup, pair: Pair) -> None:
    for data in (b"one", b"two", b"three"):  # closely, so that the adaptive one is awake
        pair[1].sendall(data)
        assert waiting.receive() == data


def test_what_comes_later_is_waited_for(waiting: Wakeup, pair: Pair) -> None:
    pair[1].sendall(b"before")
    assert waiting.receive() == b"before"
    begins = threading.Event()

    def send() -> None:
        begins.wait(10)
        pair[1].sendall(b"data")

    thread = threading.Thread(target=send)
    thread.start()
    begins.set()
    assert waiting.receive() == b"data"
    thread.join()


def test_a_parent_that_is_gone_ends_the_waiting(waiting: Wakeup, pair: Pair) -> None:
    pair[1].sendall(b"last")
    assert waiting.receive() == b"last"
    pair[1].close()
    assert waiting.receive() == b""
    assert waiting.receive() == b""


def test_a_parent_that_has_left_something_unread_ends_the_waiting(waiting: Wakeup, pair: Pair) -> None:
    pair[0].sendall(b"unread")
    pair[1].close()  # which resets the connection
    assert waiting.receive() == b""


def test_a_wait_asleep_passes_the_policy_by(pair: Pair) -> None:
    class Never:
        def receive(self) -> bytes:
            raise AssertionError("it must sleep")

    channel = Channel(pair[0], wakeup=Never())
    thread = threading.Thread(target=pair[1].sendall, args=(frame(b"call"),))
    thread.start()
    assert channel.receive(asleep=True) == b"call"
    thread.join()


def test_what_comes_while_it_waits_awake_is_read(pair: Pair) -> None:
    thread = threading.Thread(target=pair[1].sendall, args=(b"data",))
    thread.start()
    assert Adaptive(pair[0]).receive_awake(time.perf_counter() + 10) == b"data"
    thread.join()


def test_it_sleeps_for_a_while_where_others_take_the_processor(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Adaptive(pair[0])
    awake: list[None] = []
    now = [100.0]
    lost = [0.0]  # seconds

    def receive_awake(_self: Adaptive, _until: float) -> bytes:
        awake.append(None)
        now[0] += lost[0]
        return b"awake"

    monkeypatch.setattr("geartrain.worker.channels.channel.time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(Adaptive, "receive_awake", receive_awake)

    def is_awake() -> bool:
        before = len(awake)
        pair[1].sendall(b"asleep")
        received = waiting.receive()
        if received == b"awake":
            assert pair[0].recv(10) == b"asleep"
        return len(awake) > before

    assert [is_awake(), is_awake(), is_awake()] == [False, True, True]
    lost[0] = 0.00095  # longer than it should, while the next call still comes closely after it
    assert [is_awake() for _ in range(4)] == [True, True, True, False]
    lost[0] = 0.0
    assert not is_awake()
    now[0] += 2
    assert is_awake()


def test_it_does_not_wait_awake_for_longer_than_it_should(pair: Pair) -> None:
    waiting = Adaptive(pair[0])
    assert waiting.receive_awake(time.perf_counter()) is None
    assert waiting.receive_awake(time.perf_counter() + 1e-4) is None


def test_a_parent_that_is_gone_ends_the_waiting_awake(pair: Pair) -> None:
    pair[1].close()
    assert Adaptive(pair[0]).receive_awake(time.perf_counter() + 10) == b""


def test_a_parent_that_has_left_something_unread_ends_the_waiting_awake(pair: Pair) -> None:
    pair[0].sendall(b"unread")
    pair[1].close()
    assert Adaptive(pair[0]).receive_awake(time.perf_counter() + 10) == b""


def test_nothing_there_after_all_is_waited_for_on(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    class Poll:
        asked = 0

        def poll(self, _timeout: int) -> list[tuple[int, int]]:
            self.asked += 1
            if self.asked == 2:
                pair[1].sendall(b"data")
            return [(0, 0)]

    waiting = Adaptive(pair[0])
    monkeypatch.setattr(waiting, "_poll", Poll())
    assert waiting.receive_awake(time.perf_counter() + 10) == b"data"


def spins_of(waiting: Adaptive, pair: Pair, monkeypatch: pytest.MonkeyPatch, *gaps: float) -> list[bool]:
    """Whether it waited awake for each of several calls that came so many seconds after the answer to the last."""
    spins: list[float] = []
    clock = [100.0]

    def receive_awake(_waiting: Adaptive, until: float) -> None:
        spins.append(until - clock[0])

    monkeypatch.setattr(Adaptive, "receive_awake", receive_awake)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    found = []

    class Late:
        """Lets the time pass while it is asleep."""

        def __init__(self, gap: float) -> None:
            self._gap = gap

        def receive(self) -> bytes:
            clock[0] += self._gap
            return b"data"

    for gap in gaps:
        before = len(spins)
        monkeypatch.setattr(waiting, "_asleep", Late(gap))
        assert waiting.receive() == b"data"
        found.append(len(spins) > before)
        clock[0] += 100e-6  # the call itself
    return found


def test_only_calls_that_follow_each_other_closely_are_awaited_awake(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Adaptive(pair[0])
    close, pause = 100e-6, 10.0
    assert spins_of(waiting, pair, monkeypatch, pause, close, close, close, pause, close) == [
        False,
        False,
        True,
        True,
        True,
        False,
    ]


def test_the_policy_of_init_says_which(pair: Pair) -> None:
    assert isinstance(wakeup_of("blocking", pair[0]), Blocking)
    assert isinstance(wakeup_of("adaptive", pair[0]), Adaptive if _can_spin else Blocking)


def test_a_channel_waits_as_it_is_told(pair: Pair) -> None:
    left = [b"\0\0\0\1a\0\0\0\1", b"b", b""]

    class Once:
        def receive(self) -> bytes:
            return left.pop(0)

    channel = Channel(pair[0], wakeup=Once())
    assert [channel.receive(), channel.receive(), channel.receive()] == [b"a", b"b", None]
