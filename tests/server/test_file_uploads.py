"""Output files that a server uploads: `--upload-url` and `output_file_prefix`, from the request to the answer."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from geartrain.outbound import upload_client
from geartrain.outbound.retries import Retries
from geartrain.service.models.deployment import Limits
from tests.support.gates import Gates
from tests.support.receiver import receiving
from tests.support.servers import LiveServer, Serve, eventually
from tests.support.sse import stream
from tests.support.web_server import Exchange, Route, Server, running_server, unused_port

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = """
    import io, pathlib, tempfile
    from typing import Any, Optional
    from cog import BaseModel, BaseRunner, Path

    class Nested(BaseModel):
        image: Path
        count: int
        more: Optional[list] = None

    def file(name, content="content"):
        path = pathlib.Path(tempfile.mkdtemp()) / name
        path.write_text(content)
        return Path(path)

    class Runner(BaseRunner):
        def run(self, code: str) -> Any:
            return eval(code)
"""
GENERATOR = """
    import os, select, tempfile
    from collections.abc import Iterator
    from typing import Any
    from cog import BaseRunner, Path, streaming

    class Runner(BaseRunner):
        @streaming
        def run(self, script: list[Any] = []) -> Iterator[Any]:
            for step, argument in script:
                if step == "wait":
                    with open(argument, "rb", buffering=0) as gate:
                        select.select([gate], [], [])
                elif step == "print":
                    print(argument)
                elif step == "raise":
                    raise ValueError(argument)
                elif step == "die":
                    os._exit(9)
                elif step == "file":
                    path = Path(tempfile.mkdtemp()) / argument
                    path.write_text("content of " + argument)
                    yield path
                else:
                    yield argument
