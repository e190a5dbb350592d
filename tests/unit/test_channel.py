"""The worker's end of a channel: frames arrive whole, in order, and as soon as they should."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from geartrain.bridge.framing import FrameReader
from geartrain.bridge.messages import Log, Output, SlotToParent, decode_slot_to_parent
from geartrain.worker import channel as channels
from geartrain.worker.channel import Channel


class Ends:
    """A channel and the parent's end of it."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.theirs.settimeout(10)
        self.channel = Channel(ours)
        self._reader = FrameReader()

    def read(self, count: int) -> list[SlotToParent]:
        """Read until so many messages are whole; there must not be more."""
        messages: list[SlotToParent] = []
        while len(messages) < count:
            messages += map(decode_slot_to_parent, self._reader.feed(self.theirs.recv(65536)))
        assert len(messages) == count
        assert not self._reader.pending
        return messages


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.channel.close()
    ends.theirs.close()


def chunk(number: int) -> Output:
    return Output(b"%d" % number)


def burst(ends: Ends, count: int) -> None:
    for number in range(count):
        ends.channel.send(chunk(number), may_wait=True)


def test_the_first_ones_do_not_wait(ends: Ends) -> None:
    ends.theirs.setblocking(False)
    for number in range(channels._BURST_BEGINS):
        ends.channel.send(chunk(number), may_wait=True)
        assert ends.read(1) == [chunk(number)]


def test_one_after_a_pause_does_not_wait(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_BURST_GAP", 0.0)  # whatever comes, comes after a pause
    ends.theirs.setblocking(False)
    for number in range(100):
        ends.channel.send(chunk(number), may_wait=True)
        assert ends.read(1) == [chunk(number)]


def test_what_waits_goes_out_by_itself(ends: Ends) -> None:
    for _ in range(20):
        burst(ends, 100)
        assert ends.read(100) == [chunk(number) for number in range(100)]  # nobody sends anything after them


def test_what_waits_goes_out_before_what_comes_later(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_BURST_GAP", 10.0)
    monkeypatch.setattr(channels, "_BURST_DELAY", 10.0)  # so the thread will not do it
    burst(ends, 100)
    ends.theirs.setblocking(False)
    assert len(ends.read(channels._BURST_BEGINS)) == channels._BURST_BEGINS
    with pytest.raises(BlockingIOError):
        ends.read(1)
    ends.channel.send(Log("stdout", "after"))
    rest = [chunk(number) for number in range(channels._BURST_BEGINS, 100)]
    assert ends.read(len(rest) + 1) == [*rest, Log("stdout", "after")]


def test_frames_of_many_threads_stay_whole_and_in_order(ends: Ends) -> None:
    def send(name: str) -> None:
        for number in range(2000):
            ends.channel.send(Log("stdout", f"{name} {number}"), may_wait=name == "a" and number % 70 != 0)

    threads = [threading.Thread(target=send, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    messages = ends.read(4000)
    for thread in threads:
        thread.join()
    texts = [message.data for message in messages if isinstance(message, Log)]
    for name in "ab":
        assert [text for text in texts if text.startswith(name)] == [f"{name} {number}" for number in range(2000)]


def test_a_parent_that_is_gone_is_ignored(ends: Ends) -> None:
    ends.theirs.close()
    burst(ends, 100)
    ends.channel.send(Log("stdout", "into the void"))


def test_receive_ends_with_the_parent(ends: Ends) -> None:
    ends.theirs.close()
    assert ends.channel.receive() is None
    assert ends.channel.receive_ready() is None


# waiting awake


def test_what_comes_while_it_waits_awake_is_read(ends: Ends) -> None:
    thread = threading.Thread(target=ends.theirs.sendall, args=(b"data",))
    thread.start()
    assert ends.channel._spin(time.perf_counter() + 10) == b"data"
    thread.join()


def test_it_does_not_wait_awake_for_longer_than_it_should(ends: Ends) -> None:
    assert ends.channel._spin(time.perf_counter()) is None
    assert ends.channel._spin(time.perf_counter() + 1e-4) is None


def test_a_parent_that_is_gone_ends_the_waiting(ends: Ends) -> None:
    ends.theirs.close()
    assert ends.channel._spin(time.perf_counter() + 10) == b""


def test_a_parent_that_has_left_something_unread_ends_the_waiting(ends: Ends) -> None:
    ends.channel.send(chunk(1))
    ends.theirs.close()  # which resets the connection
    assert ends.channel._spin(time.perf_counter() + 10) == b""


def test_nothing_there_after_all_is_waited_for_on(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    class Poll:
        asked = 0

        def poll(self, _timeout: int) -> list[tuple[int, int]]:
            self.asked += 1
            if self.asked == 2:
                ends.theirs.sendall(b"data")
            return [(0, 0)]

    monkeypatch.setattr(ends.channel, "_poll", Poll())
    assert ends.channel._spin(time.perf_counter() + 10) == b"data"
