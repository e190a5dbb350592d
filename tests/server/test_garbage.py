"""Requests leave nothing to the collector of cycles, in the server and in its workers, however they end."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import httpcore
import httpx
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from geartrain.transport.grpc import torchserve_pb2 as torchserve
from tests.support import garbage, web_server
from tests.support.servers import PATIENCE, ServerProcess, write_model

_START: Final = f"""
    import asyncio, io, os, runpy, time
    from collections.abc import AsyncIterator, Iterator
    from typing import NamedTuple
    from geartrain import BaseRunner, Batch, File, Model, Path, Request, Response
    from geartrain import batched, concurrent, joint, streaming
    from geartrain.openai import endpoint

    class Listening(BaseRunner):
        def setup(self) -> None:
            runpy.run_path({garbage.__file__!r})["listen"](os.environ["GARBAGE_FOLDER"] + "/" + type(self).__name__)
"""
MODELS: Final = {
    "plain": """
    class plain(Listening):
        def run(self, text: str = "", wait: str = "") -> str:
            if text == "fail":
                raise ValueError(text)
            if wait:
                try:
                    os.mknod(wait)
                    time.sleep(60)
                finally:
                    os.unlink(wait)
            print(text)
            return text
    """,
    "later": """
    class later(Listening):
        @concurrent(max=8)
        async def run(self, text: str = "", wait: str = "") -> str:
            if text == "fail":
                raise ValueError(text)
            if wait:
                try:
                    os.mknod(wait)
                    await asyncio.sleep(60)
                finally:
                    os.unlink(wait)
            print(text)
            return text
    """,
    "batch": """
    class batch(Listening):
        @batched(max_size=4)
        def run(self, text: list[str], wait: list[str]) -> list[str]:
            if "fail" in text:
                raise ValueError(text)
            if any(wait):
                try:
                    os.mknod(max(wait))
                    time.sleep(60)
                finally:
                    os.unlink(max(wait))
            print(text)
            return text
    """,
    "stream": """
    class stream(Listening):
        @streaming
        def run(self, text: str = "", wait: str = "") -> Iterator[str]:
            yield text
            if text == "fail":
                raise ValueError(text)
            if wait:
                try:
                    os.mknod(wait)
                    time.sleep(60)
                finally:
                    os.unlink(wait)
            yield text
    """,
    "astream": """
    class astream(Listening):
        @concurrent(max=8)
        @streaming
        async def run(self, text: str = "", wait: str = "") -> AsyncIterator[str]:
            yield text
            if text == "fail":
                raise ValueError(text)
            if wait:
                try:
                    os.mknod(wait)
                    await asyncio.sleep(60)
                finally:
                    os.unlink(wait)
            yield text
    """,
    "joining": """
    class Asked(NamedTuple):
        text: str = ""
        wait: str = ""

    class joining(Listening):
        @joint(max_size=8)
        @streaming
        def run(self, batch: Batch[Asked, Iterator[str]]) -> None:
            for live in batch:
                for request in live:
                    text, wait = request.inputs
                    if request.is_new:
                        request.send(text)
                        if wait:
                            os.mknod(wait)
                    if text == "fail":
                        request.fail(ValueError(text))
                    elif text == "break":
                        raise ValueError(text)
                    elif not wait:
                        request.send(text)
                        request.end()
                waiting = [request for request in live if request.inputs.wait]
                while waiting and all(request.is_live for request in waiting):
                    time.sleep(0.01)
                for request in waiting:
                    if not request.is_live:
                        os.unlink(request.inputs.wait)
    """,
    "writer": """
    class writer(Listening):
        def run(self, prompt: str) -> Iterator[str]:
            if prompt == "fail":
                raise ValueError(prompt)
            yield prompt
            yield prompt
    """,
    "vectors": """
    class vectors(Listening):
        def run(self, text: str) -> list[float]:
            if text == "fail":
                raise ValueError(text)
            return [1.0, 2.0]
    """,
    "caller": """
    class caller(Listening):
        plain: Model

        def run(self, text: str = "", wait: str = "") -> str:
            return self.plain(text=text, wait=wait)
    """,
    "acaller": """
    class acaller(Listening):
        later: Model
        astream: Model

        @concurrent(max=8)
        async def run(self, text: str = "", wait: str = "") -> str:
            forgotten = self.later.start(text="forgotten")
            found = await asyncio.gather(self.later(text=text, wait=wait), self.later(text=text))
            async for piece in self.astream.stream(text=text):
                found.append(piece)
            return found[0]
    """,
    "whole": """
    class whole(Listening):
        def run(self, request: Request) -> Response:
            if request.body == b"fail":
                raise ValueError("fail")
            if request.body == b"stream":
                return Response(piece for piece in (b"a", b"b"))
            return Response(request.body)
    """,
    "files": """
    class files(Listening):
        def run(self, file: Path = None, text: str = "") -> Path:
            if text == "fail":
                raise ValueError(text)
            made = Path("out.txt")
            made.write_text(text or file.read_text())
            return made
    """,
    "hearer": """
    class hearer(Listening):
        def run(self, audio: Path) -> Iterator[str]:
            said = audio.read_text()
            yield said
            if said == "fail":
                raise ValueError(said)
    """,
    "speaker": """
    class speaker(Listening):
        @endpoint("speech")
        def run(self, text: str) -> Iterator[File]:
            yield io.BytesIO(b"sound")
            if text == "fail":
                raise ValueError(text)
    """,
    "painter": """
    class painter(Listening):
        @endpoint("images")
        def run(self, prompt: str, image: Path | None = None) -> File:
            if prompt == "fail":
                raise ValueError(prompt)
            return io.BytesIO(b"picture")
    """,
}
MODELS["kept"] = MODELS["plain"].replace("class plain", "class kept")  # whose answers are kept
TIMES: Final = 5  # that each kind of request is sent
SHORT: Final = 0.05  # seconds that a client waits which does not get its answer
EVENTS: Final = {"accept": "text/event-stream"}
LATER: Final = {"prefer": "respond-async"}
NO_JSON: Final = {"content-type": "application/json"}


class Live:
    """A server of these models, and its clients."""

    def __init__(self, process: ServerProcess, folder: Path, web: web_server.Server) -> None:
        waiting = ["listening", "listening-grpc", *["ready"] * (len(MODELS) + 1)]
        found: dict[str, str] = {}
        while waiting:
            line = process.wait_for_one(*waiting)
            waiting.remove(line["message"])
            found[line["message"]] = line.get("url", "")
        self.url = found["listening"]
        self.web = web
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE)
        self.http2 = httpx.Client(base_url=self.url, timeout=PATIENCE, http1=False, http2=True)
        self.channel = grpc.insecure_channel(found["listening-grpc"])
        self.grpc = GRPCInferenceServiceStub(self.channel)
        self.askers = {name: garbage.Asker(folder / name) for name in ("server", *MODELS)}
        self.folder = folder
        self._numbers = itertools.count()

    def close(self) -> None:
        self.http.close()
        self.http2.close()
        self.channel.close()
        for each in self.askers.values():
            each.close()

    def number(self) -> int:
        """Return one that has not been before."""
        return next(self._numbers)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield the path that a run is given to wait, and a function that waits for its begin; wait for its end."""
        file = self.folder / f"wait{self.number()}"
        yield str(file), lambda: until(file.exists)
        until(lambda: not file.exists())


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


