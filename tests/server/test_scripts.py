"""Scripts of SageMaker, Hugging Face and Azure ML, unchanged: served in place, and asked as their own servers are."""

from __future__ import annotations

import io
import json
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from geartrain.project.errors import ProjectError
from geartrain.project.source import find_model
from tests.support.servers import ServerProcess, listening_ports

FULL = """
    import json
    import os
    from helper import scale
    from sagemaker_inference import content_types, decoder, errors

    def model_fn(model_dir):
        assert os.environ["SM_MODEL_DIR"] == model_dir
        with open(os.path.join(model_dir, "weights.txt")) as file:
            return float(file.read())

    def input_fn(request_body, request_content_type, context):
        assert context.get_request_header(0, "X-Own") in (None, "own")
        if request_content_type == content_types.JSON:
            return json.loads(request_body)["x"]
        if request_content_type == content_types.CSV:
            return decoder.decode(request_body, request_content_type).sum()
        raise errors.UnsupportedFormatError(request_content_type)

    def predict_fn(data, model):
        if data < 0:
            raise ValueError("x is negative")
        return scale(data) * model

    def output_fn(prediction, accept):
        return json.dumps({"y": prediction}), accept
"""
DEFAULTS = """
    class Doubler:
        def predict(self, rows):
            return rows * 2

    async_loaded = []

    def model_fn(model_dir, context):
        async_loaded.append(context.system_properties["model_dir"])
        return Doubler()
"""
TRANSFORM = """
    def model_fn(model_dir):
        return "!"

    def transform_fn(model, data, content_type, accept):
        return data[::-1] + model, "text/plain"
"""
HANDLER = """
    class EndpointHandler:
        def __init__(self, path=""):
            with open(f"{path}/weights.txt") as file:
                self.weight = float(file.read())

        def __call__(self, data):
            inputs = data.pop("inputs", data)
            if inputs == "bytes":
                return b"raw"
            if isinstance(inputs, bytes):
                return {"size": len(inputs)}
            if hasattr(inputs, "size"):
                return inputs.rotate(90)
            parameters = data.pop("parameters", {})
            return [{"label": inputs.upper(), "score": self.weight * parameters.get("scale", 1)}]
"""
SCORE = """
    import json
    import os

    def init():
        global model
        with open(os.path.join(os.environ["AZUREML_MODEL_DIR"], "weights.txt")) as file:
            model = float(file.read())

    def run(raw_data):
        return [model * each for each in json.loads(raw_data)["data"]]
"""
RAW = """
    from azureml.contrib.services.aml_request import AMLRequest, rawhttp
    from azureml.contrib.services.aml_response import AMLResponse

    def init():
        pass

    @rawhttp
    def run(request):
        if request.method != "POST":
            return AMLResponse("bad request", 500)
        if not request.get_data():
            return AMLResponse({"error": "empty"}, 422, json_str=True)
        return AMLResponse(request.get_data(as_text=True)[::-1], 200, {"x-own": request.args.get("a", "")})
"""
SERVING = """
    import uvicorn

    uvicorn.run("helper:app", host="127.0.0.1", port=0)
"""
FLASK = """
    from flask import Flask
    from werkzeug.serving import make_server, run_simple

    app = Flask(__name__)
    app.run("127.0.0.1", 0)
    run_simple("127.0.0.1", 0, app)
    server = make_server("127.0.0.1", 0, app)
    server.serve_forever()
"""
AIOHTTP = """
    from aiohttp import web

    web.run_app(web.Application(), host="127.0.0.1", port=0)
"""
ASYNCIO = """
    import asyncio

    async def answer(reader, writer):
        writer.close()

    async def serve():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        await server.serve_forever()

    async def wait():
        loop = asyncio.get_running_loop()
        await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        await asyncio.Event().wait()

    asyncio.run(serve())
    asyncio.run(wait())
    loop = asyncio.new_event_loop()
    loop.run_until_complete(asyncio.start_server(answer, "::1", 0))
    loop.run_forever()
"""
HYPERCORN = """
    import asyncio
    from hypercorn.asyncio import serve
    from hypercorn.config import Config
    from hypercorn.run import run

    async def app(scope, receive, send):
        assert scope["type"] == "lifespan"
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})

    asyncio.run(serve(app, Config.from_mapping(bind="127.0.0.1:0")))
    run(Config.from_mapping(bind="127.0.0.1:0", application_path="helper:app"))

    def later(number: int):
        return number

    assert later.__annotations__ == {"number": int}
"""
UVLOOP = """
    from __future__ import annotations

    import asyncio
    import uvloop

    async def serve():
        server = await asyncio.start_server(print, "127.0.0.1", 0)
        await server.serve_forever()

    uvloop.run(serve())

    class Later:
        other: NotThere
"""
GRPC = """
    import asyncio
    from concurrent import futures

    import grpc

    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_insecure_port("127.0.0.1:0")
    server.start()
    server.wait_for_termination()

    async def serve():
        server = grpc.aio.server()
        server.add_insecure_port("127.0.0.1:0")
        await server.start()
        await server.wait_for_termination()

    asyncio.run(serve())
"""
GEVENT = """
    import gevent
    import gevent.pywsgi
    import gevent.server
    import gevent.socket

    started = gevent.server.StreamServer(("127.0.0.1", 0), print)
    started.start()
    gevent.wait()
    gevent.pywsgi.WSGIServer(("127.0.0.1", 0), print).serve_forever()
    gevent.spawn(gevent.pywsgi.WSGIServer(("::1", 0), print).serve_forever).join()
    listener = gevent.socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    gevent.pywsgi.WSGIServer(listener, print).serve_forever()
    gevent.spawn(listener.accept).join()
    while True:
        listener.accept()
    started.stop()
"""
TRIO = """
    import anyio
    import hypercorn.trio
    import trio
    from hypercorn.config import Config

    async def app(scope, receive, send):
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})

    async def serve():
        listeners = await anyio.create_tcp_listener(local_host="127.0.0.1")
        await listeners.serve(print)

    async def nested():
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, print, 0)
            nursery.start_soon(trio.sleep_forever)

    trio.run(trio.serve_tcp, print, 0)
    trio.run(nested)
    anyio.run(serve)
    anyio.run(serve, backend="trio")
    trio.run(hypercorn.trio.serve, app, Config.from_mapping(bind="127.0.0.1:0"))
"""
TORNADO = """
    import tornado.ioloop
    import tornado.web

    app = tornado.web.Application([])
    app.listen(0, "127.0.0.1")
    tornado.ioloop.IOLoop.current().start()
"""
WAITRESS = """
    import waitress

    waitress.serve(print, host="127.0.0.1", port=0)
    server = waitress.create_server(print, host="127.0.0.1", port=0)
    server.run()
"""
SOCKETS = """
    import asyncio
    import select
    import socket
    import threading

    asked = socket.create_server(("127.0.0.1", 0))
    select.select([asked], [], [])
    while True:
        client, _ = asked.accept()
    other = socket.socket()
    other.bind(("127.0.0.1", 0))
    other.listen()

    def serve():
        gate.wait()  # this thread goes on after the import
        late = socket.create_server(("127.0.0.1", 0))
        marked.set()
        late.accept()

    gate, marked = threading.Event(), threading.Event()
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    def at_setup():
        gate.set()
        assert marked.wait(20)
"""
LIBRARY = """
    import http.server
    import threading
    import xmlrpc.server
    from socketserver import BaseRequestHandler, ThreadingUDPServer

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever).start()
        server.shutdown()
        server.serve_forever()
    calls = xmlrpc.server.SimpleXMLRPCServer(("127.0.0.1", 0))
    calls.handle_request()
    calls.serve_forever()
    datagrams = ThreadingUDPServer(("127.0.0.1", 0), BaseRequestHandler)
    datagrams.serve_forever()
"""
IN_SETUP = """
    import http.server
    import threading
    import urllib.request

    made = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)  # has no address

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"from a server of the model")

    def model_fn(model_dir):
        with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            found = urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}").read().decode()
            server.shutdown()
            thread.join()
        return found

    def transform_fn(model, data, kind, accept):
        return model
"""
ANSWERS = """
    def transform_fn(model, data, kind, accept):
        return "served"
"""
JSON = {"content-type": "application/json"}

