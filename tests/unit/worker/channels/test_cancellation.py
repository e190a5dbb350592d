"""A cancel raises in the author's code on the main thread, once, and nowhere else."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from geartrain.authoring import CancelationException
from geartrain.worker.channels.cancellation import CANCEL_SIGNAL, CancelRegion


@pytest.fixture
def region() -> Iterator[CancelRegion]:
    region = CancelRegion()
    region.install()
    yield region
    region.uninstall()


def in_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def request_from_thread(region: CancelRegion, serial: int) -> None:
    """As the control thread does; the signal is delivered before this returns or soon after."""
    in_thread(lambda: region.request(serial))
    signal.sigtimedwait([], 0)  # a system call, after which a signal that has come is handled


def test_running_job_is_interrupted(region: CancelRegion) -> None:
    assert region.enter(1)
    with pytest.raises(CancelationException):
        request_from_thread(region, 1)
    assert region.was_requested(1)
    region.leave()


def test_blocking_call_is_interrupted(region: CancelRegion) -> None:
    read_end, write_end = os.pipe()
    thread = threading.Thread(target=region.request, args=(1,))

    def block() -> None:
        thread.start()
        os.read(read_end, 1)  # nobody ever writes

    assert region.enter(1)
    with pytest.raises(CancelationException):
        block()
    region.leave()
    thread.join()
    os.close(read_end)
    os.close(write_end)


def test_job_canceled_before_it_began_does_not_begin(region: CancelRegion) -> None:
    region.request(1)
    assert not region.enter(1)
    assert region.was_requested(1)
    assert region.enter(2)
    assert not region.was_requested(2)


def test_late_cancel_hits_nobody(region: CancelRegion) -> None:
    assert region.enter(1)
    region.leave()
    assert region.enter(2)
    request_from_thread(region, 1)
    assert not region.was_requested(2)
    region.leave()
    request_from_thread(region, 2)


def test_signal_out_of_the_blue_is_ignored(region: CancelRegion) -> None:
    signal.raise_signal(CANCEL_SIGNAL)
    assert region.enter(1)
    signal.raise_signal(CANCEL_SIGNAL)
    region.leave()


def test_cancel_is_raised_once(region: CancelRegion) -> None:
    """A client that repeats its request must not interrupt the author's clean-up."""
    assert region.enter(1)
    with pytest.raises(CancelationException):
        request_from_thread(region, 1)
    request_from_thread(region, 1)
    region.leave()


def test_each_job_has_its_own_cancel(region: CancelRegion) -> None:
    for serial in range(5):
        assert region.enter(serial)
        with pytest.raises(CancelationException):
            request_from_thread(region, serial)
        region.leave()


def test_shield_holds_a_cancel_back_until_it_is_left(region: CancelRegion) -> None:
    assert region.enter(1)
    done = []
    with pytest.raises(CancelationException), region.shield:  # noqa: PT012 - what is done inside is the point
        with region.shield:
            request_from_thread(region, 1)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]
    with region.shield:
        pass
    region.leave()


def test_shield_lets_go_of_a_cancel_that_has_become_late(region: CancelRegion) -> None:
    assert region.enter(1)
    with region.shield:
        request_from_thread(region, 1)
        region.leave()
    assert region.enter(2)
    with region.shield:
        pass
    region.leave()


def test_shield_of_another_thread_does_not_count(region: CancelRegion) -> None:
    """Signals arrive on the main thread; what another one writes is not torn by them."""
    assert region.enter(1)
    in_thread(region.shield.__enter__)
    with pytest.raises(CancelationException):
        request_from_thread(region, 1)
    in_thread(region.shield.__exit__)
    region.leave()


def test_exception_in_the_shield_passes(region: CancelRegion) -> None:
    assert region.enter(1)
    with pytest.raises(ZeroDivisionError), region.shield:
        raise ZeroDivisionError
    with pytest.raises(CancelationException):
        request_from_thread(region, 1)
    region.leave()


def test_signal_that_is_not_noticed_is_sent_again(region: CancelRegion, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes just before a blocking call does not interrupt it: the interpreter has looked already."""
    read_end, write_end = os.pipe()
    sent = []
    kill = signal.pthread_kill

    def lose_the_first(thread: int, number: int) -> None:
        sent.append(number)
        if len(sent) > 1:
            kill(thread, number)

    monkeypatch.setattr(signal, "pthread_kill", lose_the_first)
    thread = threading.Thread(target=region.request, args=(1,))
    rescue = threading.Timer(10, os.write, (write_end, b"x"))

    def block() -> None:
        thread.start()
        os.read(read_end, 1)

    rescue.start()
    assert region.enter(1)
    with pytest.raises(CancelationException):
        block()
    region.leave()
    rescue.cancel()
    for ended in (thread, rescue):
        ended.join()
    os.close(read_end)
    os.close(write_end)


def test_signal_is_not_sent_for_ever(region: CancelRegion, monkeypatch: pytest.MonkeyPatch) -> None:
    """C code that does not come back gets it when it does; the control channel is needed before."""
    sent = []
    monkeypatch.setattr(signal, "pthread_kill", lambda _thread, number: sent.append(number))
    assert region.enter(1)
    region.request(1)
    assert sent
    region.leave()


class Finalized:
    """Holds on to its thread in its finalizer."""

    def __init__(self, hold: Callable[[], object]) -> None:
        self._hold = hold

    def __del__(self) -> None:
        self._hold()


def callback_of_c(hold: Callable[[], object]) -> None:
    ctypes.CFUNCTYPE(None)(lambda: hold() and None)()


def finalizer(hold: Callable[[], object]) -> None:
    Finalized(hold)


@pytest.mark.parametrize("swallow", [finalizer, callback_of_c])
def test_cancel_that_is_swallowed_comes_again(region: CancelRegion, swallow: Callable[..., None]) -> None:
    read_end, write_end = os.pipe()
    thread = threading.Thread(target=region.request, args=(1,))

    def hold() -> None:
        thread.start()
        os.read(read_end, 1)  # nobody ever writes

    def run() -> None:
        swallow(hold)
        os.read(read_end, 1)

    assert region.enter(1)
    with pytest.raises(CancelationException):
        run()
    region.leave()
    thread.join()
    os.close(read_end)
    os.close(write_end)


def test_without_room_for_a_thread_later_cancels_come(region: CancelRegion, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThread:
        def __init__(self, **_: object) -> None:
            raise RuntimeError("can't start new thread")

    real = threading.Thread

    def hold() -> None:
        thread = real(target=region.request, args=(1,))
        monkeypatch.setattr(threading, "Thread", NoThread)
        thread.start()
        thread.join()

    assert region.enter(1)
    finalizer(hold)
    region.leave()
    monkeypatch.undo()
    assert region.enter(2)
    with pytest.raises(CancelationException):
        request_from_thread(region, 2)
    region.leave()


def test_other_exceptions_of_finalizers_are_shown_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: shown.append(lost.exc_value))
    region = CancelRegion()
    region.install()
    assert region.enter(1)

    def fail() -> None:
        raise ValueError("in a finalizer")

    finalizer(fail)
    region.leave()
    region.uninstall()
    assert [str(error) for error in shown] == ["in a finalizer"]