@contextlib.contextmanager
def running(folder: Path, *options: str) -> Iterator[Live]:
    for name, source in MODELS.items():
        write_model(folder / "models" / name, _START + source)
    (folder / "models" / "kept" / "geartrain.yaml").write_text("cache: true\n")
    pipeline = folder / "models" / "pipe"
    pipeline.mkdir()
    (pipeline / "geartrain.yaml").write_text("pipeline:\n  - plain\n")
    with web_server.running_server() as web:
        for path in ("/hook", "/up/out.txt"):
            web.serve(path)
        web.serve("/refusing", status=400)
        web.serve("/file.txt", b"abc")
        process = ServerProcess(
            str(folder / "models"),
            *("--grpc-port", "0", "--queue", "16", "--keep", "0.01s", "--stream-grace", "0"),
            *("--allow-private-urls", "--wakeup", "blocking", "--api", "kserve,torchserve", *options),
            under=(sys.executable, garbage.__file__),
            env={garbage.SOCKET: str(folder / "server"), "GARBAGE_FOLDER": str(folder)},
        )
        try:
            server = Live(process, folder, web)
            for send in (told("/hook"), infer_call("plain"), fetched("/file.txt")):
                send(server)  # what is imported late
            yield server
            server.close()
        finally:
            process.end()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with running(tmp_path_factory.mktemp("alone")) as live:
        yield live


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("stored")
    with running(folder, "--store", f"sqlite:///{folder}/store.db") as live:
        yield live


