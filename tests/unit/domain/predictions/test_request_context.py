"""The ids of a request: what is taken from a client, and what is made."""

from __future__ import annotations

import re

import pytest

from geartrain.domain.predictions.request_context import (
    MAX_REQUEST_ID,
    NO_REQUEST,
    NOTHING_SENT,
    SentIds,
    new_context,
    read_ids,
)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
VALID = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


@pytest.mark.parametrize("given", ["a", "A-b_c.1", "!~{}\"'", "x" * MAX_REQUEST_ID])
def test_a_request_id_is_taken_as_it_is(given: str) -> None:
    assert read_ids([given.encode()], [], []) == SentIds(request_id=given)


@pytest.mark.parametrize(
    "given",
    [[b""], [b"a b"], [b"x" * (MAX_REQUEST_ID + 1)], [b"a\tb"], ["é".encode()], [b"a\x7f"], [b"a", b"b"], [b"a\n"]],
    ids=repr,
)
def test_any_other_request_id_is_left_out(given: list[bytes]) -> None:
    assert read_ids(given, [], []) == SentIds()


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (PARENT, PARENT),
        (f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-00"),
        (f"01-{TRACE}-{SPAN}-03", f"00-{TRACE}-{SPAN}-03"),  # a later version is read as the first one
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", PARENT),
        (f"{PARENT}-more", ""),
        (f"cc-{TRACE}-{SPAN}-01.more", ""),
        (f"ff-{TRACE}-{SPAN}-01", ""),
        (f"00-{'0' * 32}-{SPAN}-01", ""),
        (f"00-{TRACE}-{'0' * 16}-01", ""),
        (PARENT.upper(), ""),
        (PARENT[:-1], ""),
        (f"{PARENT}\n", ""),
        (f" {PARENT}", ""),
        ("", ""),
    ],
)
def test_traceparent(given: str, taken: str) -> None:
    assert read_ids([], [given.encode()], []).traceparent == taken


def test_a_traceparent_that_comes_twice_is_left_out() -> None:
    assert read_ids([], [PARENT.encode()] * 2, [b"a=1"]) == SentIds()


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ([b"a=1,b=2"], "a=1,b=2"),
        ([b"a=1", b"b=2"], "a=1,b=2"),
        (["é=1".encode("latin-1")], ""),
        ([b"x" * 513], ""),
        ([], ""),
    ],
)
def test_tracestate(given: list[bytes], taken: str) -> None:
    assert read_ids([], [PARENT.encode()], given) == SentIds(traceparent=PARENT, tracestate=taken)
    assert read_ids([b"r"], [b"bad"], given) == SentIds(request_id="r"), "there is none without a traceparent"


def test_what_is_missing_is_made_anew_for_each_request() -> None:
    made = [new_context(NOTHING_SENT, "cog") for _ in range(1000)]
    assert len({context.request_id for context in made}) == len({context.traceparent for context in made}) == 1000
    for context in made:
        assert VALID.fullmatch(context.traceparent)
        assert context.trace_id == context.traceparent.split("-")[1]
        assert (len(context.request_id), context.tracestate, context.protocol) == (32, "", "cog")


def test_what_was_sent_stays() -> None:
    both = new_context(SentIds("r-1", PARENT, "a=1"), "rest")
    assert (both.request_id, both.traceparent, both.tracestate, both.protocol) == ("r-1", PARENT, "a=1", "rest")
    assert both.headers() == [("X-Request-Id", "r-1"), ("traceparent", PARENT), ("tracestate", "a=1")]
    named = new_context(SentIds("r-1"), "grpc")
    assert (named.request_id, bool(VALID.fullmatch(named.traceparent))) == ("r-1", True)
    traced = new_context(SentIds(traceparent=PARENT), "grpc")
    assert (traced.traceparent, len(traced.request_id)) == (PARENT, 32)
    assert traced.request_id not in PARENT, "several requests of a trace have ids of their own"


def test_without_a_request_there_is_nothing_to_tell() -> None:
    assert (NO_REQUEST.headers(), NO_REQUEST.trace_id) == ([], "")
