"""Webhooks: Cog's HTTP API, "Webhooks"; prediction API, "Webhook Events"; observed Cog, section 13."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from geartrain import __version__
from geartrain.outbound.retries import Retries
from geartrain.server import WebhookOptions
from tests.support import cluster, modes
from tests.support.clients import asyncio_client
from tests.support.receiver import Call, Receiver, answers, cuts, is_end, receiving, waits_for
from tests.support.servers import PATIENCE, LiveServer, Serve, ServerProcess, eventually, write_model
from tests.support.web_server import unused_port

if TYPE_CHECKING:
    import httpx

pytestmark = pytest.mark.asyncio(loop_scope="module")

INTERVAL = 0.25
QUICK = Retries(first_pause=0.005, longest_pause=0.02, jitter=0.001)

GENERATOR = """
    import os, time
    from collections.abc import Iterator
    import geartrain

    class Runner(geartrain.BaseRunner):
        @geartrain.streaming
        def run(self, steps: list[str] = [], token: geartrain.Secret = geartrain.Secret("")) -> Iterator[str]:
            for step in steps:
                word, _, rest = step.partition(" ")
                if word == "wait":
                    while not os.path.exists(rest):
                        time.sleep(0.002)
                elif word == "say":
                    print(rest)
                elif word == "give":
                    yield rest
                elif word == "measure":
                    self.record_metric(rest, 1)
                else:
                    raise ValueError(rest)
"""
SCALAR = """
    import os, time
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        async def setup(self):
            pass

        async def run(self, value: str = "hi", gate: str = ".", text: str = "") -> str:
            import asyncio
            if text:
                print(text)
            while not os.path.exists(gate):
                await asyncio.sleep(0.002)
            return value
