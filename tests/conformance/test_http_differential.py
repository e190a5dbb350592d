"""The server reads what h11 reads: pipelined mixes of requests, good and faulty, cut at random places."""

from __future__ import annotations

import asyncio
import random
import re
from urllib.parse import urlsplit

import pytest

from tests.support.attacks import ECHO, HEALTH, MANY, framed, in_chunks, post
from tests.support.servers import Serve
from tools.fuzz.client import Seen
from tools.fuzz.differential import fuzz
from tools.fuzz.mixes import STRICTER, Mix, difference, judge, make_mix

MIXES = 2000


async def test_the_server_reads_what_h11_reads(serve: Serve) -> None:
    """`python -m tools.fuzz.differential` does the same with 20,000 mixes and a server of its own."""
    async with serve(ECHO, cog_yaml=MANY) as server:
        parts = urlsplit(server.url)
        found = await asyncio.wait_for(fuzz((parts.hostname or "", parts.port or 0), MIXES, seed=1), 200)
    assert found == []


# the comparison itself


def answer(status: int, body: bytes = b"{}", *, closes: bool = False) -> Seen:
    return Seen(status, {"connection": "close"} if closes else {}, body)


ECHOED = answer(200, b'{"output":"x"}')


def test_equal_answers_do_not_differ() -> None:
    assert difference(Mix(post() + HEALTH, ()), [ECHOED, answer(200)]) == ""
    assert difference(Mix(post() + HEALTH, ()), [answer(100), ECHOED, answer(404)]) == ""


@pytest.mark.parametrize(
    ("data", "answers"),
    [
        (post() + HEALTH, [ECHOED]),
        (post() + HEALTH, [answer(200), ECHOED]),
        (post() + HEALTH, [ECHOED, answer(200), answer(200)]),
        (post(), [answer(400, closes=True)]),
        (post(), [answer(500)]),
        (framed(b"Content-Length: -1\r\n"), [answer(200)]),
        (framed(b"Content-Length: -1\r\n"), []),
        (framed(b"Content-Length: -1\r\n"), [answer(400, closes=True), answer(200)]),
        (post("x", "Connection: close") + HEALTH, [ECHOED, answer(200)]),
        (in_chunks(b"5\r\n"), [ECHOED]),
        (in_chunks(b"5\r\n"), [answer(404), answer(404)]),
        (HEALTH[:-2], [answer(200)]),
    ],
)
def test_answers_that_differ_are_found(data: bytes, answers: list[Seen]) -> None:
    assert difference(Mix(data, ()), answers)


def test_a_refusal_with_a_reason_is_none() -> None:
    assert difference(Mix(HEALTH.replace(b"\r\n", b"\n", 1), ()), [answer(400, closes=True)]) == ""
    assert difference(Mix(b"\r\n" + HEALTH, ()), [answer(200)]) == ""


def test_mixes_are_of_every_kind() -> None:
    """Good ones, faulty ones, and such as need each of the reasons."""
    mixes = [make_mix(random.Random(number)) for number in range(3000)]  # noqa: S311
    verdicts = [judge(mix.data) for mix in mixes]
    ends = [verdict.end for verdict in verdicts]
    assert all(ends.count(end) > 9 for end in ("close", "error", "incomplete"))
    assert all(b"".join(mix.pieces) == mix.data for mix in mixes)
    for _, pattern in STRICTER:
        assert any(re.search(pattern, request.raw) for verdict in verdicts for request in verdict.requests), pattern