Start = Callable[[str, str], httpx.Client]


@pytest.fixture
def start(tmp_path: Path, server_process: Callable[..., ServerProcess]) -> Iterator[Start]:
    """Serve a folder with a script at a place."""
    clients = []

    def serve(place: str, text: str) -> httpx.Client:
        folder = tmp_path / "scripted"
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(textwrap.dedent(text))
        ((folder / place).parent / "helper.py").write_text("def scale(value):\n    return 10 * value\n")
        (folder / "weights.txt").write_text("2.5")
        process = server_process(str(folder))
        url = process.wait_for("listening")["url"]
        process.wait_for("ready")
        clients.append(httpx.Client(base_url=url))
        assert listening_ports(process.popen.pid) == {httpx.URL(url).port}
        return clients[-1]

    yield serve
    for client in clients:
        client.close()


@pytest.mark.parametrize("place", ["inference.py", "code/inference.py"])
def test_sagemaker(start: Start, place: str) -> None:
    client = start(place, FULL)
    assert client.get("/ping").status_code == 200
    answer = client.post("/invocations", content='{"x": 3}', headers={**JSON, "accept": "*/*", "x-own": "own"})
    assert (answer.status_code, answer.json(), answer.headers["content-type"]) == (
        200,
        {"y": 75.0},
        "application/json",
    )
    answer = client.post("/invocations", content="1,2", headers={"content-type": "text/csv"})
    assert answer.json() == {"y": 75.0}
    answer = client.post("/invocations", content="x", headers={"content-type": "image/png"})
    assert (answer.status_code, "image/png is not supported" in answer.json()["error"]) == (415, True)
    answer = client.post("/invocations", content='{"x": -1}', headers=JSON)
    assert (answer.status_code, answer.json()["error"]) == (500, "ValueError: x is negative")
    body = {"input": {"body": {"x": 1}, "content_type": "application/json"}}
    assert client.post("/predictions", json=body).json()["output"] == {"y": 25.0}


