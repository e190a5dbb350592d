"""Flow control."""

from __future__ import annotations

import pytest

from geartrain.transport.http2.frames import ConnectionFaultError, StreamFaultError
from geartrain.transport.http2.interface import ErrorCode
from geartrain.transport.http2.streams import MAX_WINDOW, ReceiveWindow, SendWindows, grown, shifted


def test_credit_is_given_when_half_of_a_window_has_been_used() -> None:
    window = ReceiveWindow(100)
    window.left -= 60
    assert window.acknowledge(49) == 0
    assert window.left == 40
    assert window.acknowledge(1) == 50
    assert window.left == 90
    assert window.acknowledge(10) == 0


def test_no_credit_is_given_for_nothing() -> None:
    assert ReceiveWindow(0).acknowledge(0) == 0
    assert ReceiveWindow(1).acknowledge(0) == 0


def test_window_of_one_byte_gives_credit_for_each() -> None:
    window = ReceiveWindow(1)
    window.left -= 1
    assert window.acknowledge(1) == 1
    assert window.left == 1


def test_smaller_window_gives_credit_for_what_was_used_before() -> None:
    window = ReceiveWindow(100)
    window.left -= 40
    assert window.acknowledge(40) == 0
    window.resize(-80)
    assert window.left == -20
    assert window.acknowledge(0) == 40
    assert window.left == 20


def test_window_of_the_connection_grows() -> None:
    windows = SendWindows()
    windows.grow_connection(10)
    assert windows.connection == 65_545


@pytest.mark.parametrize(("increment", "code"), [(0, 1), (MAX_WINDOW - 65_534, 3)])
def test_window_of_the_connection_cannot_grow_so(increment: int, code: int) -> None:
    with pytest.raises(ConnectionFaultError) as caught:
        SendWindows().grow_connection(increment)
    assert caught.value.code == code


@pytest.mark.parametrize(("increment", "code"), [(0, 1), (MAX_WINDOW, 3)])
def test_window_of_a_stream_cannot_grow_so(increment: int, code: int) -> None:
    with pytest.raises(StreamFaultError) as caught:
        grown(1, increment)
    assert caught.value.code == code


def test_window_of_a_stream_grows_from_below_zero() -> None:
    assert grown(-5, MAX_WINDOW) == MAX_WINDOW - 5


def test_setting_shifts_a_window_as_far_as_it_may() -> None:
    assert shifted(10, -30) == -20
    assert shifted(10, MAX_WINDOW - 10) == MAX_WINDOW
    with pytest.raises(ConnectionFaultError) as caught:
        shifted(11, MAX_WINDOW - 10)
    assert caught.value.code is ErrorCode.FLOW_CONTROL_ERROR
