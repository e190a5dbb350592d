"""Requests that a loop has not seen yet."""

from __future__ import annotations

import threading
from contextvars import copy_context
from typing import Any

from geartrain.authoring.joining import Arrivals, Batch, LiveRequest, Outlet


def request(name: str) -> LiveRequest[str, Any]:
    """Make a request."""
    return LiveRequest(name, Outlet(lambda _: None, threading.Event(), streams=False), copy_context())


def test_a_request_that_is_gone_is_not_kept() -> None:
    arrivals: Arrivals[str, Any] = Arrivals()
    first, second = request("a"), request("b")
    for each in (first, second):
        arrivals.put(each)
    arrivals.discard(first)
    arrivals.discard(first)
    assert len(arrivals) == 1
    assert arrivals.take(wait=True) == [second]
    assert arrivals.take(wait=False) == []
    arrivals.discard(second)


def test_a_loop_waits_for_one_that_is_live() -> None:
    arrivals: Arrivals[str, Any] = Arrivals()
    gone = request("gone")
    gone._outlet.close()
    arrivals.put(gone)
    turns: list[list[str]] = []

    def run() -> None:
        for live in Batch(arrivals):
            turns.append([each.inputs for each in live])
            for each in live:
                each.end()
            if live[-1].inputs == "last":
                return

    loop = threading.Thread(target=run)
    loop.start()
    for name in ("a", "last"):
        arrivals.put(request(name))
    loop.join(10)
    assert not loop.is_alive()
    assert [name for turn in turns for name in turn] == ["a", "last"]