def test_sagemaker_with_what_it_does_by_default(start: Start) -> None:
    client = start("code/inference.py", DEFAULTS)
    assert client.post("/invocations", json=[[1, 2], [3, 4]]).json() == [[2, 4], [6, 8]]
    answer = client.post(
        "/invocations", content="1,2\n3,4\n", headers={"content-type": "text/csv", "accept": "text/csv"}
    )
    assert (answer.text, answer.headers["content-type"]) == ("2.0,4.0\n6.0,8.0\n", "text/csv")
    array = io.BytesIO()
    np.save(array, np.arange(3))
    kind = "application/x-npy"
    answer = client.post("/invocations", content=array.getvalue(), headers={"content-type": kind, "accept": kind})
    assert np.load(io.BytesIO(answer.content)).tolist() == [0, 2, 4]
    answer = client.post("/invocations", json=[1], headers={"accept": "application/xml"})
    assert answer.status_code == 415


def test_sagemaker_in_one_function(start: Start) -> None:
    client = start("inference.py", TRANSFORM)
    answer = client.post("/invocations", content="abc", headers={"content-type": "text/plain"})
    assert (answer.text, answer.headers["content-type"]) == ("cba!", "text/plain")


NO_LOAD = """
    def predict_fn(data, model, context):
        assert context.system_properties["model_dir"]
        assert tuple(data.shape) == (2, 2) and str(data.dtype) == "torch.float32", data
        return model(data) + 1
"""
ONLY_OUTPUT = """
    import json

    def output_fn(prediction, accept):
        return json.dumps({"found": prediction}), accept
"""
PIPELINES = """
    def pipeline(task, model, device, **parts):
        folder = __import__("os").path.basename(model)

        def ask(inputs, **parameters):
            return [{"task": task, "in": folder, "of": sorted(parts), "text": str(inputs), "by": str(parameters)}]

        return ask
"""


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", ["model.pt", "other.pth"])
def test_a_file_of_torch_script_is_loaded_without_model_fn(start: Start, tmp_path: Path, name: str) -> None:
    import torch

    linear = torch.nn.Linear(2, 1)
    rows = [[1.0, 2.0], [3.0, 4.0]]
    with torch.no_grad():
        wanted = (linear(torch.tensor(rows)) + 1).tolist()
    (tmp_path / "scripted").mkdir()
    torch.jit.script(linear).save(str(tmp_path / "scripted" / name))
    client = start("code/inference.py", NO_LOAD)
    assert client.post("/invocations", json=rows).json() == pytest.approx(np.array(wanted))
    answer = client.post("/invocations", content="1,2\n3,4\n", headers={"content-type": "text/csv"})
    assert answer.json() == pytest.approx(np.array(wanted))


