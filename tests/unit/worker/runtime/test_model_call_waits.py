"""Waits of several threads for answers of other models: none waits for what another one has read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from geartrain.ipc.messages import ModelAnswer
from geartrain.worker.runtime.model_calls import ModelCalls, _Call


class Silent:
    """A connection on which nothing comes any more."""

    def wait(self) -> None:
        pytest.fail("it waits for an answer that is there")


@pytest.mark.parametrize("has_ended", [True, False])
def test_answer_that_another_thread_has_read_is_not_waited_for(has_ended: bool, tmp_path: Path) -> None:
    channel: Any = Silent()
    calls = ModelCalls(channel, lambda: tmp_path / "new")
    calls.in_setup = False
    call = calls._pending[1] = _Call(calls, 1, (0, 1))
    seen = call.news
    calls.on_answer(ModelAnswer(1, error="no" if has_ended else "", mode="" if has_ended else "iterator"))
    calls.wait(call, seen)


def test_part_that_has_been_seen_is_waited_for(tmp_path: Path) -> None:
    came = []

    class Coming:
        def wait(self) -> None:
            came.append(1)
            raise SystemExit

    channel: Any = Coming()
    calls = ModelCalls(channel, lambda: tmp_path / "new")
    calls.in_setup = False
    call = calls._pending[1] = _Call(calls, 1, (0, 1))
    calls.on_answer(ModelAnswer(1))
    with pytest.raises(SystemExit):
        calls.wait(call, call.news)
    assert came
