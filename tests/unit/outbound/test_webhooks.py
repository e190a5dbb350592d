"""The sender of webhooks by itself, and the bounds on what waits for receivers."""

from __future__ import annotations

import asyncio
import gc
import ssl
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import pytest
import uvloop

from geartrain.domain.predictions.events import Log, Output
from geartrain.domain.predictions.prediction import Prediction, PredictionRecord, Webhook, WebhookEvent
from geartrain.outbound import webhooks
from geartrain.outbound.connection import PeerConnection
from geartrain.outbound.policy import UrlPolicy
from geartrain.outbound.retries import Retries
from geartrain.outbound.webhooks import HostLimits, WebhookSender
from geartrain.service.readers import ChangeReader, completion
from geartrain.service.webhooks import Backlog, Webhooks
from tests.support.certificates import make_party
from tests.support.receiver import Behaviour, Exchange, Receiver, answers, receiving, waits_for
from tests.support.web_server import running_server, unused_port

QUICK = Retries(first_pause=0.001, longest_pause=0.01, jitter=0)
HERE = UrlPolicy(allow_private=True)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
async def sender() -> AsyncIterator[WebhookSender]:
    sender = WebhookSender(HERE, user_agent="geartrain/test", retries=QUICK)
    yield sender
    await sender.close()


def sends(answer: bytes, *, closes: bool = False) -> Behaviour:
    """Answer with these bytes, as they are."""

    async def behave(exchange: Exchange) -> None:
        await exchange.send(answer, closes=closes)

    return behave


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(40):
        while not condition():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.001)


# targets


@pytest.mark.parametrize(
    "url", ["http://a.test", "HTTPS://A.test:8443/x?y#z", "http://user:pw@[2001:db9::1]/", "http://ä.test"]
)
def test_targets_that_may_be(url: str) -> None:
    assert WebhookSender(UrlPolicy(), user_agent="x").fault(url) is None


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("a.test/x", '"a.test/x" is no http: or https: URL'),
        ("ftp://a.test", '"ftp://a.test" is no http: or https: URL'),
        ("http://", '"http://" is a malformed URL'),
        ("http://a.test:99999", '"http://a.test:99999" is a malformed URL'),
        ("http://a%2eb/", '"a%2eb" cannot be the name of a host'),
        ("http://a..b/", '"a..b" cannot be the name of a host'),
        ("http://" + "a" * 64, '"' + "a" * 64 + '" cannot be the name of a host'),
        ("http://a.test/\x00", '"http://a.test/\x00" is a malformed URL'),
        ("http://a.test/" + "x" * 8192, "the URL is 8206 characters long; at most 8192 are accepted"),
        ("http://127.1/", "127.1 is no address of the internet"),
    ],
)
def test_targets_that_cannot_be(url: str, fault: str) -> None:
    assert WebhookSender(HERE, user_agent="x").fault(url) == fault


def test_target_that_may_not_be() -> None:
    for url in ("http://10.0.0.1/", "http://[::1]:80/", "http://127.0.0.1/"):
        fault = WebhookSender(UrlPolicy(), user_agent="x").fault(url)
        assert fault is not None
        assert "--allow-private-urls" in fault


# the sender


async def body(state: Sequence[bytes] = (b"{}",)) -> bytes:
    return state[0]


async def test_retries_are_those_observed() -> None:
    retries = Retries()
    quiet = msgspec.structs.replace(retries, jitter=0)
    pauses = [quiet.pause_after(number) for number in range(retries.tries - 1)]
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 102.4, 102.4])
    assert sum(pauses) < retries.seconds
    assert quiet.pause_after(5000) == 102.4


async def test_retries_are_not_printed(
    sender: WebhookSender, receiver: Receiver, capfd: pytest.CaptureFixture[str]
) -> None:
    receiver.script.append(answers(500))
    assert await sender.deliver(Webhook(receiver.url()), b"{}") is None
    assert len(receiver.calls) == 2
    assert capfd.readouterr() == ("", "")