@pytest.mark.parametrize(
    ("config", "task", "parts"),
    [
        ({"architectures": ["BertForSequenceClassification"]}, "text-classification", ["tokenizer"]),
        ({}, "image-classification", ["feature_extractor"]),
    ],
)
def test_a_pipeline_is_loaded_without_model_fn(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Any, task: str, parts: list[str]
) -> None:
    code = tmp_path / "scripted/code"
    code.mkdir(parents=True)
    (tmp_path / "scripted/config.json").write_text(json.dumps(config))
    (code / "transformers.py").write_text(textwrap.dedent(PIPELINES))  # in the place of the package
    if not config:
        monkeypatch.setenv("HF_TASK", task)
    client = start("code/inference.py", ONLY_OUTPUT)
    answer = client.post("/invocations", json={"inputs": "a", "parameters": {"top_k": 1}})
    found = {"task": task, "in": "scripted", "of": parts, "text": "a", "by": "{'top_k': 1}"}
    assert answer.json() == {"found": [found]}
    csv = {"content-type": "text/csv"}
    answer = client.post("/invocations", content="inputs\na\nb\n", headers=csv)
    assert answer.json()["found"][0]["text"] == "['a', 'b']"
    answer = client.post("/invocations", content="a\nb\n", headers=csv)
    assert (answer.status_code, "names of columns" in answer.json()["error"]) == (400, True)