"""


def options(**changed: Any) -> WebhookOptions:
    return WebhookOptions(**{"interval": INTERVAL, "retries": QUICK, **changed})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    """A generator that does as it is told, step by step."""
    async with serve_shared(GENERATOR, webhooks=options(token="t0ken")) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scalar(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    """A function of one text, several at once."""
    async with serve_shared(SCALAR, name="scalar", environ={"COG_MAX_CONCURRENCY": "8"}, webhooks=options()) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


def statuses(calls: list[Call]) -> list[str]:
    return [call.status for call in calls]


def states(calls: list[Call]) -> list[tuple[str, Any, str]]:
    return [(call.status, call.prediction.get("output"), call.prediction["logs"]) for call in calls]


async def idle(server: LiveServer) -> None:
    """Wait until nothing is left to be told."""
    await eventually(lambda: not server.webhooks._tasks)


async def ready(server_process: Callable[..., ServerProcess], *arguments: str, **options: Any) -> ServerProcess:
    process = server_process(*arguments, **options)
    await asyncio.to_thread(cluster.ready, process)
    return process


def client_of(process: ServerProcess) -> httpx.AsyncClient:
    (url,) = [line["url"] for line in process.lines if line["message"] == "listening"]
    return asyncio_client(url)


# what is sent when


async def test_start_is_sent_at_once_with_status_starting(server: LiveServer, receiver: Receiver) -> None:
    accepted = await server.start({"steps": ["wait s1"]}, id="s1", webhook=receiver.url())
    (call,) = await receiver.wait(1)
    assert call.prediction == accepted
    assert call.status == "starting"
    server.open_gate("s1")
    assert statuses(await receiver.ended()) == ["starting", "succeeded"]


async def test_each_output_is_sent_with_all_outputs_so_far(server: LiveServer, receiver: Receiver) -> None:
    steps = ["give a", "wait o1", "give b", "wait o2"]
    await server.start({"steps": steps}, id="o", webhook=receiver.url())
    for count, gate in ((2, "o1"), (3, "o2")):
        await receiver.wait(count)
        server.open_gate(gate)
    assert states(await receiver.ended()) == [
        ("starting", None, ""),
        ("processing", ["a"], ""),
        ("processing", ["a", "b"], ""),
        ("succeeded", ["a", "b"], ""),
    ]


async def test_logs_are_sent_with_all_that_was_printed(server: LiveServer, receiver: Receiver) -> None:
    await server.start({"steps": ["say one", "wait l1", "say two", "wait l2"]}, id="l", webhook=receiver.url())
    for count, gate in ((2, "l1"), (3, "l2")):
        await receiver.wait(count)
        server.open_gate(gate)
    assert states(await receiver.ended()) == [
        ("starting", None, ""),
        ("processing", None, "one\n"),
        ("processing", None, "one\ntwo\n"),
        ("succeeded", [], "one\ntwo\n"),
    ]


async def test_bodies_are_those_of_the_api(server: LiveServer, receiver: Receiver) -> None:
    created = "2026-01-02T03:04:05.000006+00:00"
    asked = {"steps": ["measure m", "give x", "wait b"], "token": "hush"}
    await server.start(asked, id="body", webhook=receiver.url(), created_at=created)
    (_, running) = await receiver.wait(2)
    shown = (await server.client.put("/predictions/body", json={"input": {}})).json()
    assert running.prediction == shown
    assert (running.prediction["created_at"], running.prediction["metrics"]) == (created, {"m": 1})
    assert running.prediction["input"] == {**asked, "token": "**********"}
    assert running.prediction["started_at"]
    server.open_gate("b")
    end = (await receiver.ended())[-1].prediction
    ended = await server.client.get("/predictions/body")
    assert end == ended.json()
    assert set(end) == {
        *("id", "status", "input", "output", "logs", "metrics"),
        *("created_at", "started_at", "completed_at"),
    }
    assert set(end["metrics"]) == {"m", "predict_time"}
    assert all(b"hush" not in call.body for call in receiver.calls)


async def test_failure_has_its_error_logs_and_partial_output(server: LiveServer, receiver: Receiver) -> None:
    body = await server.predict({"steps": ["say so", "give a", "fail oh no"]}, webhook=receiver.url())
    end = (await receiver.ended())[-1].prediction
    assert end == body
    assert (end["status"], end["output"], end["error"]) == ("failed", ["a"], "ValueError: oh no")
    assert end["logs"].startswith("so\n")
    assert end["metrics"]["predict_time"] > 0


async def test_cancel_is_an_end(server: LiveServer, receiver: Receiver) -> None:
    await server.start({"steps": ["give a", "wait never"]}, id="c", webhook=receiver.url())
    await receiver.wait(2)
    await server.client.post("/predictions/c/cancel")
    assert states(await receiver.ended())[-1] == ("canceled", ["a"], "")


@pytest.mark.parametrize("way", ["sync", "async", "put", "stream"])
async def test_every_way_to_create_sends_them(server: LiveServer, receiver: Receiver, way: str) -> None:
    headers = {"async": {"prefer": "respond-async"}, "stream": {"accept": "text/event-stream"}}.get(way, {})
    method, path = ("PUT", "/predictions/way") if way == "put" else ("POST", "/predictions")
    body = {"input": {"steps": ["give a"]}, "webhook": receiver.url()}
    response = await server.client.request(method, path, json=body, headers=headers)
    assert response.status_code == (202 if way == "async" else 200)
    assert states(await receiver.ended()) == [
        ("starting", None, ""),
        ("processing", ["a"], ""),
        ("succeeded", ["a"], ""),
    ]


async def test_client_that_hangs_up_leaves_its_webhook_behind(server: LiveServer, receiver: Receiver) -> None:
    asking = asyncio.ensure_future(server.predict({"steps": ["wait never"]}, webhook=receiver.url()))
    await receiver.wait(1)
    asking.cancel()
    assert statuses(await receiver.ended()) == ["starting", "canceled"]


@pytest.mark.one_server(reason="each replica has a slot")
async def test_refused_requests_send_nothing(server: LiveServer, receiver: Receiver) -> None:
    await server.start({"steps": ["wait r"]}, id="r")
    hook: dict[str, Any] = {"webhook": receiver.url()}
    busy = await server.client.post("/predictions", json={"input": {}, **hook})
    wrong = await server.client.post("/predictions", json={"input": {"steps": 5}, **hook})
    joined = await server.client.put("/predictions/r", json={"input": {}, **hook})
    server.open_gate("r")
    await server.ended("r")
    assert [busy.status_code, wrong.status_code, joined.status_code] == [409, 422, 202]
    await server.predict(**hook)
    assert {call.prediction["input"].get("steps") for call in await receiver.ended()} == {None}


async def test_d15_scalar_is_the_same_in_output_and_completed(scalar: LiveServer, receiver: Receiver) -> None:
    await scalar.predict({"value": "hi"}, webhook=receiver.url())
    assert states(await receiver.ended()) == [
        ("starting", None, ""),
        ("processing", "hi", ""),
        ("succeeded", "hi", ""),
    ]


# the filter


@pytest.mark.parametrize(
    ("events", "told"),
    [
        (["start"], [("starting", None, "")]),
        (["output"], [("processing", ["a"], "so\n")]),
        (["logs"], [("processing", ["a"], "so\n")]),
        (["completed"], [("succeeded", ["a"], "so\n")]),
        (["completed", "start", "start"], [("starting", None, ""), ("succeeded", ["a"], "so\n")]),
        ([], []),
    ],
)
async def test_filter_chooses(
    server: LiveServer, receiver: Receiver, events: list[str], told: list[tuple[str, Any, str]]
) -> None:
    # What is awaited comes last: by then the rest is there, and one event tells of both.
    steps = ["give a", "say so"] if events == ["logs"] else ["say so", "give a"]
    await server.predict({"steps": steps}, webhook=receiver.url(), webhook_events_filter=events)
    await idle(server)
    if told and told[0][0] == "processing":  # what was printed before the output may have been told by itself
        assert states(receiver.calls)[-1] == told[0]
        assert set(statuses(receiver.calls)) == {"processing"}
    else:
        assert states(receiver.calls) == told


async def test_filter_of_outputs_leaves_logs_out(server: LiveServer, receiver: Receiver) -> None:
    hook: dict[str, Any] = {"webhook": receiver.url(), "webhook_events_filter": ["output", "completed"]}
    await server.start({"steps": ["say quiet", "wait q"]}, id="q", **hook)
    await server.said("q", "quiet")
    server.open_gate("q")
    assert statuses(await receiver.ended()) == ["succeeded"]


async def test_last_output_is_told_even_when_the_end_is_not(server: LiveServer, receiver: Receiver) -> None:
    hook: dict[str, Any] = {"webhook": receiver.url(), "webhook_events_filter": ["output"]}
    await server.predict({"steps": ["give a", "give b", "give c"]}, **hook)
    calls = await receiver.until(lambda calls: bool(calls) and calls[-1].prediction["output"] == ["a", "b", "c"])
    assert set(statuses(calls)) == {"processing"}


@pytest.mark.parametrize("events", ["start", ["finish"], [None], None, {"start": True}])
async def test_unknown_event_is_refused(server: LiveServer, receiver: Receiver, events: object) -> None:
    body = {"input": {}, "webhook": receiver.url(), "webhook_events_filter": events}
    response = await server.client.post("/predictions", json=body)
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"][:2] == ["body", "webhook_events_filter"]


# the throttle


def are_apart(began: float, calls: list[Call]) -> bool:
    """Whether an interval may have passed between each two calls, by the least time that each took to come.

    How long one took on its way is not known, so two that were sent with an interval between them may come together.
    """
    return all(call.at - began >= number * INTERVAL - 0.01 for number, call in enumerate(calls))


async def test_progress_is_told_once_an_interval_and_the_latest_state_wins(
    server: LiveServer, receiver: Receiver
) -> None:
    # Output and logs share the interval; what comes within it is sent at its end, without a further event.
    steps = ["give a", "wait t1", "give b", "say x", "give c", "say y", "wait t2"]
    began = time.monotonic()
    await server.start({"steps": steps}, id="t", webhook=receiver.url())
    await receiver.wait(2)
    server.open_gate("t1")
    calls = await receiver.until(lambda calls: calls[-1].prediction["logs"] == "x\ny\n")
    server.open_gate("t2")
    assert statuses(await receiver.ended()) == [*statuses(calls), "succeeded"]
    assert states(calls)[1] == ("processing", ["a"], "")
    assert states(calls)[-1] == ("processing", ["a", "b", "c"], "x\ny\n")
    assert are_apart(began, calls[1:])


async def test_end_does_not_wait_for_the_interval(serve: Serve, receiver: Receiver) -> None:
    async with serve(GENERATOR, webhooks=options(interval=3600)) as server:
        steps = ["give a", "wait e", *(f"give {number}" for number in range(100)), *["say so"] * 100]
        await server.start({"steps": steps}, webhook=receiver.url())
        await receiver.wait(2)
        server.open_gate("e")
        calls = await receiver.ended()
    assert statuses(calls) == ["starting", "processing", "succeeded"]
    assert len(calls[-1].prediction["output"]) == 101
    assert calls[-1].prediction["logs"] == "so\n" * 100


async def test_thousand_outputs_make_few_webhooks(server: LiveServer, receiver: Receiver) -> None:
    steps = [f"{word} {number}" for number in range(1000) for word in ("give", "say")]
    began = time.monotonic()
    body = await server.predict({"steps": steps}, webhook=receiver.url())
    calls = await receiver.ended()
    assert calls[-1].prediction == body
    assert are_apart(began, [call for call in calls if call.status == "processing"])


# order


async def test_d25_end_is_last_and_one_thing_is_told_at_a_time(server: LiveServer, receiver: Receiver) -> None:
    told = asyncio.Event()
    receiver.script.append(waits_for(told))  # the start is slow to be taken
    await server.start({"steps": ["give a"]}, id="d25", webhook=receiver.url())
    await receiver.wait(1)
    await server.ended("d25")
    assert len(receiver.calls) == 1
    told.set()
    assert statuses(await receiver.ended()) == ["starting", "processing", "succeeded"]
    assert receiver.busiest == 1


async def test_d25_a_hundred_runs_are_in_order(serve: Serve, receiver: Receiver) -> None:
    async with serve(GENERATOR, webhooks=options(interval=0)) as server:
        for number in range(100):
            steps = [f"give {part}" for part in range(5)]
            await server.predict({"steps": steps}, id=f"run-{number}", webhook=receiver.url(f"/{number}"))
        calls = await receiver.ended(100)
    for number in range(100):
        own = [call for call in calls if call.path == f"/{number}"]
        assert own[0].status == "starting"
        assert [is_end(call) for call in own] == [False] * (len(own) - 1) + [True]
        lengths = [len(call.prediction.get("output", ())) for call in own]
        assert lengths == sorted(lengths)
        assert lengths[-1] == 5


# the request itself


async def test_headers_are_exactly_those_observed(server: LiveServer, receiver: Receiver) -> None:
    trace = {
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "tracestate": "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7",
    }
    body = {"input": {"steps": ["give a"]}, "webhook": receiver.url("/a/b?c=d%20e")}
    own = {**trace, "x-request-id": "r-1"}
    headers = {**own, "x-secret": "s", "cookie": "a=b", "authorization": "Basic eDp5", **modes.current().headers}
    await server.client.post("/predictions", json=body, headers=headers)
    for call in await receiver.ended():
        assert (call.method, call.path) == ("POST", "/a/b?c=d%20e")
        assert call.headers == {
            "host": f"127.0.0.1:{receiver.port}",
            "content-type": "application/json",
            "accept": "*/*",
            "user-agent": f"geartrain/{__version__}",
            "authorization": "Bearer t0ken",
            "content-length": str(len(call.body)),
            **own,
        }


async def test_without_token_and_trace_there_is_a_new_trace_alone(scalar: LiveServer, receiver: Receiver) -> None:
    odd = [(b"traceparent", b"x" * 5000), (b"tracestate", "é=1".encode("latin-1"))]
    answers = []
    for headers in ([], odd):
        body = {"input": {}, "webhook": receiver.url(), "webhook_events_filter": ["completed"]}
        answers.append(await scalar.client.post("/predictions", json=body, headers=headers))
    calls = await receiver.ended(2)
    for name in ("x-request-id", "traceparent"):
        assert {call.headers[name] for call in calls} == {answer.headers[name] for answer in answers}
    for call in calls:
        assert not {"authorization", "tracestate"} & set(call.headers)


async def test_user_and_password_of_the_url_come_before_the_token(server: LiveServer, receiver: Receiver) -> None:
    url = receiver.url().replace("127.0.0.1", "me:secret@127.0.0.1")
    await server.predict(webhook=url)
    for call in await receiver.ended():
        assert call.headers["authorization"] == "Basic bWU6c2VjcmV0"


async def test_one_connection_serves_many_predictions(server: LiveServer, receiver: Receiver) -> None:
    for number in range(3):
        await server.predict({"steps": ["give a"]}, webhook=receiver.url())
        await receiver.ended(number + 1)
        await idle(server)
    assert receiver.connections == 1


# what a receiver can do wrong


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_end_is_told_again_until_it_is_taken(scalar: LiveServer, receiver: Receiver, status: int) -> None:
    hook: dict[str, Any] = {"webhook": receiver.url(), "webhook_events_filter": ["completed"]}
    receiver.script.extend([answers(status)] * 3)
    await scalar.predict(**hook)
    calls = await receiver.wait(4)
    assert {call.body for call in calls} == {calls[0].body}
    await scalar.predict(**hook)
    assert len(await receiver.wait(5)) == 5


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422, 501, 304])
async def test_end_that_is_refused_is_not_told_again(scalar: LiveServer, receiver: Receiver, status: int) -> None:
    receiver.script.append(answers(status))
    await scalar.predict({"value": "refused"}, webhook=receiver.url(), webhook_events_filter=["completed"])
    await receiver.wait(1)
    await idle(scalar)
    assert len(receiver.calls) == 1


@pytest.mark.parametrize("status", [201, 202, 204])
async def test_any_2xx_will_do(scalar: LiveServer, receiver: Receiver, status: int) -> None:
    receiver.script.extend([answers(status)] * 3)
    await scalar.predict(webhook=receiver.url())
    await receiver.wait(3)
    await idle(scalar)
    assert statuses(receiver.calls) == ["starting", "processing", "succeeded"]


async def test_progress_is_told_once_whatever_comes_of_it(server: LiveServer, receiver: Receiver) -> None:
    receiver.script.extend([answers(500), answers(503), cuts])
    steps = ["give a", "wait p1", "give b", "wait p2"]
    await server.start({"steps": steps}, webhook=receiver.url())
    for count, gate in ((2, "p1"), (3, "p2")):
        await receiver.wait(count)
        server.open_gate(gate)
    assert statuses(await receiver.ended()) == ["starting", "processing", "processing", "succeeded"]


@pytest.mark.without_store(reason="the end is tried for hours")
async def test_tries_have_an_end(serve: Serve, receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    receiver.routes["/hook"] = answers(500)
    async with serve(SCALAR, webhooks=options()) as server:
        await server.predict(id="lost", webhook=receiver.url() + "?sig=secret", webhook_events_filter=["completed"])
        await receiver.wait(13)
        await idle(server)
    assert len(receiver.calls) == 13
    (record,) = [record for record in caplog.records if "not delivered" in record.message]
    assert (record.levelname, vars(record)["prediction_id"]) == ("WARNING", "lost")
    assert vars(record)["reason"] == "the receiver answered 500 Internal Server Error"
    assert "secret" not in caplog.text


async def test_connection_cut_before_the_answer(scalar: LiveServer, receiver: Receiver) -> None:
    receiver.script.append(cuts)
    await scalar.predict(webhook=receiver.url(), webhook_events_filter=["completed"])
    first, second = await receiver.wait(2)
    assert first.body == second.body


async def test_connection_cut_in_mid_request(scalar: LiveServer, receiver: Receiver) -> None:
    receiver.heads.extend([cuts, cuts])
    value = "x" * 4_000_000  # more than a socket's buffers take
    await scalar.predict({"value": value}, webhook=receiver.url(), webhook_events_filter=["completed"])
    (call,) = await receiver.wait(1)
    assert call.prediction["output"] == value


async def test_receiver_that_refuses_connections_gets_the_end_when_it_is_back(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="geartrain")
    receiver = Receiver()
    port = unused_port()
    async with serve(SCALAR, webhooks=options(retries=Retries(tries=1000, longest_pause=0.02))) as server:
        await server.predict({"value": "late"}, webhook=f"http://127.0.0.1:{port}/hook")
        await eventually(lambda: "will be tried again" in caplog.text)
        await receiver.open(port)
        try:
            assert states(await receiver.ended()) == [("succeeded", "late", "")]
        finally:
            await receiver.close()


async def test_slow_receiver_holds_no_slot(server: LiveServer, receiver: Receiver) -> None:
    taken = asyncio.Event()
    receiver.routes["/slow"] = waits_for(taken)
    async with asyncio.timeout(40):
        for number in range(20):  # one slot
            body = await server.predict({"steps": [f"give {number}"]}, webhook=receiver.url("/slow"))
            assert body["status"] == "succeeded"
    assert (await server.health())["status"] == "READY"
    assert all(call.status == "starting" for call in receiver.calls)
    taken.set()
    assert len(await receiver.ended(20)) == 60


@pytest.mark.one_server(reason="the limit is that of a server")
async def test_hanging_receiver_does_not_stand_in_the_way_of_another(scalar: LiveServer, receiver: Receiver) -> None:
    never = asyncio.Event()
    async with receiving() as hanging:
        hanging.routes["/hook"] = waits_for(never)
        for _ in range(40):
            await scalar.predict(webhook=hanging.url())
        await hanging.wait(16)
        await scalar.predict(webhook=receiver.url())
        await receiver.ended()
        assert hanging.busiest == 16  # so many at once, the others wait without a connection
        never.set()
        await hanging.ended(40)


async def test_state_waiting_for_a_slow_receiver_is_one_not_many(server: LiveServer, receiver: Receiver) -> None:
    taken = asyncio.Event()
    receiver.script.append(waits_for(taken))
    steps = [*["say so"] * 20_000, "wait many"]
    await server.start({"steps": steps}, id="many", webhook=receiver.url())
    await receiver.wait(1)
    await server.said("many", "so\n" * 20_000)
    taken.set()
    calls = await receiver.wait(2)
    assert calls[1].prediction["logs"] == "so\n" * 20_000
    server.open_gate("many")
    assert statuses(await receiver.ended()) == ["starting", "processing", "succeeded"]


# redirects


@pytest.mark.parametrize(("status", "method"), [(301, "GET"), (302, "GET"), (303, "GET"), (307, "POST"), (308, "POST")])
async def test_redirects_are_followed(server: LiveServer, receiver: Receiver, status: int, method: str) -> None:
    receiver.routes["/hook"] = answers(status, location="/elsewhere")
    await server.predict(webhook=receiver.url(), webhook_events_filter=["completed"])
    first, second = await receiver.wait(2)
    assert (second.method, second.path) == (method, "/elsewhere")
    assert second.body == (first.body if method == "POST" else b"")
    assert second.headers["authorization"] == "Bearer t0ken"


async def test_token_does_not_follow_a_redirect_to_another_host(server: LiveServer, receiver: Receiver) -> None:
    async with receiving() as other:
        receiver.routes["/hook"] = answers(307, location=other.url())
        await server.predict(webhook=receiver.url(), webhook_events_filter=["completed"])
        (call,) = await other.wait(1)
        assert is_end(call)
        assert "authorization" not in call.headers


@pytest.mark.parametrize("location", ["/hook", "ftp://127.0.0.1/", "http://a:b/", "http://169.254.169.254/latest"])
async def test_redirect_that_leads_nowhere_is_given_up(server: LiveServer, receiver: Receiver, location: str) -> None:
    receiver.routes["/hook"] = answers(307, location=location)
    await server.predict(webhook=receiver.url(), webhook_events_filter=["completed"])
    await receiver.wait(1)
    await idle(server)
    assert len(receiver.calls) == (11 if location == "/hook" else 1)


# the target


@pytest.mark.parametrize(
    "url",
    [
        *("", "receiver", "/path", "ftp://a.test/", "file:///etc/passwd", "http://", "http://:80/", "http://a:x/"),
        *("http://a b/", "http://[::1/", "http://a..b/", "http://a.test/\n", "https:/a.test", "javascript:x"),
        *("http://169.254.169.254/latest/meta-data", "http://[fe80::1]/", "http://2130706433/"),
        "http://a.test/" + "x" * 9000,
    ],
)
async def test_target_that_cannot_be_is_refused(server: LiveServer, url: str) -> None:
    response = await server.client.post("/predictions", json={"input": {}, "webhook": url})
    assert response.status_code == 422
    (detail,) = response.json()["detail"]
    assert detail["loc"] == ["body", "webhook"]
    assert len(detail["msg"]) < 300


async def test_wrong_target_is_reported_with_the_wrong_inputs(server: LiveServer) -> None:
    response = await server.client.post("/predictions", json={"input": {"steps": 5}, "webhook": "nowhere"})
    places = [detail["loc"] for detail in response.json()["detail"]]
    assert places == [["body", "input", "steps"], ["body", "webhook"]]


async def test_internal_target_needs_the_operators_word(serve: Serve, receiver: Receiver) -> None:
    async with serve(SCALAR, webhooks=options(), allow_private_urls=False) as server:
        refused = await server.client.post("/predictions", json={"input": {}, "webhook": receiver.url()})
        assert refused.status_code == 422
        assert "--allow-private-urls" in refused.json()["detail"][0]["msg"]
        # A name may lead anywhere, which shows only when it is looked up.
        assert (await server.predict(webhook=f"http://localhost:{receiver.port}/"))["status"] == "succeeded"
        await idle(server)
    assert receiver.calls == []
    assert receiver.connections == 0


async def test_prediction_without_webhook_makes_no_task(scalar: LiveServer) -> None:
    await idle(scalar)
    before = asyncio.all_tasks()
    await scalar.start({"gate": "g0"}, id="bare")
    tasks = [task for task in asyncio.all_tasks() - before if "webhook" in repr(task).lower()]
    scalar.open_gate("g0")
    await scalar.ended("bare")
    assert tasks == []


# the end of the server


async def test_d20_end_is_delivered_when_the_server_ends(
    tmp_path: Any, receiver: Receiver, server_process: Callable[..., ServerProcess]
) -> None:
    folder = write_model(tmp_path / "model", SCALAR)
    variables = {"WEBHOOK_AUTH_TOKEN": "t0ken", "COG_THROTTLE_RESPONSE_INTERVAL": "3600"}
    process = await ready(server_process, str(folder), "--allow-private-urls", env=variables)
    async with client_of(process) as client:
        body = {"input": {"gate": str(folder / "go")}, "webhook": receiver.url()}
        await client.post("/predictions", json=body, headers={"prefer": "respond-async"})
    await receiver.wait(1)
    receiver.script.extend([answers(500), answers(503), answers(500)])
    process.popen.send_signal(signal.SIGTERM)
    (folder / "go").touch()
    calls = await receiver.until(lambda calls: sum(map(is_end, calls)) >= 3)
    assert calls[-1].status == "succeeded"
    assert {call.headers["authorization"] for call in calls} == {"Bearer t0ken"}
    assert await asyncio.to_thread(process.popen.wait, 20) == 0


async def test_d20_hanging_receiver_holds_up_the_end_only_for_the_grace(serve: Serve, receiver: Receiver) -> None:
    receiver.routes["/hook"] = waits_for(asyncio.Event())
    async with serve(SCALAR, webhooks=options(interval=0)) as server:
        await server.predict(webhook=receiver.url())
        async with asyncio.timeout(PATIENCE):
            await server.webhooks.drain(1)
    # The start was given up half-way, so that the end had its turn.
    assert statuses(receiver.calls)[-1] == "succeeded"


async def test_d20_pause_between_two_tries_is_cut_short(serve: Serve, receiver: Receiver) -> None:
    receiver.script.append(answers(503))
    patient = Retries(first_pause=3600, longest_pause=3600)
    async with serve(SCALAR, webhooks=options(retries=patient)) as server:
        await server.predict(webhook=receiver.url(), webhook_events_filter=["completed"])
        await receiver.wait(1)
        async with asyncio.timeout(40):
            await server.webhooks.drain(10)
        assert len(receiver.calls) == 2