async def test_receiver_that_takes_too_long(
    sender: WebhookSender, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "_SECONDS", 0.05)
    receiver.script.append(waits_for(asyncio.Event()))
    assert await sender.send(Webhook(receiver.url()), body) == "the receiver took too long"
    receiver.script.append(waits_for(asyncio.Event()))
    assert await sender.deliver(Webhook(receiver.url()), b"{}") is None
    assert len(receiver.calls) == 3


async def test_answer_without_an_end_does_not_matter(
    sender: WebhookSender, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "_READ_SECONDS", 0.02)

    receiver.routes["/hook"] = answers(200, content_length="1000000")
    assert await sender.send(Webhook(receiver.url()), body) is None
    assert await sender.deliver(Webhook(receiver.url()), b"{}") is None
    assert len(receiver.calls) == 2


async def test_cookies_are_not_kept(sender: WebhookSender, receiver: Receiver) -> None:
    receiver.script.append(answers(200, set_cookie="a=b; Path=/"))
    for _ in range(2):
        assert await sender.send(Webhook(receiver.url()), body) is None
    assert all("cookie" not in call.headers for call in receiver.calls)


async def test_connections_are_closed_when_nobody_sends(
    sender: WebhookSender, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "_IDLE_SECONDS", 0.01)
    for count in (1, 2):
        assert await sender.send(Webhook(receiver.url()), body) is None
        await until(lambda: not receiver.open_connections)
        assert receiver.connections == count


async def test_body_is_asked_for_when_its_turn_has_come(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "_EACH", 1)
    sender = WebhookSender(HERE, user_agent="geartrain/test")
    taken = asyncio.Event()
    receiver.script.append(waits_for(taken))
    first = asyncio.ensure_future(sender.send(Webhook(receiver.url()), partial(body, [b"1"])))
    await receiver.wait(1)
    state = [b"early"]
    second = asyncio.ensure_future(sender.send(Webhook(receiver.url()), partial(body, state)))
    state[0] = b"late"
    taken.set()
    assert (await first, await second) == (None, None)
    assert [call.body for call in receiver.calls] == [b"1", b"late"]
    await sender.close()


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("", "/"),
        ("/a/b?c=d%20e&f=g", "/a/b?c=d%20e&f=g"),
        ("/ä b?ö=%zz&{q}", "/%C3%A4%20b?%C3%B6=%25zz&{q}"),
        ("/a#part", "/a"),
        ("?x", "/?x"),
    ],
)
async def test_path_and_query_are_asked_for_as_urls_have_them(
    sender: WebhookSender, receiver: Receiver, path: str, asked: str
) -> None:
    assert await sender.send(Webhook(receiver.url("") + path), body) is None
    (call,) = receiver.calls
    assert (call.path, call.headers["host"]) == (asked, f"127.0.0.1:{receiver.port}")


@pytest.mark.parametrize(
    "answer", [b"content-length: 2\r\n\r\nok", b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"]
)
async def test_connection_serves_again_once_its_answer_is_read(
    sender: WebhookSender, receiver: Receiver, answer: bytes
) -> None:
    receiver.script.extend([sends(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n" + answer)] * 2)
    for _ in range(2):
        assert await sender.send(Webhook(receiver.url()), body) is None
    assert receiver.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 1_000_000,  # more than is read
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok and more",
    ],
)
async def test_connection_that_cannot_serve_again_is_closed(
    sender: WebhookSender, receiver: Receiver, answer: bytes
) -> None:
    receiver.script.append(sends(answer))
    for _ in range(2):
        assert await sender.send(Webhook(receiver.url()), body) is None
    await until(lambda: receiver.open_connections == 1)
    assert receiver.connections == 2


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"x" * 200_000, b"HTTP/1.1 200 OK\r\n"]
)
async def test_answer_that_is_none(sender: WebhookSender, receiver: Receiver, answer: bytes) -> None:
    receiver.script.append(sends(answer, closes=True))
    failure = await sender.send(Webhook(receiver.url()), body)
    assert failure == "the receiver has not answered: it has ended the connection"