# the requests

Send = Callable[[Live], None]


def asks(path: str, status: int = 200, *, method: str = "POST", **options: Any) -> Send:
    """Make a function that sends one request over both versions of HTTP; `{}` in the path is a new number."""

    def send(live: Live) -> None:
        for client in (live.http, live.http2):
            answer = client.request(method, path.format(live.number()), **options)
            assert answer.status_code == status, answer.text

    return send


def accepted(model: str, text: str) -> Send:
    """Make a function that sends a request for later, and waits for its end: no other request shares its batch."""

    def send(live: Live) -> None:
        path = f"/models/{model}/predictions"
        for client in (live.http, live.http2):
            answer = client.post(path, json=inputs(text), headers=LATER)
            assert answer.status_code == 202, answer.text
            until(partial(has_ended, client, f"{path}/{answer.json()['id']}"))

    return send


def has_ended(client: httpx.Client, path: str) -> bool:
    answer = client.get(path)  # what has ended is kept for a moment only
    return answer.status_code == 404 or answer.json()["status"] in {"succeeded", "failed"}


def canceled(model: str) -> Send:
    def send(live: Live) -> None:
        path = f"/models/{model}/predictions"
        for client in (live.http, live.http2):
            with live.waiting() as (file, started):
                answer = client.post(path, json=inputs("x", file), headers=LATER)
                assert answer.status_code == 202, answer.text
                started()
                assert client.post(f"{path}/{answer.json()['id']}/cancel").status_code == 200

    return send


def joined(live: Live) -> None:
    """PUT a prediction twice, and GET it."""
    for client in (live.http, live.http2):
        with live.waiting() as (file, started):
            path = f"/models/plain/predictions/j{live.number()}"
            for status in (202, 202):
                assert client.put(path, json=inputs("x", file), headers=LATER).status_code == status
            started()
            assert client.get(path).json()["status"] == "processing"
            assert client.post(f"{path}/cancel").status_code == 200


def told(hook: str) -> Send:
    """Make a function that sends a prediction with a webhook, and waits for the last one."""

    def send(live: Live) -> None:
        received = live.web.received
        for headers in ({}, LATER):
            received.clear()
            body = {**inputs("x"), "webhook": live.web.url(hook)}
            assert live.http.post("/models/plain/predictions", json=body, headers=headers).status_code < 300
            until(lambda: any(b'"completed_at"' in each.body for each in received))

    return send


def fetched(path: str, status: int = 200, **fields: Any) -> Send:
    """Make a function that sends a prediction with a file behind a URL."""

    def send(live: Live) -> None:
        more = {name: live.web.url(value) for name, value in fields.items()}
        body = {"input": {"file": live.web.url(path)}, **more}
        for client in (live.http, live.http2):
            assert client.post("/models/files/predictions", json=body).status_code == status

    return send


def left(path: str, body: Callable[[str], Any], accept: str = "application/json") -> Send:
    """Make a function that hangs up while its run is under way, over both versions of HTTP."""

    def send(live: Live) -> None:
        parts = urlsplit(live.url)
        with live.waiting() as (file, started):
            data = json.dumps(body(file)).encode()
            head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: {accept}\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
            with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:
                connection.sendall(head.encode() + data)
                started()
        with live.waiting() as (file, started):
            fields = {"host": "127.0.0.1", "accept": accept, **NO_JSON}
            data = json.dumps(body(file)).encode()
            options = {"timeout": {"read": SHORT}}
            with httpcore.HTTPConnection(httpcore.URL(live.url).origin, http1=False, http2=True) as http2:
                with contextlib.suppress(httpcore.ReadTimeout):
                    http2.request("POST", live.url + path, content=data, headers=[*fields.items()], extensions=options)
                started()

    return send


def inputs(text: str | int, wait: str = "") -> dict[str, Any]:
    return {"input": {"text": text, "wait": wait}}


def tensors(text: str, wait: str = "") -> dict[str, Any]:
    named = {"text": text, "wait": wait}
    return {
        "inputs": [{"name": name, "shape": [1], "datatype": "BYTES", "data": [value]} for name, value in named.items()]
    }