def test_sagemaker_with_a_script_of_another_name(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGEMAKER_PROGRAM", "entry.py")
    client = start("code/entry.py", FULL)
    assert client.post("/invocations", content='{"x": 3}', headers=JSON).json() == {"y": 75.0}


def test_sagemaker_with_a_script_in_another_folder(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = tmp_path / "submitted"
    submitted.mkdir()
    (submitted / "entry.py").write_text(textwrap.dedent(FULL))
    (submitted / "helper.py").write_text("def scale(value):\n    return 2 * value\n")
    monkeypatch.setenv("SAGEMAKER_PROGRAM", "entry.py")
    monkeypatch.setenv("SAGEMAKER_SUBMIT_DIRECTORY", str(submitted))
    client = start("notes/read.txt", "")
    assert client.post("/invocations", content='{"x": 3}', headers=JSON).json() == {"y": 15.0}


@pytest.mark.parametrize(
    ("program", "submitted", "backend"),
    [("entry.py", "", "sagemaker"), ("other.py", "s3://bucket/code.tar.gz", None), ("entry", "", None)],
)
def test_the_program_of_sagemaker_is_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, submitted: str, backend: str | None
) -> None:
    (tmp_path / "entry.py").write_text(textwrap.dedent(TRANSFORM))
    monkeypatch.setenv("SAGEMAKER_PROGRAM", program)
    monkeypatch.setenv("SAGEMAKER_SUBMIT_DIRECTORY", submitted)
    if backend is None:
        with pytest.raises(ProjectError):
            find_model(str(tmp_path))
    else:
        (tmp_path / "inference.py").write_text(textwrap.dedent(FULL))  # it is not the one that is named
        assert (find_model(str(tmp_path)).backend, find_model(str(tmp_path)).runner) == (backend, tmp_path.name)


@pytest.mark.parametrize(
    ("place", "text", "path", "body"),
    [
        ("code/inference.py", DEFAULTS, "/invocations", [[1]]),
        ("handler.py", HANDLER, "/predict", {"inputs": "a"}),
        ("score.py", SCORE, "/score", {"data": [1]}),
    ],
)
def test_a_server_that_a_script_starts_does_not_listen(
    start: Start, place: str, text: str, path: str, body: Any
) -> None:
    """`start` looks at the ports; the script would not end if its server ran."""
    client = start(place, SERVING + text)
    assert client.post(path, json=body).status_code == 200


@pytest.mark.parametrize(
    ("package", "serving"),
    [
        ("flask", FLASK),
        ("aiohttp", AIOHTTP),
        ("http", LIBRARY),
        ("asyncio", ASYNCIO),
        ("hypercorn", HYPERCORN),
        ("uvloop", UVLOOP),
        ("grpc", GRPC),
        ("tornado", TORNADO),
        ("waitress", WAITRESS),
        ("gevent", GEVENT),
        ("trio", TRIO),
    ],
)
def test_servers_of_other_packages_do_not_listen(start: Start, package: str, serving: str) -> None:
    pytest.importorskip(package)
    client = start("score.py", serving + SCORE)
    assert client.post("/score", json={"data": [1]}).json() == [2.5]


def test_a_server_of_gevent_that_is_made_in_the_import_does_not_start_in_the_setup(start: Start) -> None:
    pytest.importorskip("gevent")
    setup = """
    def model_fn(folder):
        started.start()
        gevent.spawn(started.serve_forever).join()
"""
    client = start("inference.py", GEVENT + setup + ANSWERS)
    assert client.post("/invocations", json=1).text == "served"


def test_sockets_of_a_script_do_not_listen(tmp_path: Path, server_process: Callable[..., ServerProcess]) -> None:
    """That of a thread that goes on after the import does not either; the log names the lines."""
    text = textwrap.dedent(f"{SOCKETS}\n    def model_fn(folder):\n        at_setup()\n{ANSWERS}")
    (tmp_path / "inference.py").write_text(text)
    process = server_process(str(tmp_path), "--mirror-prints=on")
    url = process.wait_for("listening")["url"]
    process.wait_for("ready")
    assert listening_ports(process.popen.pid) == {httpx.URL(url).port}
    assert httpx.post(f"{url}/invocations", json=1).text == "served"
    logged = "".join(map(json.dumps, process.lines))
    for code in ("asked = socket.create_server", "other.listen", "late = socket.create_server"):
        line = next(number for number, each in enumerate(text.splitlines(), start=1) if code in each)
        assert f"inference.py:{line}: a server is not started: geartrain serves this model" in logged


def test_a_model_may_have_a_server_in_its_setup(start: Start) -> None:
    client = start("inference.py", IN_SETUP)
    assert client.post("/invocations", json=1).text == "from a server of the model"


def test_hugging_face(start: Start) -> None:
    from PIL import Image

    client = start("handler.py", HANDLER)
    answer = client.post("/", json={"inputs": "good", "parameters": {"scale": 2}})
    assert answer.json() == [{"label": "GOOD", "score": 5.0}]
    assert client.post("/predict", content="good", headers={"content-type": "text/plain"}).json()[0]["score"] == 2.5
    assert client.post("/", content=b"12345", headers={"content-type": "audio/flac"}).json() == {"size": 5}
    answer = client.post("/", json={"inputs": "bytes"}, headers={"accept": "image/png"})
    assert (answer.content, answer.headers["content-type"]) == (b"raw", "image/png")
    picture = io.BytesIO()
    Image.new("RGB", (4, 2)).save(picture, format="png")
    headers = {"content-type": "image/png", "accept": "image/jpeg"}
    answer = client.post("/", content=picture.getvalue(), headers=headers)
    assert (Image.open(io.BytesIO(answer.content)).format, answer.headers["content-type"]) == ("JPEG", "image/jpeg")
    answer = client.post("/", json={"inputs": 7})
    assert (answer.status_code, answer.json()["error"]) == (
        400,
        "AttributeError: 'int' object has no attribute 'upper'",
    )
    for wrong in ("[1]", "{"):
        assert client.post("/", content=wrong, headers=JSON).status_code == 400
    assert client.get("/health").status_code == 200


def test_azure(start: Start) -> None:
    client = start("score.py", SCORE)
    assert client.post("/score", json={"data": [1, 2]}).json() == [2.5, 5.0]
    answer = client.post("/score", content="{", headers=JSON)
    assert (answer.status_code, "JSONDecodeError" in answer.json()["error"]) == (500, True)


def test_azure_with_raw_requests(start: Start) -> None:
    client = start("score.py", RAW)
    answer = client.post("/score?a=1", content=b"abc", headers={"content-type": "text/plain"})
    assert (answer.text, answer.headers["x-own"]) == ("cba", "1")
    answer = client.post("/score", content=b"", headers={"content-type": "text/plain"})
    assert (answer.status_code, answer.json()) == (422, {"error": "empty"})


FILES = """
    import io
    from azureml.contrib.services.aml_request import AMLRequest, rawhttp
    from azureml.contrib.services.aml_response import AMLResponse

    def init():
        pass

    @rawhttp
    def run(request: AMLRequest):
        files = request.files.getlist("file[]")
        if request.form.get("whole"):
            answer = AMLResponse(request.files["file[]"].read() + files[-1].stream.read(), 200)
            answer.mimetype = "image/x-own"
            return answer
        return {"names": [each.filename for each in files], "missing": request.files.getlist("other")}
"""


def test_azure_with_files(start: Start) -> None:
    client = start("multi-file-score.py", FILES)
    files = [("file[]", ("a.bin", b"1")), ("file[]", ("b.bin", b"2"))]
    assert client.post("/score", files=files).json() == {"names": ["a.bin", "b.bin"], "missing": []}
    answer = client.post("/score", files=files, data={"whole": "yes"})
    assert (answer.content, answer.headers["content-type"]) == (b"12", "image/x-own")
    assert client.post("/score", content=b"x", headers={"content-type": "multipart/form-data"}).status_code == 400


SCHEMA = """
    import functools

    NAMED = []

    def input_schema(function):
        @functools.wraps(function)
        def checked(*arguments, **fields):
            return function(*arguments, **fields)
        NAMED.append(checked)
        return checked

    def is_schema_decorated(function):
        return function in NAMED
"""
DECORATED = """
    from inference_schema.schema_util import input_schema

    def init():
        pass

    @input_schema
    def run(rows, scale=1):
        return {"sum": sum(rows) * scale}
"""


def test_azure_with_a_schema(start: Start, tmp_path: Path) -> None:
    """The package `inference_schema` of this test has the two functions that the contract is about."""
    package = tmp_path / "scripted/inference_schema"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "schema_util.py").write_text(textwrap.dedent(SCHEMA))
    client = start("score.py", DECORATED)
    assert client.post("/score", json={"rows": [1, 2]}).json() == {"sum": 3}
    assert client.post("/score", json={"rows": [1, 2], "scale": 2, "more": 1}).json() == {"sum": 6}
    for wrong in ('{"scale": 2}', "[1]", "{"):
        answer = client.post("/score", content=wrong, headers=JSON)
        assert answer.status_code == 400
    assert client.post("/score", content="[1]", headers=JSON).json()["error"].endswith("with the fields rows")