async def test_answer_before_a_large_body_is_taken(sender: WebhookSender, receiver: Receiver) -> None:
    async def answer_and_read(exchange: Exchange) -> None:
        await exchange.answer(413)
        await exchange.body()

    receiver.heads.append(answer_and_read)
    large = [b"x" * 20_000_000]  # more than sockets hold
    failure = await sender.send(Webhook(receiver.url()), partial(body, large))
    assert failure == "the receiver answered 413 Request Entity Too Large"
    assert await sender.send(Webhook(receiver.url()), partial(body, large)) is None
    assert (receiver.connections, [call.body for call in receiver.calls]) == (2, large)


async def test_receiver_that_is_not_there(sender: WebhookSender) -> None:
    failure = await sender.send(Webhook(f"http://127.0.0.1:{unused_port()}/"), body)
    assert failure is not None
    assert failure.startswith("the receiver cannot be reached: ")
    failure = await sender.send(Webhook("http://nobody.invalid/"), body)
    assert failure == "the receiver cannot be reached: the name nobody.invalid cannot be resolved"


async def test_next_address_is_tried_and_one_that_is_refused_is_not(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def look_up(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.append(host)
        return [(0, 0, 0, "", (address, port)) for address in ("10.0.0.1", "127.0.0.2", "127.0.0.1")]

    class NoTen(UrlPolicy, frozen=True):
        def refusal(self, address: str) -> str | None:
            return "a private address" if address.startswith("10.") else None

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    sender = WebhookSender(NoTen(), user_agent="x")
    assert await sender.send(Webhook(f"http://Straße.test:{receiver.port}/"), body) is None
    assert (asked, receiver.connections) == (["xn--strae-oqa.test"], 1)
    await sender.close()
    other = WebhookSender(UrlPolicy(), user_agent="x")
    failure = await other.send(Webhook(f"http://inside.test:{receiver.port}/"), body)
    assert failure is not None
    assert failure.startswith("inside.test is a loopback, private or otherwise internal address")


async def test_certificate_is_that_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = make_party("receiver").write(tmp_path, "receiver")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    with running_server(tls) as server:
        server.serve("/hook")
        url = server.url("/hook", host="localhost", scheme="https")
        untrusting = WebhookSender(HERE, user_agent="x")
        failure = await untrusting.send(Webhook(url), body)
        assert failure is not None
        assert "certificate verify failed" in failure.lower().replace("_", " ")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        trusting = WebhookSender(HERE, user_agent="x")
        assert await trusting.send(Webhook(url), body) is None
        failure = await trusting.send(Webhook(server.url("/hook", host="127.0.0.2", scheme="https")), body)
        assert failure is not None
        assert [received.headers["host"] for received in server.received] == [f"localhost:{server.port}"]
        await untrusting.close()
        await trusting.close()


async def test_end_of_pauses_before_the_first_webhook(receiver: Receiver) -> None:
    sender = WebhookSender(HERE, user_agent="x", retries=Retries(first_pause=3600, longest_pause=3600))
    sender.end_pauses()
    receiver.script.append(answers(503))
    async with asyncio.timeout(40):
        assert await sender.deliver(Webhook(receiver.url()), b"{}") is None
    await sender.close()


async def test_limits_of_one_host() -> None:
    limits = HostLimits(each=2, together=3)
    inside: list[str] = []
    leave = asyncio.Event()

    async def enter(receiver: str) -> None:
        async with limits.enter(receiver):
            inside.append(receiver)
            await leave.wait()

    tasks = [asyncio.ensure_future(enter(receiver)) for receiver in "aaabb"]
    await until(lambda: len(inside) == 3)
    assert inside == ["a", "a", "b"]
    leave.set()
    await asyncio.gather(*tasks)
    assert sorted(inside) == ["a", "a", "a", "b", "b"]
    assert limits._limits == {}


# what waits for receivers


def a_prediction(name: str = "p", output: bytes = b'"done"') -> Prediction:
    prediction = Prediction(PredictionRecord(name, 1.0, 1.0), b"{}", 1.0)
    prediction.start(1.0)
    prediction.succeed(output, at=2.0)
    return prediction


class Dead:
    """A sender that gets nowhere."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def fault(self, url: str) -> str | None:
        return None

    async def send(self, webhook: Webhook, body: Callable[[], Awaitable[bytes]]) -> str | None:
        self.sent.append(await body())
        return "no"

    async def deliver(self, webhook: Webhook, body: bytes) -> str | None:
        self.sent.append(body)
        await asyncio.Event().wait()
        return None

    def end_pauses(self) -> None:
        pass

    async def close(self) -> None:
        pass


async def snapshot(prediction: Prediction, event: WebhookEvent) -> bytes:
    return f"{prediction.id} {event}".encode()


@pytest.mark.parametrize("bound", ["webhooks", "bytes"])
async def test_longest_waiting_is_given_up_when_too_much_waits(bound: str, caplog: pytest.LogCaptureFixture) -> None:
    sender = Dead()
    size = a_prediction("p0", b'"' + b"x" * 998 + b'"').kept_size
    backlog = Backlog(webhooks=3) if bound == "webhooks" else Backlog(bytes=3 * size)
    webhooks = Webhooks(sender, snapshot, backlog=backlog)
    for number in range(5):
        webhooks.follow(a_prediction(f"p{number}", b'"' + b"x" * 998 + b'"'), Webhook("http://a.test"))
        await until(lambda number=number: f"p{number} completed".encode() in sender.sent)  # type: ignore[misc]
    await until(lambda: len(webhooks._tasks) == 3)
    given_up = [vars(record)["prediction_id"] for record in caplog.records if "given up" in record.message]
    assert given_up == ["p0", "p1"]
    await webhooks.close()
    assert (webhooks._ended, webhooks._held, webhooks._tasks) == ({}, 0, {})


async def test_one_webhook_is_never_too_much() -> None:
    sender = Dead()
    webhooks = Webhooks(sender, snapshot, backlog=Backlog(bytes=10))
    webhooks.follow(a_prediction(output=b"[" + b"1," * 1000 + b"1]"), Webhook("http://a.test"))
    await until(lambda: b"p completed" in sender.sent)
    await webhooks.close()


async def test_delivery_of_an_end_holds_no_prediction() -> None:
    sender = Dead()
    webhooks = Webhooks(sender, snapshot)
    webhooks.follow(a_prediction(), Webhook("http://a.test"))
    await until(lambda: b"p completed" in sender.sent)
    (delivery,) = webhooks._tasks.values()
    assert not hasattr(delivery, "_prediction")
    await webhooks.close()


async def test_receiver_that_was_not_reached_is_told_the_end_next() -> None:
    sender = Dead()
    webhooks = Webhooks(sender, snapshot)
    webhooks.follow(a_prediction(), Webhook("http://a.test"))
    await until(lambda: b"p completed" in sender.sent)
    assert sender.sent == [b"p start", b"p completed"]
    await webhooks.close()


async def test_bug_in_a_delivery_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(prediction: Prediction, event: WebhookEvent) -> bytes:
        raise ZeroDivisionError

    webhooks = Webhooks(Dead(), broken)
    webhooks.follow(a_prediction(), Webhook("http://a.test"))
    await until(lambda: not webhooks._tasks)
    assert [record.exc_info is not None for record in caplog.records] == [True]
    await webhooks.close()


@pytest.mark.parametrize("tells_end", [True, False])
@pytest.mark.parametrize("receiver_says", [[], [answers(503)], [answers(503), answers(400)], [answers(400)]])
async def test_s2_a_delivery_that_is_over_is_in_no_circle(
    sender: WebhookSender, receiver: Receiver, receiver_says: list[Behaviour], tells_end: bool
) -> None:
    """Prediction and request would stay in memory until the next collection."""
    webhooks = Webhooks(sender, snapshot)
    follow = webhooks.follow if tells_end else webhooks.follow_until_end
    webhook = Webhook(receiver.url(), frozenset({"completed"} if tells_end else {"start", "output"}))
    follow(a_prediction(), webhook)
    await until(lambda: not webhooks._tasks)
    gc.collect()
    kept = (Prediction, Webhook, PeerConnection, Exception)
    earlier = [
        each for each in gc.get_objects() if issubclass(type(each), kept)
    ]  # so that no other test's become garbage
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        receiver.script.extend(receiver_says)
        follow(a_prediction(), webhook)
        await until(lambda: not webhooks._tasks)
        gc.collect()
        assert [each for each in gc.garbage if issubclass(type(each), kept)] == []
    finally:
        del earlier
        gc.set_debug(0)
        gc.garbage.clear()


# the reader


async def test_change_reader_holds_two_flags() -> None:
    prediction = Prediction(PredictionRecord("p", 1.0, 1.0), b"{}", 1.0)
    ends: list[None] = []
    reader = ChangeReader(prediction, frozenset({Output}), on_end=lambda: ends.append(None))
    prediction.start(1.0)
    prediction.add_log("stdout", "no output")
    assert (reader.changed, reader.over) == (False, False)
    waiting = asyncio.ensure_future(reader.change())
    await asyncio.sleep(0)
    prediction.add_output(b"1")
    await waiting
    reader.changed = False
    await reader.end(until=asyncio.get_running_loop().time())
    waiting = asyncio.ensure_future(reader.change())
    await asyncio.sleep(0)
    prediction.succeed(None, at=2.0)
    await waiting
    await reader.end(until=asyncio.get_running_loop().time() + 3600)
    assert (reader.changed, reader.over, len(ends)) == (False, True, 1)


async def test_change_reader_that_comes_late_sees_what_was() -> None:
    prediction = a_prediction()
    reader = ChangeReader(prediction, frozenset({Output, Log}))
    assert (reader.changed, reader.over) == (True, True)
    reader.close()


async def test_who_no_longer_waits_for_an_end_is_forgotten() -> None:
    """Clients may come and leave as long as a run goes on."""
    prediction = Prediction(PredictionRecord("p", 1.0, 1.0), b"{}", 1.0)
    stays = completion(prediction)
    waiting = [completion(prediction) for _ in range(10)]
    seen = [weakref.ref(each) for each in waiting]
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
    del each
    waiting.clear()
    assert [ref() for ref in seen] == [None] * 10
    prediction.start(1.0)
    prediction.succeed(b"1", at=2.0)
    await stays


class Lost:
    """Notes the end of a connection, without a reference to it."""

    def __init__(self) -> None:
        self.is_noted = asyncio.Event()

    def __call__(self, connection: PeerConnection) -> None:
        self.is_noted.set()


def test_a_connection_that_is_lost_is_in_no_cycle() -> None:
    """On the loop of the server: asyncio's own transports are in one."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    async def ask(port: int) -> weakref.ref[PeerConnection]:
        lost = Lost()
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(partial(PeerConnection, lost), "127.0.0.1", port)
        await connection.ask(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await lost.is_noted.wait()
        return weakref.ref(connection)

    async def ask_and_look() -> PeerConnection | None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            found = await ask(server.sockets[0].getsockname()[1])
            await asyncio.sleep(0)  # the loop lets go of what it has called
            return found()

    gc.disable()
    try:
        assert uvloop.run(ask_and_look()) is None
    finally:
        gc.enable()
