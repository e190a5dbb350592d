"""The table of a connection's states."""

from __future__ import annotations

import pytest

from geartrain.transport.wire.http1 import CONNECTION_STEPS, OVER, ConnectionState
from tests.unit.transport.wire.parts import Line


@pytest.mark.parametrize("wanted", list(ConnectionState))
@pytest.mark.parametrize("state", list(ConnectionState))
def test_every_pair(state: ConnectionState, wanted: ConnectionState) -> None:
    line = Line()
    line.connection.state = state
    line.context.now = 5000.0
    if wanted in CONNECTION_STEPS[state]:
        line.connection.step(wanted)
        assert (line.state, line.connection.since) == (wanted, 5000.0)
    else:
        with pytest.raises(RuntimeError, match=f"cannot go from {state} to {wanted}"):
            line.connection.step(wanted)
        assert line.state is state


def test_the_table_is_whole() -> None:
    assert set(CONNECTION_STEPS) == set(ConnectionState)
    assert all(
        ConnectionState.CLOSED in steps
        for state, steps in CONNECTION_STEPS.items()
        if state is not ConnectionState.CLOSED
    ), "a client may leave at any time"
    assert all(CONNECTION_STEPS[state] <= OVER for state in OVER), "no request follows the last answer"
