"""The sender of webhooks by itself, and the bounds on what waits for receivers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import stamina.instrumentation

from geartrain.domain.predictions.events import Log, Output
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.record import PredictionRecord
from geartrain.domain.predictions.webhook import Webhook, WebhookEvent
from geartrain.outbound import network, webhook_client
from geartrain.outbound.host_limits import HostLimits
from geartrain.outbound.policy import UrlPolicy
from geartrain.outbound.retries import Retries
from geartrain.outbound.webhooks import WebhookSender
from geartrain.service.readers import ChangeReader
from geartrain.service.webhooks import Backlog, Webhooks
from tests.support.receiver import Receiver, answers, receiving, waits_for

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


async def test_retries_are_those_observed() -> None:
    retries = Retries()
    pauses = [min(retries.first_pause * 2**number, retries.longest_pause) for number in range(retries.tries - 1)]
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 102.4, 102.4])
    assert sum(pauses) < retries.seconds


async def test_retries_are_not_printed(
    sender: WebhookSender, receiver: Receiver, capfd: pytest.CaptureFixture[str]
) -> None:
    receiver.script.append(answers(500))
    assert await sender.deliver(Webhook(receiver.url()), b"{}") is None
    assert len(receiver.calls) == 2
    assert capfd.readouterr() == ("", "")
    assert stamina.instrumentation.get_on_retry_hooks()[0].__module__ == "geartrain.outbound.retrying"


async def test_receiver_that_takes_too_long(
    sender: WebhookSender, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_client, "_SECONDS", 0.05)
    receiver.script.append(waits_for(asyncio.Event()))
    assert await sender.send(Webhook(receiver.url()), lambda: b"{}") == "the receiver took too long"
    receiver.script.append(waits_for(asyncio.Event()))
    assert await sender.deliver(Webhook(receiver.url()), b"{}") is None
    assert len(receiver.calls) == 3


async def test_answer_without_an_end_does_not_matter(
    sender: WebhookSender, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_READ_SECONDS", 0.02)

    receiver.routes["/hook"] = answers(200, content_length="1000000")
    assert await sender.send(Webhook(receiver.url()), lambda: b"{}") is None
    assert await sender.deliver(Webhook(receiver.url()), b"{}") is None
    assert len(receiver.calls) == 2


async def test_cookies_are_not_kept(sender: WebhookSender, receiver: Receiver) -> None:
    receiver.script.append(answers(200, set_cookie="a=b; Path=/"))
    for _ in range(2):
        assert await sender.send(Webhook(receiver.url()), lambda: b"{}") is None
    assert all("cookie" not in call.headers for call in receiver.calls)


async def test_connections_are_closed_when_nobody_sends(
    sender: WebhookSender, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_client, "_IDLE_SECONDS", 0.01)
    for count in (1, 2):
        assert await sender.send(Webhook(receiver.url()), lambda: b"{}") is None
        await until(lambda: not receiver.open_connections)
        assert receiver.connections == count


async def test_body_is_asked_for_when_its_turn_has_come(
    receiver: Receiver, sender: WebhookSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_client, "_EACH", 1)
    taken = asyncio.Event()
    receiver.script.append(waits_for(taken))
    first = asyncio.ensure_future(sender.send(Webhook(receiver.url()), lambda: b"1"))
    await receiver.wait(1)
    state = [b"early"]
    second = asyncio.ensure_future(sender.send(Webhook(receiver.url()), lambda: state[0]))
    state[0] = b"late"
    taken.set()
    assert (await first, await second) == (None, None)
    assert [call.body for call in receiver.calls] == [b"1", b"late"]


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

    async def send(self, webhook: Webhook, body: Callable[[], bytes]) -> str | None:
        self.sent.append(body())
        return "no"

    async def deliver(self, webhook: Webhook, body: bytes) -> str | None:
        self.sent.append(body)
        await asyncio.Event().wait()
        return None

    def end_pauses(self) -> None:
        pass

    async def close(self) -> None:
        pass


def snapshot(prediction: Prediction, event: WebhookEvent) -> bytes:
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
    def broken(prediction: Prediction, event: WebhookEvent) -> bytes:
        raise ZeroDivisionError

    webhooks = Webhooks(Dead(), broken)
    webhooks.follow(a_prediction(), Webhook("http://a.test"))
    await until(lambda: not webhooks._tasks)
    assert [record.exc_info is not None for record in caplog.records] == [True]
    await webhooks.close()


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