"""


class Routes(dict[str, Route]):
    """Takes whatever has no route of its own."""

    def get(self, path: str, default: Route | None = None) -> Route | None:  # type: ignore[override]
        return super().get(path, default or Exchange.reply)


@pytest.fixture
def receiver() -> Iterator[Server]:
    with running_server() as receiver:
        receiver.routes = Routes()
        yield receiver


@pytest.fixture(scope="module")
def shared_receiver() -> Iterator[Server]:
    with running_server() as receiver:
        receiver.routes = Routes()
        yield receiver


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def uploading(serve_shared: Serve, shared_receiver: Server) -> AsyncIterator[LiveServer]:
    """A server with --upload-url."""
    async with serve_shared(MODEL, name="uploading", upload_url=shared_receiver.url("/up")) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    """A server without."""
    async with serve_shared(MODEL, name="plain") as server:
        yield server


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Gates]:
    gates = Gates(tmp_path / "gates")
    yield gates
    gates.remove()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_client, "_RETRIES", Retries(tries=3, first_pause=0, jitter=0))


def upload_of(receiver: Server, path: str) -> bytes:
    """What was uploaded there last."""
    return [received.body for received in receiver.received if received.path == path][-1]


# --upload-url


@pytest.mark.parametrize(
    ("code", "build"),
    [
        ("file('single.png')", lambda url: url("single.png")),
        ("[file('l0.png'), file('l1.png')]", lambda url: [url("l0.png"), url("l1.png")]),
        ("(file('t0.png'), 'between', io.BytesIO(b'x'))", lambda url: [url("t0.png"), "between", url("output.bin")]),
        ("{'k': {'deep': [file('d.png'), 1]}}", lambda url: {"k": {"deep": [url("d.png"), 1]}}),
        (
            "Nested(image=file('n.png'), count=2, more=[file('m.png')])",
            lambda url: {"image": url("n.png"), "count": 2, "more": [url("m.png")]},
        ),
        ("[file('same.png'), file('same.png')]", lambda url: [url("same.png"), url("same-1.png")]),
        ("[f := file('twice.png'), f]", lambda url: [url("twice.png"), url("twice-1.png")]),
        ("file('a b#é?.png')", lambda url: url("a%20b%23%C3%A9%3F.png")),
        ("'no file'", lambda _: "no file"),
    ],
)
async def test_files_become_urls(
    uploading: LiveServer, shared_receiver: Server, code: str, build: Callable[[Callable[[str], str]], Any]
) -> None:
    body = await uploading.predict({"code": code})
    assert body["status"] == "succeeded", body
    assert body["output"] == build(lambda name: shared_receiver.url(f"/up/{name}"))


async def test_upload_is_as_observed(uploading: LiveServer, shared_receiver: Server) -> None:
    await uploading.predict({"code": "file('observed.png', 'raw bytes')"}, id="u/1")
    (received,) = [received for received in shared_receiver.received if received.path == "/up/observed.png"]
    assert (received.method, received.body) == ("PUT", b"raw bytes")
    assert received.headers["content-type"] == "image/png"
    assert received.headers["x-prediction-id"] == "u/1"


async def test_location_is_the_output(uploading: LiveServer, shared_receiver: Server) -> None:
    shared_receiver.serve("/up/moved.png", status=201, Location="https://cdn.test/x.png?signature=s")
    assert (await uploading.predict({"code": "file('moved.png')"}))["output"] == "https://cdn.test/x.png"


async def test_files_of_a_background_prediction(uploading: LiveServer, shared_receiver: Server) -> None:
    created = await uploading.start({"code": "[file('async.png')]"})
    ended = await uploading.ended(created["id"])
    assert json.loads(bytes(ended.output or b"")) == [shared_receiver.url("/up/async.png")]


async def test_webhook_has_the_urls(uploading: LiveServer, shared_receiver: Server) -> None:
    async with receiving() as hook:
        await uploading.start({"code": "file('hooked.png')"}, webhook=hook.url(), webhook_events_filter=["completed"])
        (call,) = await hook.wait(1)
        assert call.prediction["output"] == shared_receiver.url("/up/hooked.png")


async def test_failed_upload_fails_the_prediction(uploading: LiveServer, shared_receiver: Server) -> None:
    shared_receiver.serve("/up/refused.png", status=403)
    body = await uploading.predict({"code": "[file('fine.png'), file('refused.png')]"})
    assert (body["status"], body["error"]) == (
        "failed",
        "Failed to upload output: upload returned status 403 Forbidden",
    )
    assert "output" not in body
    assert (await uploading.predict({"code": "1"}))["output"] == 1


async def test_faltering_receiver_is_asked_again(uploading: LiveServer, shared_receiver: Server) -> None:
    answers = iter([503, 200])
    shared_receiver.routes["/up/falters.png"] = lambda exchange: exchange.reply(status=next(answers))
    body = await uploading.predict({"code": "file('falters.png')"})
    assert body["output"] == shared_receiver.url("/up/falters.png")


async def test_receiver_that_is_not_there(serve: Serve) -> None:
    async with serve(MODEL, upload_url=f"http://127.0.0.1:{unused_port()}") as server:
        body = await server.predict({"code": "file('a.png')"})
        assert (body["status"], body["error"]) == ("failed", "Failed to upload output: Connection refused")


async def test_d7_uploads_keep_the_models_order(uploading: LiveServer, shared_receiver: Server) -> None:
    arrived = threading.Event()

    def last(exchange: Exchange) -> None:
        arrived.wait(10)
        exchange.reply()

    def first(exchange: Exchange) -> None:
        arrived.set()
        exchange.reply()

    shared_receiver.routes.update({"/up/o0.png": last, "/up/o1.png": first})
    body = await uploading.predict({"code": "[file('o0.png'), file('o1.png')]"})
    assert body["output"] == [shared_receiver.url("/up/o0.png"), shared_receiver.url("/up/o1.png")]


# Iterators


async def test_d29_files_and_values_of_an_iterator(serve: Serve, receiver: Server) -> None:
    script: list[list[Any]] = [
        ["value", "a"],
        ["file", "b.png"],
        ["value", 3],
        ["print", "said"],
        ["file", "b.png"],
        ["value", None],
    ]
    expected = ["a", receiver.url("/up/b.png"), 3, receiver.url("/up/b-1.png"), None]
    async with serve(GENERATOR, upload_url=receiver.url("/up")) as server:
        async with stream(server, *script) as opened:
            events = await opened.rest()
        assert [data for name, data in events if name == "output"] == [
            {"chunk": chunk, "index": index} for index, chunk in enumerate(expected)
        ]
        names = [name for name, _ in events if name != "metric"]
        assert names == ["start", "output", "output", "output", "log", "output", "output", "completed"]
        assert events[-1][1]["output"] == expected
        assert (await server.predict({"script": script}))["output"] == expected


async def test_d7_files_of_an_iterator_are_uploaded_side_by_side_and_given_in_order(
    serve: Serve, receiver: Server
) -> None:
    arrived = threading.Event()

    def first(exchange: Exchange) -> None:
        arrived.wait(10)
        exchange.reply()

    def second(exchange: Exchange) -> None:
        arrived.set()
        exchange.reply()

    receiver.routes.update({"/up/0.png": first, "/up/1.png": second})
    async with serve(GENERATOR, upload_url=receiver.url("/up")) as server:
        body = await server.predict({"script": [["file", "0.png"], ["file", "1.png"]]})
        assert body["output"] == [receiver.url("/up/0.png"), receiver.url("/up/1.png")]


async def test_failed_upload_of_an_iterator_ends_the_run(serve: Serve, receiver: Server, gates: Gates) -> None:
    receiver.serve("/up/bad.png", status=400)
    script = [["file", "good.png"], ["file", "bad.png"], ["wait", str(gates["never"].path)], ["value", "more"]]
    async with serve(GENERATOR, upload_url=receiver.url("/up")) as server:
        body = await server.predict({"script": script})
        assert (body["status"], body["error"]) == (
            "failed",
            "Failed to upload output: upload returned status 400 Bad Request",
        )
        assert body["output"] == [receiver.url("/up/good.png")]
        assert (await server.predict({"script": [["value", 1]]}))["output"] == [1]


@pytest.mark.parametrize(
    ("end", "error"), [(["raise", "late"], "ValueError: late"), (["die", ""], "Worker crashed: exited with code 9")]
)
async def test_files_that_were_given_before_a_failure_stay(
    serve: Serve, receiver: Server, end: list[str], error: str
) -> None:
    """Also when the worker dies while they are being uploaded."""
    async with serve(GENERATOR, upload_url=receiver.url("/up")) as server:
        body = await server.predict({"script": [["file", f"{number}.png"] for number in range(9)] + [end]})
        assert (body["status"], body["error"]) == ("failed", error)
        assert body["output"] == [receiver.url(f"/up/{number}.png") for number in range(9)]
        assert upload_of(receiver, "/up/8.png") == b"content of 8.png"


# Cancel


def holds(receiver: Server) -> Route:
    """Answer only when the client has disconnected."""

    def hold(exchange: Exchange) -> None:
        exchange.hold()

    assert not receiver.held.acquire(blocking=False)
    return hold


async def arrived(semaphore: threading.Semaphore) -> None:
    assert await asyncio.to_thread(semaphore.acquire, timeout=20)


async def test_cancel_cuts_an_upload_short(serve: Serve, receiver: Server) -> None:
    """And it is no matter of the worker, which is not killed however short its grace."""
    receiver.routes["/up/held.png"] = holds(receiver)
    async with serve(MODEL, upload_url=receiver.url("/up"), limits=Limits(cancel_grace=0.0)) as server:
        created = await server.start({"code": "file('held.png')"})
        await arrived(receiver.held)
        assert (await server.client.post(f"/predictions/{created['id']}/cancel")).status_code == 200
        ended = await server.ended(created["id"])
        assert (ended.status, ended.output) == ("canceled", None)
        await arrived(receiver.hung_up)
        for _ in range(10):
            assert (await server.predict({"code": "1"}))["output"] == 1


async def test_cancel_while_the_run_goes_on_cuts_its_uploads_short(
    serve: Serve, receiver: Server, gates: Gates
) -> None:
    receiver.routes["/up/held.png"] = holds(receiver)
    script = [["file", "done.png"], ["file", "held.png"], ["wait", str(gates["never"].path)]]
    async with serve(GENERATOR, upload_url=receiver.url("/up")) as server:
        created = await server.start({"script": script})
        await arrived(receiver.held)
        running = server.predictions.find(created["id"])
        assert running is not None
        await eventually(lambda: bool(running.chunks))  # the two uploads go side by side
        assert (await server.client.post(f"/predictions/{created['id']}/cancel")).status_code == 200
        ended = await server.ended(created["id"])
        assert ended.status == "canceled"
        assert ended.chunks == [json.dumps(receiver.url("/up/done.png")).encode()]
        await arrived(receiver.hung_up)


async def test_client_that_hangs_up_during_an_upload_cancels_it(serve: Serve, receiver: Server) -> None:
    receiver.routes["/up/held.png"] = holds(receiver)
    async with serve(MODEL, upload_url=receiver.url("/up")) as server:
        asking = asyncio.ensure_future(server.predict({"code": "file('held.png')"}, id="gone"))
        await arrived(receiver.held)
        asking.cancel()
        assert (await server.ended("gone")).status == "canceled"
        await arrived(receiver.hung_up)


# output_file_prefix


async def test_files_go_to_the_prefix(plain: LiveServer, shared_receiver: Server) -> None:
    body = await plain.predict(
        {"code": "{'l': [file('p0.png', 'zero'), 2], 'n': Nested(image=file('p1.png'), count=1)}"},
        output_file_prefix=shared_receiver.url("/prefix"),
    )
    assert body["output"] == {
        "l": [shared_receiver.url("/prefix/p0.png"), 2],
        "n": {"image": shared_receiver.url("/prefix/p1.png"), "count": 1, "more": None},
    }
    forms = [received for received in shared_receiver.received if received.path == "/prefix"]
    assert {received.method for received in forms} == {"PUT"}
    assert all(received.headers["content-type"].startswith("multipart/form-data; boundary=") for received in forms)
    assert sorted(b'filename="p0.png"' in received.body for received in forms) == [False, True]


async def test_prefix_of_a_put(plain: LiveServer, shared_receiver: Server) -> None:
    body = {"input": {"code": "file('put.png')"}, "output_file_prefix": shared_receiver.url("/prefix")}
    response = await plain.client.put("/predictions/p-1", json=body)
    assert response.json()["output"] == shared_receiver.url("/prefix/put.png")


async def test_prefix_of_an_iterator(serve: Serve, receiver: Server) -> None:
    async with serve(GENERATOR) as server:
        body = await server.predict(
            {"script": [["file", "x.png"], ["value", 1], ["file", "x.png"]]}, output_file_prefix=receiver.url("/p")
        )
        assert body["output"] == [receiver.url("/p/x.png"), 1, receiver.url("/p/x-1.png")]


async def test_prefix_counts_for_its_own_prediction_alone(plain: LiveServer, shared_receiver: Server) -> None:
    await plain.predict({"code": "file('a.png')"}, output_file_prefix=shared_receiver.url("/prefix"))
    assert (await plain.predict({"code": "file('a.txt')"}))["output"] == "data:text/plain;base64,Y29udGVudA=="
    body = await plain.predict({"code": "file('a.txt')"}, output_file_prefix=None)
    assert body["output"] == "data:text/plain;base64,Y29udGVudA=="


async def test_prefix_wins_over_the_upload_url(uploading: LiveServer, shared_receiver: Server) -> None:
    body = await uploading.predict({"code": "file('w.png')"}, output_file_prefix=shared_receiver.url("/prefix"))
    assert body["output"] == shared_receiver.url("/prefix/w.png")


async def test_failed_upload_to_a_prefix(plain: LiveServer, shared_receiver: Server) -> None:
    shared_receiver.serve("/broken", status=500)
    body = await plain.predict({"code": "file('a.png')"}, output_file_prefix=shared_receiver.url("/broken"))
    assert body["status"] == "failed"
    assert body["error"] == "Failed to upload output: upload returned status 500 Internal Server Error"
    assert len([received for received in shared_receiver.received if received.path == "/broken"]) == 3


@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        ("", "no http: or https: URL"),
        ("/upload", "no http: or https: URL"),
        ("file:///etc/passwd", "no http: or https: URL"),
        ("http://a.test:0x50/", "malformed"),
        ("http://169.254.169.254/", "local link"),
    ],
)
@pytest.mark.parametrize("code", ["1", "file('a.png')"])
async def test_malformed_prefix_is_refused(plain: LiveServer, prefix: str, words: str, code: str) -> None:
    response = await plain.client.post("/predictions", json={"input": {"code": code}, "output_file_prefix": prefix})
    assert response.status_code == 422
    (error,) = response.json()["detail"]
    assert error["loc"] == ["body", "output_file_prefix"]
    assert words in error["msg"]


async def test_wrong_type_of_a_prefix_is_refused(plain: LiveServer) -> None:
    response = await plain.client.post("/predictions", json={"input": {"code": "1"}, "output_file_prefix": 5})
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == ["body", "output_file_prefix"]


async def test_faults_of_prefix_and_input_are_reported_together(plain: LiveServer) -> None:
    response = await plain.client.post("/predictions", json={"input": {}, "output_file_prefix": "nonsense"})
    places = [error["loc"] for error in response.json()["detail"]]
    assert places == [["body", "input", "code"], ["body", "output_file_prefix"]]


async def test_private_prefix_is_refused_unless_it_is_allowed(serve: Serve, receiver: Server) -> None:
    async with serve(MODEL, allow_private_urls=False) as server:
        answer = {"input": {"code": "file('a.png')"}, "output_file_prefix": receiver.url("/up")}
        response = await server.client.post("/predictions", json=answer)
        assert response.status_code == 422
        assert "--allow-private-urls" in response.json()["detail"][0]["msg"]
        # A name shows what it leads to only when it is resolved.
        answer["output_file_prefix"] = receiver.url("/up", host="localhost")
        body = (await server.client.post("/predictions", json=answer)).json()
        assert body["status"] == "failed"
        assert "localhost is a loopback" in body["error"]
        assert receiver.received == []


# Created asynchronously: "require --upload-url to be specified"


@pytest.mark.parametrize("headers", [{"prefer": "respond-async"}, {"accept": "text/event-stream"}])
async def test_prefix_of_a_background_prediction_needs_upload_url(
    serve: Serve, receiver: Server, headers: dict[str, str]
) -> None:
    request = {"input": {"script": [["file", "a.png"]]}, "output_file_prefix": receiver.url("/prefix")}
    async with serve(GENERATOR, name="without") as server:
        response = await server.client.post("/predictions", json=request, headers=headers)
        assert response.status_code == 422
        (error,) = response.json()["detail"]
        assert error["loc"] == ["body", "output_file_prefix"]
        assert "--upload-url" in error["msg"]
    async with serve(GENERATOR, name="with", upload_url=receiver.url("/up")) as server:
        await server.client.post("/predictions", json={**request, "id": "b"}, headers=headers)
        assert (await server.ended("b")).status == "succeeded"
        assert receiver.paths() == ["/up/a.png"]


async def test_nothing_of_an_upload_is_left(uploading: LiveServer) -> None:
    await uploading.predict({"code": "[file('a.png'), file('b.png')]"})
    outputs = uploading.worker._slots.folder._outputs
    await eventually(lambda: not list(outputs.iterdir()))
