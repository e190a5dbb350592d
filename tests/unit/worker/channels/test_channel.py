"""The worker's end of a channel: frames arrive whole, in order, and as soon as they should."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from geartrain.domain.predictions.calls import ItemEvent, Report
from geartrain.domain.predictions.events import Log, Output
from geartrain.ipc.framing import FrameReader
from geartrain.ipc.messages import Reports, decode_call_to_parent
from geartrain.worker.channels import channel as channels
from geartrain.worker.channels.channel import Channel


class Ends:
    """A channel and the parent's end of it."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.theirs.settimeout(40)
        self.channel = Channel(ours)
        self._reader = FrameReader()
        self.messages = 0  # that have been read

    def read(self, count: int) -> list[Report]:
        """Read until so many reports are there; there must not be more."""
        reports: list[Report] = []
        while len(reports) < count:
            for message in map(decode_call_to_parent, self._reader.feed(self.theirs.recv(65536))):
                assert (message.slot, message.serial, message.idle) == (0, 1, False)
                reports += message.reports
                self.messages += 1
        assert len(reports) == count
        assert not self._reader.pending
        return reports


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.channel.close()
    ends.theirs.close()


def of_call(report: Report) -> Reports:
    return Reports(0, 1, (report,))


def chunk(number: int) -> Report:
    return ItemEvent(0, Output(b"%d" % number, 0))


def log(text: str) -> Report:
    return ItemEvent(0, Log("stdout", text))


def burst(ends: Ends, count: int) -> None:
    for number in range(count):
        ends.channel.send_soon(of_call(chunk(number)))


def test_the_first_ones_do_not_wait(ends: Ends) -> None:
    ends.theirs.setblocking(False)
    for number in range(channels._BURST_BEGINS):
        ends.channel.send_soon(of_call(chunk(number)))
        assert ends.read(1) == [chunk(number)]


def test_one_after_a_pause_does_not_wait(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_BURST_GAP", 0.0)  # whatever comes, comes after a pause
    ends.theirs.setblocking(False)
    for number in range(100):
        ends.channel.send_soon(of_call(chunk(number)))
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
    ends.channel.send(of_call(log("after")))
    rest = [chunk(number) for number in range(channels._BURST_BEGINS, 100)]
    ends.messages = 0
    assert ends.read(len(rest) + 1) == [*rest, log("after")]
    assert ends.messages == 2, "what has waited is one message"


def test_frames_of_many_threads_stay_whole_and_in_order(ends: Ends) -> None:
    def send(name: str) -> None:
        for number in range(2000):
            report = log(f"{name} {number}")
            if name == "a" and number % 70:
                ends.channel.send_soon(of_call(report))
            else:
                ends.channel.send(of_call(report))

    threads = [threading.Thread(target=send, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    reports = ends.read(4000)
    for thread in threads:
        thread.join()
    texts = [report.event.data for report in reports if isinstance(report, ItemEvent) and isinstance(report.event, Log)]
    for name in "ab":
        assert [text for text in texts if text.startswith(name)] == [f"{name} {number}" for number in range(2000)]


def test_a_parent_that_is_gone_is_ignored(ends: Ends) -> None:
    ends.theirs.close()
    burst(ends, 100)
    ends.channel.send(of_call(log("into the void")))


def test_receive_ends_with_the_parent(ends: Ends) -> None:
    ends.theirs.close()
    assert ends.channel.receive() is None
    assert ends.channel.receive_ready() is None
