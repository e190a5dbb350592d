"""Many requests on one connection (RFC 9112, section 9): order, keep-alive, early answers, offers to upgrade."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from tests.support.attacks import (
    ECHO,
    HEALTH,
    JSON,
    LAST,
    MANY,
    SMUGGLED,
    STREAMING,
    Flood,
    answers_to,
    body,
    error_of,
    framed,
    handled,
    in_chunks,
    peer,
    post,
    request,
    runs,
)
from tests.support.servers import LiveServer, Serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_BODY = 65_536
LARGE = 8 * 1024**2
GARBAGE = b"\x00\x01garbage\r\n\r\n"
CONTINUE = "Expect: 100-continue"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(ECHO, cog_yaml=MANY, max_body_bytes=MAX_BODY) as server:
        yield server


def chunked(text: str) -> bytes:
    content = body(text)
    return in_chunks(b"3\r\n%b\r\n%x;ext\r\n%b\r\n0\r\nX: y\r\n\r\n" % (content[:3], len(content) - 3, content[3:]))


# pipelining


async def test_answers_come_in_the_order_of_the_requests(server: LiveServer) -> None:
    random.seed(12)
    texts = [f"{number}-{'x' * random.randrange(2000)}" for number in range(200)]  # noqa: S311
    kinds: list[Callable[[str], bytes]] = [post, chunked, lambda _: HEALTH, lambda _: request("GET", "/nothing")]
    chosen = [random.choice(kinds) for _ in texts]  # noqa: S311
    data = b"".join(kind(text) for kind, text in zip(chosen, texts, strict=True))
    *answers, _ = await answers_to(server.url, data + LAST)
    assert len(answers) == len(texts)
    for answer, kind, text in zip(answers, chosen, texts, strict=True):
        if kind in {post, chunked}:
            assert answer.json()["output"] == text
        else:
            assert answer.status in {200, 404}
            assert "output" not in answer.json()


async def test_a_quick_request_waits_for_the_slow_one_before_it(server: LiveServer) -> None:
    async with peer(server.url) as client:
        await client.send(post("slow", gate="slow-1") + HEALTH + post("quick") + LAST)
        await handled(server.url)
        server.open_gate("slow-1")
        answers = await client.answers()
    assert [answer.json().get("output") for answer in answers] == ["slow", None, "quick", None]


async def test_two_connections_get_what_is_theirs(server: LiveServer) -> None:
    async with peer(server.url) as first, peer(server.url) as second:
        await first.send(post("first", gate="both-1") + LAST)
        await second.send(post("second", gate="both-2") + LAST)
        await handled(server.url)
        server.open_gate("both-2")
        assert (await second.answers())[0].json()["output"] == "second"
        server.open_gate("both-1")
        assert (await first.answers())[0].json()["output"] == "first"


@pytest.mark.parametrize("is_later", [False, True])
async def test_a7_garbage_behind_a_slow_request(server: LiveServer, is_later: bool) -> None:
    """The answer that is owed comes first, whole; then the 400; then the end."""
    gate = f"garbage-{is_later}"
    async with peer(server.url) as client:
        await client.send(post("owed", gate=gate) + (b"" if is_later else GARBAGE))
        await handled(server.url)
        if is_later:
            await client.send(GARBAGE)
            await handled(server.url)
        server.open_gate(gate)
        first, second = await client.answers()
    assert first.json()["output"] == "owed"
    assert second.status == 400
    assert error_of(second)
    assert second.headers["connection"] == "close"


async def test_a7_garbage_behind_a_large_answer(server: LiveServer) -> None:
    async with peer(server.url, small=True) as client:
        await client.send(post("", size=LARGE))
        await client.begins()
        await client.send(GARBAGE)
        await handled(server.url)
        first, second = await client.answers()
    assert len(first.json()["output"]) == LARGE
    assert second.status == 400


async def test_a7_garbage_behind_an_open_stream(serve: Serve) -> None:
    async with serve(STREAMING) as server, peer(server.url) as client:
        stream = request("POST", "/predictions", "Accept: text/event-stream", content=body("one", gate="go", pieces=2))
        await client.send(stream)
        await client.begins()
        await client.send(GARBAGE)
        await handled(server.url)
        server.open_gate("go")
        first, second = await client.answers()
        assert (first.status, second.status) == (200, 400)
        assert first.body.count(b"event: output") == 2
        assert first.body.endswith(b"\n\n")
        assert b"event: completed" in first.body


async def test_everything_before_the_garbage_is_answered(server: LiveServer) -> None:
    answers = await answers_to(server.url, post("a") + HEALTH + chunked("b") + GARBAGE + SMUGGLED)
    assert [answer.status for answer in answers] == [200, 200, 200, 400]
    assert [answers[0].json()["output"], answers[2].json()["output"]] == ["a", "b"]


# keep-alive and close


@pytest.mark.parametrize("value", ["close", "Close", "keep-alive, close", "close, x", "x,close", " close "])
async def test_nothing_behind_connection_close_is_run(server: LiveServer, value: str) -> None:
    before = runs(server)
    [answer] = await answers_to(server.url, post("only", f"Connection: {value}") + SMUGGLED + post("more"))
    assert (answer.json()["output"], answer.headers["connection"]) == ("only", "close")
    assert len(runs(server)) == len(before) + 1


async def test_a_connection_field_for_each_option(server: LiveServer) -> None:
    [answer] = await answers_to(server.url, post("only", "Connection: keep-alive", "Connection: close") + SMUGGLED)
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    "fields", [(), ("Connection: keep-alive",), ("Connection: closed",), ("Connection: x",), ("Close: close",)]
)
async def test_a_connection_is_kept_otherwise(server: LiveServer, fields: tuple[str, ...]) -> None:
    first, second = await answers_to(server.url, post("first", *fields) + LAST)
    assert (first.status, second.status) == (200, 200)
    assert first.headers.get("connection", "keep-alive") == "keep-alive"


async def test_http_1_0_closes(server: LiveServer) -> None:
    data = request("POST", "/predictions", content=body("old"), version="1.0")
    [answer] = await answers_to(server.url, data + SMUGGLED)
    assert answer.json()["output"] == "old"
    assert "transfer-encoding" not in answer.headers


async def test_http_1_0_may_ask_to_keep_the_connection(server: LiveServer) -> None:
    """It is granted and said so, or it is not (RFC 9112, section 9.3)."""
    data = request("GET", "/health-check", "Connection: keep-alive", version="1.0")
    answers = await answers_to(server.url, data + LAST)
    if len(answers) > 1:
        assert answers[0].headers["connection"] == "keep-alive"
    assert [answer.status for answer in answers] in ([200], [200, 200])


@pytest.mark.parametrize("path", ["/", "/health-check", "/openapi.json", "/v2/nothing", "/nothing", "/metrics"])
async def test_head_has_no_body(server: LiveServer, path: str) -> None:
    get, head, last = await answers_to(server.url, request("GET", path) + request("HEAD", path) + LAST, bodiless={1})
    assert (head.status, head.body, last.status) == (get.status, b"", 200)
    assert head.headers["content-type"] == get.headers["content-type"]
    assert head.headers.get("content-length", "") in {"", str(len(get.body))} or path in {"/metrics", "/health-check"}


# Expect


@pytest.mark.parametrize("value", ["100-continue", "100-Continue", "100-CONTINUE"])
async def test_a_body_that_is_wanted_is_asked_for(server: LiveServer, value: str) -> None:
    content = body("expected")
    async with peer(server.url) as client:
        await client.send(request("POST", "/predictions", f"Expect: {value}", content=content).removesuffix(content))
        assert (await client.answer()).status == 100
        await client.send(content + LAST)
        first, second = await client.answers()
    assert (first.json()["output"], second.status) == ("expected", 200)


async def test_a_body_that_came_by_itself_is_taken(server: LiveServer) -> None:
    answers = await answers_to(server.url, post("expected", CONTINUE) + LAST)
    assert [answer.status for answer in answers if answer.status != 100] == [200, 200]
    assert answers[-2].json()["output"] == "expected"


@pytest.mark.parametrize(
    ("method", "path", "length", "status"),
    [
        ("POST", "/predictions", MAX_BODY + 1, 413),
        ("POST", "/predictions", 2**40, 413),
        ("POST", "/nothing", 5, 404),
        ("POST", "/health-check", 5, 405),
        ("POST", "/models/nobody/predictions", 5, 404),
    ],
)
async def test_a_refused_request_is_not_asked_for_its_body(
    server: LiveServer, method: str, path: str, length: int, status: int
) -> None:
    before = runs(server)
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{CONTINUE}\r\n".encode() + JSON
    async with peer(server.url) as client:
        await client.send(head + b"\r\n")
        answer = await client.answer()
        assert answer.status == status
        if answer.headers.get("connection") == "close":
            assert await client.answers() == []
    assert runs(server) == before


@pytest.mark.parametrize("value", ["200-ok", "100-continue, x", "100", "", "100-continue;q=1"])
async def test_an_unknown_expectation_is_417(server: LiveServer, value: str) -> None:
    answers = await answers_to(server.url, post("x", f"Expect: {value}", "Connection: close"))
    assert [answer.status for answer in answers] == [417]
    assert "100-continue" in error_of(answers[0])


async def test_http_1_0_expects_nothing(server: LiveServer) -> None:
    """Its client would not understand the 100 (RFC 9110, section 10.1.1)."""
    [answer] = await answers_to(
        server.url, request("POST", "/predictions", CONTINUE, content=body("old"), version="1.0")
    )
    assert (answer.status, answer.json()["output"]) == (200, "old")


async def test_the_100_of_a_pipelined_request_waits_for_its_turn(server: LiveServer) -> None:
    content = body("second")
    async with peer(server.url) as client:
        await client.send(post("first", gate="expect-1"))
        await client.send(request("POST", "/predictions", CONTINUE, content=content).removesuffix(content))
        await handled(server.url)
        server.open_gate("expect-1")
        assert (await client.answer()).json()["output"] == "first"
        assert (await client.answer()).status == 100
        await client.send(content + LAST)
        assert (await client.answers())[0].json()["output"] == "second"


# Upgrade


@pytest.mark.parametrize("offer", ["foo", "websocket", "h2c", "HTTP/2.0", "TLS/1.0", "h2c, foo"])
@pytest.mark.parametrize("segments", [1, 2])
async def test_a1_the_body_of_an_offer_to_upgrade_belongs_to_it(server: LiveServer, offer: str, segments: int) -> None:
    before = runs(server)
    head = framed(f"Upgrade: {offer}\r\nConnection: Upgrade\r\nContent-Length: {len(SMUGGLED)}\r\n".encode())
    parts = [head, SMUGGLED + post("behind") + LAST]
    refused, behind, last = await answers_to(server.url, *(parts if segments > 1 else [b"".join(parts)]))
    assert refused.status == 400  # that text is no JSON
    assert (behind.json()["output"], last.status) == ("behind", 200)
    assert len(runs(server)) == len(before) + 1


async def test_a1_a_good_request_that_offers_h2c_is_served(server: LiveServer) -> None:
    fields = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"]
    content = body("upgraded")
    whole = request("POST", "/predictions", *fields, content=content)
    for segments in ([whole + LAST], [whole.removesuffix(content), content + LAST]):
        first, second = await answers_to(server.url, *segments)
        assert (first.json()["output"], second.status) == ("upgraded", 200)
    get, last = await answers_to(server.url, request("GET", "/health-check", *fields) + LAST)
    assert (get.status, last.status) == (200, 200)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_a1_curl_offers_http_2(server: LiveServer) -> None:
    words = ["curl", "--silent", "--show-error", "--http2", "--max-time", "10", f"{server.url}/predictions"]
    words += ["-H", "content-type: application/json", "-d", body("curl").decode()]
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, check=True)
    assert '"output":"curl"' in done.stdout


# early answers


async def test_an_early_answer_reaches_a_client_that_sends_all_first(server: LiveServer) -> None:
    """As most clients do: they read when their body is gone. What they send is taken for a while."""
    content = b" " * (4 * 1024**2)
    async with peer(server.url) as client:
        await client.send(request("POST", "/predictions", content=content))
        [answer] = await client.answers()
    assert answer.status == 413
    assert str(MAX_BODY) in error_of(answer)
    assert not client.was_reset


@pytest.mark.parametrize("framing", [b"Content-Length: 1099511627776\r\n", b"Transfer-Encoding: chunked\r\n"])
async def test_a8_a_client_that_goes_on_after_an_early_answer(server: LiveServer, framing: bytes) -> None:
    """It gets the answer, whole. Then the connection ends, and not all that it sends is swallowed."""
    piece = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    most = 512 * 1024**2
    [answer], taken = await Flood(lambda: piece, most).run(server.url, framed(framing))
    assert answer.status == 413
    assert answer.headers["connection"] == "close"
    assert "--max-body-size" in error_of(answer)
    assert taken < most


async def test_the_body_of_an_early_answer_is_not_run(server: LiveServer) -> None:
    """It is read over, or the connection ends."""
    before = runs(server)
    content = (SMUGGLED * 500)[: MAX_BODY + 1]
    first, *more = await answers_to(server.url, framed(b"Content-Length: %d\r\n" % len(content), content) + LAST)
    assert first.status == 413
    assert [answer.status for answer in more] == ([] if first.headers.get("connection") == "close" else [200])
    assert runs(server) == before