def binary(text: str) -> dict[str, Any]:
    """Return the options of a request with binary contents."""
    contents = {"text": len(text).to_bytes(4, "little") + text.encode(), "wait": bytes(4)}
    described = [
        {"name": name, "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(content)}}
        for name, content in contents.items()
    ]
    head = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
    headers = {"inference-header-content-length": str(len(head)), "content-type": "application/octet-stream"}
    return {"content": b"".join((head, *contents.values())), "headers": headers}


def timed_out(model: str) -> Send:
    def send(live: Live) -> None:
        for client in (live.http, live.http2):
            with live.waiting() as (file, _):
                body = {**tensors("x", file), "parameters": {"timeout": int(SHORT * 1e6)}}
                assert client.post(f"/v2/models/{model}/infer", json=body).status_code >= 400

    return send


def message(model: str, text: str, wait: str = "") -> Any:
    named = {"text": text, "wait": wait}
    return pb.ModelInferRequest(
        model_name=model,
        inputs=[pb.ModelInferRequest.InferInputTensor(name=name, datatype="BYTES", shape=[1]) for name in named],
        raw_input_contents=[len(each).to_bytes(4, "little") + each.encode() for each in named.values()],
    )


def infer_call(model: str, text: str = "x", **options: Any) -> Send:
    """Make a function that sends one `ModelInfer`, which fails if its text is `fail`."""

    def send(live: Live) -> None:
        with pytest.raises(grpc.RpcError) if text == "fail" else contextlib.nullcontext():
            live.grpc.ModelInfer(message(model, text), **options)

    return send


def infer_call_left(model: str, timeout: float | None = None) -> Send:
    def send(live: Live) -> None:
        with live.waiting() as (file, started):
            call = live.grpc.ModelInfer.future(message(model, "x", file), timeout=timeout)
            started()
            call.cancel()

    return send


def infer_call_timed_out(model: str) -> Send:
    def send(live: Live) -> None:
        with live.waiting() as (file, _), pytest.raises(grpc.RpcError):
            live.grpc.ModelInfer(message(model, "x", file), timeout=SHORT)

    return send


def stream_call(model: str, text: str = "x", **options: Any) -> Send:
    """Make a function that sends two requests on one `ModelStreamInfer`."""

    def send(live: Live) -> None:
        asked = [message(model, text), message(model, text)]
        assert len(list(live.grpc.ModelStreamInfer(iter(asked), **options))) >= len(asked)

    return send


def stream_call_left(model: str, timeout: float | None = None) -> Send:
    def send(live: Live) -> None:
        with live.waiting() as (file, started):
            call = live.grpc.ModelStreamInfer(iter([message(model, "x", file)]), timeout=timeout)
            started()
            call.cancel()

    return send


def stream_call_timed_out(model: str) -> Send:
    def send(live: Live) -> None:
        # The server may say it before the client does.
        with live.waiting() as (file, _), contextlib.suppress(grpc.RpcError):
            list(live.grpc.ModelStreamInfer(iter([message(model, "x", file)]), timeout=SHORT))

    return send


def torchserve_request(text: str, wait: str = "") -> Any:
    return torchserve.PredictionsRequest(model_name="plain", input={"text": text.encode(), "wait": wait.encode()})


def torchserve_call(live: Live, method: str) -> Any:
    """Return the function of a method that answers with a stream; that of `Predictions` is one of one message."""
    channel: Any = live.channel
    path = f"/org.pytorch.serve.grpc.inference.InferenceAPIsService/{method}"
    make = channel.stream_stream if method == "StreamPredictions2" else channel.unary_stream
    return make(path, torchserve.PredictionsRequest.SerializeToString, torchserve.PredictionResponse.FromString)


def torchserve_prediction(method: str, text: str = "x", **options: Any) -> Send:
    """Make a function that sends a request of TorchServe's service, which fails if its text is `fail`."""

    def send(live: Live) -> None:
        with pytest.raises(grpc.RpcError) if text == "fail" else contextlib.nullcontext():
            assert list(torchserve_call(live, method)(torchserve_request(text), **options))

    return send


def torchserve_left(method: str, timeout: float | None = None) -> Send:
    def send(live: Live) -> None:
        with live.waiting() as (file, started):
            call = torchserve_call(live, method)(torchserve_request("x", file), timeout=timeout)
            started()
            call.cancel()

    return send


def torchserve_timed_out(method: str) -> Send:
    def send(live: Live) -> None:
        with live.waiting() as (file, _), pytest.raises(grpc.RpcError):
            list(torchserve_call(live, method)(torchserve_request("x", file), timeout=SHORT))

    return send


def torchserve_sequence(live: Live) -> None:
    """Send a request, one that fails, and one without a sequence, on one call."""
    asked = [torchserve_request("x"), torchserve_request("fail"), torchserve_request("x")]
    for each in asked[:2]:
        each.sequenceId = "s"
    assert len(list(torchserve_call(live, "StreamPredictions2")(iter(asked)))) == len(asked)


def torchserve_sequence_left(live: Live) -> None:
    with live.waiting() as (file, started):
        asked = torchserve_request("x", file)
        asked.sequenceId = "s"
        call = torchserve_call(live, "StreamPredictions2")(iter([asked]))
        started()
        call.cancel()


def stored_file(live: Live) -> None:
    """Upload a file, read it, and remove it."""
    for client in (live.http, live.http2):
        made = client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", b"{}\n")})
        path = f"/v1/files/{made.json()['id']}"
        assert client.get(f"{path}/content").content == b"{}\n"
        assert client.delete(path).status_code == 200


def message_batch(live: Live) -> None:
    """Run a batch of messages, read its results, and remove it."""
    for client in (live.http, live.http2):
        params = {"model": "writer", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
        body = {"requests": [{"custom_id": name, "params": params} for name in "ab"]}
        path = f"/v1/messages/batches/{client.post('/v1/messages/batches', json=body).json()['id']}"
        until(lambda client=client, path=path: client.get(path).json()["processing_status"] == "ended")  # type: ignore[misc]
        assert len(client.get(f"{path}/results").text.splitlines()) == 2
        assert client.delete(path).status_code == 200


def bad_calls(live: Live) -> None:
    for wrong in (pb.ModelInferRequest(model_name="plain", inputs=[{"name": "no"}]), message("no", "")):
        with pytest.raises(grpc.RpcError):
            live.grpc.ModelInfer(wrong)


def pages(live: Live) -> None:
    paths = ("/", "/docs", "/health-check", "/metrics", "/models", "/models/plain/predictions", "/nothing")
    more = ("", "/health/live", "/models/plain", "/models/plain/ready", "/models/plain/stats", "/models/no")
    for client in (live.http, live.http2):
        for path in (*paths, *(f"/v2{each}" for each in more)):
            assert client.get(path).status_code < 500
        assert client.post("/v2/repository/index", json={}).status_code == 200


def calls(live: Live) -> None:
    live.grpc.ServerLive(pb.ServerLiveRequest())
    live.grpc.ServerMetadata(pb.ServerMetadataRequest())
    live.grpc.ModelMetadata(pb.ModelMetadataRequest(name="plain"))
    live.grpc.RepositoryIndex(pb.RepositoryIndexRequest())
    with pytest.raises(grpc.RpcError):
        live.grpc.ModelMetadata(pb.ModelMetadataRequest(name="no"))


def connections(live: Live) -> None:
    for is_http2 in (False, True):
        with httpx.Client(base_url=live.url, http1=not is_http2, http2=is_http2) as client:
            assert client.get("/health-check").status_code == 200


def large(live: Live) -> None:
    text = "x" * 300_000
    for client in (live.http, live.http2):
        assert client.post("/models/plain/predictions", json=inputs(text)).status_code == 200
        assert client.post("/v2/models/plain/infer", json=tensors(text)).status_code == 200
    live.grpc.ModelInfer(message("plain", text))


def of_cog(model: str) -> dict[str, Send]:
    path = f"/models/{model}/predictions"
    kinds = {
        "post": asks(path, json=inputs("x")),
        "put": asks(path + "/p{}", method="PUT", json=inputs("x")),
        "put-again": asks(path + "/again", method="PUT", json=inputs("x")),
        "async": accepted(model, "x"),
        "failed": asks(path, json=inputs("fail")),
        "async-failed": accepted(model, "fail"),
        "invalid": asks(path, 422, json=inputs(7)),
        "canceled": canceled(model),
        "left": left(path, lambda file: inputs("x", file)),
    }
    if model not in STREAMS:
        return kinds
    return {
        **kinds,
        "events": asks(path, json=inputs("x"), headers=EVENTS),
        "events-put": asks(path + "/p{}", method="PUT", json=inputs("x"), headers=EVENTS),
        "events-failed": asks(path, json=inputs("fail"), headers=EVENTS),
        "events-left": left(path, lambda file: inputs("x", file), EVENTS["accept"]),
    }


def of_openai() -> dict[str, Send]:
    path, vectors = "/v1/completions", "/v1/embeddings"

    def body(text: str, **more: Any) -> dict[str, Any]:
        return {"model": "writer", "prompt": text, **more}

    return {
        "vectors": asks(vectors, json={"model": "vectors", "input": ["a", "b"]}),
        "vectors-failed": asks(vectors, 500, json={"model": "vectors", "input": ["a", "fail"]}),
        "completion": asks(path, json=body("x", stop="y")),
        "completion-stream": asks(path, json=body("x", stream=True)),
        "completions": asks(path, json=body("x", n=2)),
        "completions-failed": asks(path, 500, json=body("fail", n=2)),
        "completion-failed": asks(path, 500, json=body("fail", stream=True)),
        "completion-invalid": asks(path, 400, json=body("x", n=0)),
        **{f"{name}{kind}": send for name in ("responses", "messages") for kind, send in _of_chats(name).items()},
    }


def _of_chats(name: str) -> dict[str, Send]:
    path = f"/v1/{name}"

    def body(text: str, **more: Any) -> dict[str, Any]:
        given = text if name == "responses" else [{"role": "user", "content": text}]
        return {"model": "writer", "input" if name == "responses" else "messages": given, **more}

    return {
        "": asks(path, json=body("x")),
        "-stream": asks(path, json=body("x", stream=True)),
        "-failed": asks(path, 500, json=body("fail", stream=True)),
        "-invalid": asks(path, 400, json=body("x", tools=[{}])),
    }


def of_mcp() -> dict[str, Send]:
    path, both = "/mcp", "application/json, text/event-stream"
    newest = {"accept": both, "mcp-protocol-version": "2026-07-28"}
    old = {"accept": both, "mcp-protocol-version": "2025-11-25", "mcp-session-id": "s"}

    def body(method: str, **params: Any) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}

    def call(text: str, name: str = "plain", **more: Any) -> dict[str, Any]:
        return body("tools/call", name=name, arguments={"text": text}, **more)

    token = {"progressToken": 1}
    return {
        "mcp-call": asks(path, json=call("x"), headers=old),
        "mcp-call-json": asks(path, json=call("x"), headers={**old, "accept": "application/json"}),
        "mcp-stream": asks(path, json=call("x", name="stream", _meta=token), headers=old),
        "mcp-failed": asks(path, json=call("fail", _meta=token), headers=old),
        "mcp-invalid": asks(path, json=body("tools/call", name="plain", arguments={"no": 1}), headers=old),
        "mcp-unknown": asks(path, json=call("x", "no"), headers=old),
        "mcp-list": asks(path, json=body("tools/list"), headers=old),
        "mcp-bad": asks(path, 400, content=b"[", headers={**old, **NO_JSON}),
        "mcp-no-version": asks(path, 400, json=body("tools/list"), headers=newest),
        "mcp-file": asks(
            path, json=body("tools/call", name="files", arguments={"file": "data:text/plain,abc"}), headers=old
        ),
        "mcp-left": left(
            path, lambda file: body("tools/call", name="plain", arguments={"text": "x", "wait": file}), both
        ),
    }


def of_media() -> dict[tuple[str, str], Send]:
    audio, path, edits = "/v1/audio/", "/v1/images/generations", "/v1/images/edits"

    def form(said: str, **more: str) -> dict[str, Any]:
        return {"data": {"model": "hearer", **more}, "files": {"file": ("a.wav", said.encode())}}

    def image(prompt: str, **more: Any) -> dict[str, Any]:
        return {"model": "painter", "prompt": prompt, **more}

    picture = {"image": ("a.png", b"x")}
    return {
        ("hearer", "transcript"): asks(f"{audio}transcriptions", **form("x")),
        ("hearer", "transcript-stream"): asks(f"{audio}transcriptions", **form("x", stream="true")),
        ("hearer", "transcript-failed"): asks(f"{audio}transcriptions", 500, **form("fail")),
        ("hearer", "transcript-broken"): asks(f"{audio}transcriptions", **form("fail", stream="true")),
        ("hearer", "transcript-invalid"): asks(f"{audio}transcriptions", 400, **form("x", response_format="srt")),
        ("speaker", "speech"): asks(f"{audio}speech", json={"model": "speaker", "input": "x"}),
        ("speaker", "speech-events"): asks(
            f"{audio}speech", json={"model": "speaker", "input": "fail", "stream_format": "sse"}
        ),
        ("painter", "images"): asks(path, json=image("x", n=2)),
        ("painter", "images-failed"): asks(path, 500, json=image("fail", n=2)),
        ("painter", "edits"): asks(edits, data=image("x", n="2"), files=picture),
        ("painter", "edits-failed"): asks(edits, 500, data=image("fail", n="2"), files=picture),
        ("painter", "edits-invalid"): asks(edits, 400, data=image("x", n="0"), files=picture),
    }


def of_open_inference(model: str) -> dict[str, Send]:
    path = f"/v2/models/{model}"
    if model in STREAMS:
        return {
            "generate": asks(f"{path}/generate_stream", json={"text": "x"}),
            "generate-failed": asks(f"{path}/generate_stream", json={"text": "fail"}),
            "generate-left": left(
                f"{path}/generate_stream", lambda file: {"text": "x", "wait": file}, EVENTS["accept"]
            ),
        }
    packed: dict[str, Any] = {
        "content": gzip.compress(json.dumps(tensors("x")).encode()),
        "headers": {"content-encoding": "gzip"},
    }
    return {
        "infer": asks(f"{path}/infer", json=tensors("x")),
        "infer-failed": asks(f"{path}/infer", 500, json=tensors("fail")),
        "infer-binary": asks(f"{path}/infer", **binary("x")),
        "infer-gzip": asks(f"{path}/infer", **packed),
        "infer-invalid": asks(f"{path}/infer", 400, json={"inputs": [{"name": "no"}]}),
        "infer-timed-out": timed_out(model),
        "infer-left": left(f"{path}/infer", lambda file: tensors("x", file)),
        "generate": asks(f"{path}/generate", json={"text": "x", "wait": ""}),
        "generate-failed": asks(f"{path}/generate", 500, json={"text": "fail", "wait": ""}),
    }


def of_grpc(model: str) -> dict[str, Send]:
    kinds = {
        "stream-call": stream_call(model),
        "stream-call-failed": stream_call(model, "fail"),
        "stream-call-gzip": stream_call(model, compression=grpc.Compression.Gzip),
        "stream-call-limited": stream_call(model, timeout=PATIENCE),
        "stream-call-left": stream_call_left(model),
        "stream-call-limited-left": stream_call_left(model, PATIENCE),
        "stream-call-timed-out": stream_call_timed_out(model),
    }
    if model in STREAMS:
        return kinds
    return {
        **kinds,
        "call": infer_call(model),
        "call-failed": infer_call(model, "fail"),
        "call-gzip": infer_call(model, compression=grpc.Compression.Gzip),
        "call-limited": infer_call(model, timeout=PATIENCE),
        "call-limited-failed": infer_call(model, "fail", timeout=PATIENCE),
        "call-left": infer_call_left(model),
        "call-limited-left": infer_call_left(model, PATIENCE),
        "call-timed-out": infer_call_timed_out(model),
    }


def of_torchserve() -> dict[tuple[str, str], Send]:
    found: dict[tuple[str, str], Send] = {
        ("plain", "torchserve-sequence"): torchserve_sequence,
        ("plain", "torchserve-sequence-left"): torchserve_sequence_left,
    }
    for name, method in (("torchserve", "Predictions"), ("torchserve-stream", "StreamPredictions")):
        found |= {
            ("plain", name): torchserve_prediction(method),
            ("plain", f"{name}-failed"): torchserve_prediction(method, "fail"),
            ("plain", f"{name}-limited"): torchserve_prediction(method, timeout=PATIENCE),
            ("plain", f"{name}-left"): torchserve_left(method),
            ("plain", f"{name}-limited-left"): torchserve_left(method, PATIENCE),
            ("plain", f"{name}-timed-out"): torchserve_timed_out(method),
        }
    return found


def of_bodies() -> dict[tuple[str, str], Send]:
    path, other = "/models/whole/invoke", "/models/plain/invoke"
    return {
        ("whole", "invoke"): asks(path, content=b"x"),
        ("whole", "invoke-stream"): asks(path, content=b"stream"),
        ("whole", "invoke-failed"): asks(path, 500, content=b"fail"),
        ("plain", "invoke"): asks(other, json={"text": "x"}),
        ("plain", "invoke-failed"): asks(other, 500, json={"text": "fail"}),
        ("plain", "invoke-invalid"): asks(other, 422, json={"no": 1}),
        ("plain", "invoke-left"): left(other, lambda file: {"text": "x", "wait": file}),
        ("plain", "invocations"): asks("/v1/models/plain:predict", json={"instances": [{"text": "a"}, {"text": "b"}]}),
        ("plain", "invocations-failed"): asks(
            "/v1/models/plain:predict", 500, json={"instances": [{"text": "a"}, {"text": "fail"}]}
        ),
    }


def of_pipelines() -> dict[tuple[str, str], Send]:
    path = "/models/pipe/predictions"
    return {
        ("plain", "pipeline"): asks(path, json=inputs("x")),
        ("plain", "pipeline-failed"): asks(path, json=inputs("fail")),
        ("plain", "pipeline-invalid"): asks(path, 422, json=inputs(7)),
        ("plain", "pipeline-left"): left(path, lambda file: inputs("x", file)),
        ("plain", "pipeline-infer"): asks("/v2/models/pipe/infer", json=tensors("x")),
    }


STREAMS: Final = ("stream", "astream", "joining")
RUNNING: Final = ("plain", "kept", "later", "batch", "caller", "acaller", *STREAMS)
_PLAIN: Final = "/models/plain/predictions"
_FILES: Final = "/models/files/predictions"
KINDS: Final[dict[tuple[str, str], Send]] = {
    **{
        (model, name): send
        for model in RUNNING
        for kinds in (of_cog, of_open_inference, of_grpc)
        for name, send in kinds(model).items()
    },
    **{("writer", name): send for name, send in of_openai().items()},
    **{("plain", name): send for name, send in of_mcp().items()},
    **of_media(),
    **of_bodies(),
    **of_torchserve(),
    **of_pipelines(),
    ("joining", "broken"): asks("/models/joining/predictions", json=inputs("break")),
    ("plain", "bad-json"): asks(_PLAIN, 400, content=b"{", headers=NO_JSON),
    ("plain", "form"): asks(_PLAIN, files={"text": (None, "x")}),
    ("plain", "bad-form"): asks(_PLAIN, 400, content=b"x", headers={"content-type": "multipart/form-data; boundary=a"}),
    ("plain", "joined"): joined,
    ("plain", "webhook"): told("/hook"),
    ("plain", "webhook-refused"): told("/refusing"),
    ("plain", "large"): large,
    ("plain", "bad-calls"): bad_calls,
    ("plain", "pages"): pages,
    ("plain", "calls"): calls,
    ("plain", "connections"): connections,
    ("files", "file"): asks(_FILES, json={"input": {"file": "data:text/plain,abc"}}),
    ("files", "form"): asks(_FILES, files={"file": ("a.txt", b"abc")}),
    ("files", "failed"): asks(_FILES, json={"input": {"file": "data:,x", "text": "fail"}}),
    ("files", "no-file"): asks(_FILES, 422, json={"input": {"file": "/etc/passwd"}}),
    ("files", "fetched"): fetched("/file.txt"),
    ("files", "not-fetched"): fetched("/no"),
    ("files", "not-reached"): asks(_FILES, json={"input": {"file": "http://127.0.0.1:1/no"}}),
    ("files", "uploaded"): fetched("/file.txt", output_file_prefix="/up/"),
    ("files", "not-uploaded"): fetched("/file.txt", output_file_prefix="/no/"),
}


OF_STORE: Final[dict[tuple[str, str], Send]] = {
    ("plain", "stored-file"): stored_file,
    ("writer", "message-batch"): message_batch,
}
STORED: Final = [
    *(each for each in KINDS if each[0] == "files" or each[1] in {*of_cog(each[0]), "form", "joined", "webhook"}),
    *OF_STORE,
]


@pytest.mark.parametrize(("model", "kind"), KINDS)
def test_s2_requests_leave_no_cycle(alone: Live, model: str, kind: str) -> None:
    check(alone, model, kind)


@pytest.mark.parametrize(("model", "kind"), STORED)
def test_s2_requests_with_a_store_leave_no_cycle(stored: Live, model: str, kind: str) -> None:
    check(stored, model, kind)


def check(live: Live, model: str, kind: str) -> None:
    """Count, with the collector off, what grows with the number of requests and nothing refers to: it is in a cycle."""
    send = {**KINDS, **OF_STORE}[model, kind]
    send(live)  # what is made once for all requests of the kind
    processes = ("server", model)
    for process in processes:
        live.askers[process].begin()
    for _ in range(TIMES):
        send(live)
    for process in processes:
        counts, cycles = live.askers[process].count()
        grown = {name: count for name, count in counts.items() if count > TIMES // 2}  # the last ones may be alive
        assert not grown, "\n".join((f"{process}: {grown}", *cycles))