# what is recognised, and what cannot be


@pytest.mark.parametrize(
    ("place", "text", "backend"),
    [
        ("inference.py", FULL, "sagemaker"),
        ("code/inference.py", FULL, "sagemaker"),
        ("handler.py", HANDLER, "huggingface"),
        ("score.py", SCORE, "azureml"),
    ],
)
def test_scripts_come_before_the_files_that_they_load(tmp_path: Path, place: str, text: str, backend: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text(textwrap.dedent(text))
    (tmp_path / "model.joblib").write_bytes(b"\x80\x04sklearn")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (tmp_path / "model.safetensors").touch()
    assert find_model(str(tmp_path)).backend == backend


@pytest.mark.parametrize("name", ["inference.py", "handler.py", "score.py"])
def test_other_files_of_these_names_are_no_scripts(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("def main():\n    pass\n")
    with pytest.raises(ProjectError):
        find_model(str(tmp_path))


def test_scripts_in_a_folder_of_models(tmp_path: Path, server_process: Callable[..., ServerProcess]) -> None:
    for name, file, text in (("a", "score.py", SCORE), ("b", "handler.py", HANDLER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(textwrap.dedent(text))
        (tmp_path / name / "weights.txt").write_text("2.5")
    process = server_process(str(tmp_path))
    url = process.wait_for("listening")["url"]
    for _ in range(2):
        process.wait_for("ready")
    with httpx.Client(base_url=url) as client:
        assert client.post("/models/b/invoke", json={"inputs": "x"}).json() == [{"label": "X", "score": 2.5}]
        assert client.post("/score", json={"data": [1]}).status_code == 404  # its model is not alone


FAULTS: list[tuple[str, str, str, str]] = [
    ("inference.py", TRANSFORM + "\n    def predict_fn(data, model): ...\n", "", "transform_fn() and predict_fn()"),
    (
        "inference.py",
        NO_LOAD,
        "",
        "it has no function model_fn(model_dir), and beside it is nothing that SageMaker loads",
    ),
    ("inference.py", FULL, "batching: {max_size: 4}", "take `batching` out of geartrain.yaml"),
    ("handler.py", "class EndpointHandler: ...\n", "", "EndpointHandler is a class with __call__(self, data)"),
    ("score.py", SCORE + "\n    init = 7\n", "", "init() and run(raw_data) are functions"),
]


@pytest.mark.parametrize(("place", "text", "settings", "message"), FAULTS)
def test_faults_are_named(
    tmp_path: Path, server_process: Callable[..., ServerProcess], place: str, text: str, settings: str, message: str
) -> None:
    folder = tmp_path / "scripted"
    folder.mkdir()
    (folder / place).write_text(textwrap.dedent(text))
    (folder / "helper.py").write_text("scale = None\n")
    if settings:
        (folder / "geartrain.yaml").write_text(settings)
    process = server_process(str(folder))
    failed: Any = process.wait_for("setup-failed")
    assert message in json.dumps(failed)
