"""The states of streams: every step from every state, and what is remembered of streams that are over."""

from __future__ import annotations

import itertools

import pytest

from geartrain.transport.http2.frames import ConnectionFaultError, StreamFaultError
from geartrain.transport.http2.interface import UNKNOWN_LENGTH
from geartrain.transport.http2.streams import Step, Stream, Streams, StreamState

S = StreamState
FATAL = ConnectionFaultError
STREAM = StreamFaultError

# What section 5.1 of RFC 9113 says, written down once more: the state that follows, or an error and its code.
HEAD, WHOLE, DATA, END, RESET = (
    Step.RECEIVE_HEAD,
    Step.RECEIVE_WHOLE,
    Step.RECEIVE_DATA,
    Step.RECEIVE_END,
    Step.RECEIVE_RESET,
)
WINDOW, PRIORITY, SEND_END, SEND_RESET = Step.RECEIVE_WINDOW, Step.RECEIVE_PRIORITY, Step.SEND_END, Step.SEND_RESET
EXPECTED: dict[StreamState, dict[Step, object]] = {
    S.IDLE: {
        HEAD: S.OPEN,
        WHOLE: S.HALF_CLOSED,
        PRIORITY: S.IDLE,
        **dict.fromkeys((DATA, END, RESET, WINDOW), (FATAL, 1)),
    },
    S.OPEN: {
        HEAD: (STREAM, 1),
        WHOLE: S.HALF_CLOSED,
        DATA: S.OPEN,
        END: S.HALF_CLOSED,
        RESET: S.CLOSED,
        WINDOW: S.OPEN,
        PRIORITY: S.OPEN,
        SEND_END: S.RESET,
        SEND_RESET: S.RESET,
    },
    S.HALF_CLOSED: {
        **dict.fromkeys((HEAD, WHOLE, DATA, END), (STREAM, 5)),
        RESET: S.CLOSED,
        WINDOW: S.HALF_CLOSED,
        PRIORITY: S.HALF_CLOSED,
        SEND_END: S.CLOSED,
        SEND_RESET: S.RESET,
    },
    S.RESET: {**dict.fromkeys((HEAD, WHOLE, DATA, END, WINDOW, PRIORITY), S.RESET), RESET: S.CLOSED},
    S.CLOSED: {
        **dict.fromkeys((HEAD, WHOLE, DATA, END), (FATAL, 5)),
        **dict.fromkeys((RESET, WINDOW, PRIORITY), S.CLOSED),
    },
    S.SKIPPED: {
        **dict.fromkeys((HEAD, WHOLE), (FATAL, 1)),
        **dict.fromkeys((DATA, END), (FATAL, 5)),
        **dict.fromkeys((RESET, WINDOW, PRIORITY), S.SKIPPED),
    },
}
OURS = (SEND_END, SEND_RESET)
TO_STATE = {
    S.IDLE: (),
    S.OPEN: (HEAD,),
    S.HALF_CLOSED: (HEAD, END),
    S.RESET: (HEAD, SEND_RESET),
    S.CLOSED: (WHOLE, SEND_END),
}


def new_stream(number: int) -> Stream:
    return Stream(number, inbound=10, outbound=10, expected=UNKNOWN_LENGTH)


def take(streams: Streams, number: int, step: Step) -> None:
    stream = streams.get(number)
    if stream is not None:
        streams.step(stream, step)
    elif step in {HEAD, WHOLE} and streams.state_of(number) is S.IDLE:
        streams.open(new_stream(number), step)
    else:
        streams.step_of_other(number, step)


def in_state(state: StreamState) -> Streams:
    """Return streams of which 3 is in this state."""
    streams = Streams(10)
    if state is S.SKIPPED:
        take(streams, 5, HEAD)
    else:
        take(streams, 1, HEAD)
        for step in TO_STATE[state]:
            take(streams, 3, step)
    assert streams.state_of(3) is state
    return streams


@pytest.mark.parametrize(("state", "step"), [*itertools.product(S, Step)], ids=lambda each: each.name)
def test_every_step_from_every_state(state: StreamState, step: Step) -> None:
    streams = in_state(state)
    expected = EXPECTED[state].get(step, (FATAL, 2))  # a step that the codec itself never takes
    if isinstance(expected, tuple):
        kind, code = expected
        with pytest.raises((ConnectionFaultError, StreamFaultError)) as caught:
            take(streams, 3, step)
        fault = caught.value
        assert isinstance(fault, ConnectionFaultError | StreamFaultError)
        assert (type(fault), fault.code) == (kind, code)
        assert "3" in str(caught.value)
        assert streams.state_of(3) is state
    else:
        take(streams, 3, step)
        assert streams.state_of(3) is expected


def test_table_names_every_step() -> None:
    for state, steps in EXPECTED.items():
        assert {*Step} - {*steps} <= {*OURS}, state


def test_open_streams_are_counted() -> None:
    streams = Streams(10)
    take(streams, 1, HEAD)
    take(streams, 3, WHOLE)
    assert len(streams) == 2
    assert [stream.id for stream in streams] == [1, 3]
    take(streams, 3, SEND_END)
    take(streams, 1, RESET)
    assert len(streams) == 0


@pytest.mark.parametrize("number", [0, 2, 4, 1_000_000])
def test_streams_of_the_server_are_idle(number: int) -> None:
    streams = in_state(S.CLOSED)
    assert streams.state_of(number) is S.IDLE


def test_numbers_that_are_left_out_are_skipped() -> None:
    streams = Streams(10)
    for number in (5, 7, 13):
        take(streams, number, HEAD)
    states = {number: streams.state_of(number) for number in range(1, 17, 2)}
    assert [number for number, state in states.items() if state is S.SKIPPED] == [1, 3, 9, 11]
    assert states[15] is S.IDLE


def test_streams_that_were_reset_long_ago_are_tolerated_together() -> None:
    streams = Streams(3)
    for number in range(1, 21, 2):
        take(streams, number, HEAD)
        take(streams, number, SEND_RESET)
    take(streams, 21, WHOLE)
    take(streams, 21, SEND_END)
    assert len(streams._reset) == 3
    for number in range(1, 21, 2):
        take(streams, number, DATA)
        assert streams.state_of(number) is S.RESET
    assert streams.state_of(21) is S.CLOSED


def test_reset_by_both_is_no_longer_remembered() -> None:
    streams = in_state(S.RESET)
    take(streams, 3, RESET)
    assert streams._reset == {}


def test_memory_of_streams_is_bounded() -> None:
    streams = Streams(16)
    for number in range(1, 40_001, 4):
        take(streams, number, HEAD)
        take(streams, number, SEND_RESET)
    assert len(streams) == 0
    assert len(streams._reset) == 16
    assert len(streams._gaps) <= 16
