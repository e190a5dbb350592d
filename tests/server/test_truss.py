"""Trusses with a class of their own, unchanged: served in place, and asked as their own server is."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from geartrain.project.errors import ProjectError
from geartrain.project.source import find_model
from tests.support.servers import ServerProcess, listening_ports

CONFIG = """
    model_name: shout
    environment_variables: {SHOUT_END: "!"}
    secrets: {token: null, other: given, none: null}
    external_package_dirs: [../shared_packages]
"""
PLAIN = """
    import os
    from model.helper import upper
    from outside import MARK
    from packed import twice

    class Model:
        def __init__(self, **kwargs):
            self._data = kwargs["data_dir"]
            self._secrets = kwargs["secrets"]
            self._name = kwargs["config"]["model_name"]

        def load(self):
            self._end = (self._data / "end.txt").read_text() + os.environ["SHOUT_END"]

        def preprocess(self, request):
            return upper(request["text"])

        def predict(self, text):
            if text == "SECRET":
                return self._secrets["token"] + self._secrets["other"]
            if text == "NONE":
                return self._secrets["none"]
            return twice(text)

        def postprocess(self, text):
            return {"text": text + self._end, "name": self._name, "mark": MARK}
"""
ASYNC = """
    import asyncio
    from fastapi import HTTPException, Request
    from pydantic import BaseModel

    class Question(BaseModel):
        text: str
        times: int = 1

    class Answer(BaseModel):
        text: str

    class Model:
        def __init__(self):
            self.both = 0

        async def load(self):
            self.loop = asyncio.get_running_loop()

        async def is_healthy(self):
            return self.both < 2

        async def predict(self, inputs: Question, request: Request) -> Answer:
            if inputs.text == "tea":
                raise HTTPException(status_code=418, detail="no tea")
            if inputs.text == "both":
                self.both += 1
                while self.both < 2:
                    await asyncio.sleep(0.005)
            assert (await request.json())["text"] == inputs.text
            assert asyncio.get_running_loop() is self.loop
            return Answer(text=inputs.text * inputs.times + request.headers.get("x-own", ""))
"""
STREAMS = """
    class Model:
        def predict(self, inputs):
            yield "a"
            yield b"b\\xc3"
            yield b"\\xa4"
            if inputs["fails"]:
                raise ValueError("fails")

        def postprocess(self, output):
            raise AssertionError("a stream has none")
"""
REQUEST = """
    from fastapi import Request, Response

    class Own:
        async def predict(self, request: Request):
            body = await request.body()
            return Response(body[::-1], status_code=201, headers={"x-own": request.query_params["a"]}, media_type="a/b")
"""
THREADS = """
    import threading

    class Model:
        def load(self):
            self.barrier = threading.Barrier(2)

        def predict(self, inputs):
            self.barrier.wait(20)
            for number in range(inputs):
                yield number
"""

Start = Callable[..., httpx.Client]


def write(folder: Path, text: str, config: str = CONFIG) -> Path:
    """Write a Truss."""
    for name in ("model", "packages", "data"):
        (folder / name).mkdir(parents=True)
    (folder / "config.yaml").write_text(textwrap.dedent(config))
    (folder / "model/__init__.py").touch()
    (folder / "model/model.py").write_text(textwrap.dedent(text))
    (folder / "model/helper.py").write_text("def upper(text):\n    return text.upper()\n")
    (folder / "packages/packed.py").write_text("def twice(text):\n    return 2 * text\n")
    (folder / "data/end.txt").write_text(".")
    (folder.parent / "shared_packages").mkdir()
    (folder.parent / "shared_packages/outside.py").write_text("MARK = 7\n")
    return folder


@pytest.fixture
def start(tmp_path: Path, server_process: Callable[..., ServerProcess]) -> Iterator[Start]:
    """Serve a Truss."""
    clients = []

    def serve(text: str, config: str = CONFIG) -> httpx.Client:
        process = server_process(str(write(tmp_path / "truss", text, config)), env={"TRUSS_SECRET_token": "t-"})
        url = process.wait_for("listening")["url"]
        process.wait_for("ready")
        clients.append(httpx.Client(base_url=url, timeout=60))
        assert listening_ports(process.popen.pid) == {httpx.URL(url).port}
        return clients[-1]

    yield serve
    for client in clients:
        client.close()


def test_a_server_that_a_file_starts_does_not_listen(start: Start) -> None:
    """`start` looks at the ports; the file would not end if its server ran."""
    serving = """
    import uvicorn

    uvicorn.run("model:app", host="127.0.0.1", port=0)
"""
    assert start(serving + PLAIN).post("/predict", json={"text": "a"}).status_code == 200


@pytest.mark.parametrize("path", ["/predict", "/v1/models/model:predict", "/invoke"])
def test_the_three_steps(start: Start, path: str) -> None:
    client = start(PLAIN)
    assert client.get("/v1/models/model").status_code == 200
    assert client.post(path, json={"text": "a"}).json() == {"text": "AA.!", "name": "shout", "mark": 7}
    assert client.post(path, json={"text": "secret"}).json()["text"] == "t-given.!"
    answer = client.post(path, json={"text": "none"})
    assert (answer.status_code, "set the variable TRUSS_SECRET_none" in answer.text) == (500, True)
    assert client.post(path, content="{").status_code in {400, 422}
    assert client.post(path, content=b"\x80", headers={"content-type": "application/octet-stream"}).status_code >= 400


def test_async_with_models_of_pydantic(start: Start) -> None:
    client = start(ASYNC, "runtime: {predict_concurrency: 2}")
    answer = client.post("/predict", json={"text": "ab", "times": 2}, headers={"x-own": "!"})
    assert answer.json() == {"text": "abab!"}
    answer = client.post("/predict", json={"text": "tea"})
    assert (answer.status_code, answer.json()) == (418, {"detail": "no tea"})
    answer = client.post("/predict", json={"times": 2})
    assert (answer.status_code, "text" in answer.json()["error"]) == (400, True)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: client.post("/predict", json={"text": "both"}).json(), range(2)))
    assert answers == [{"text": "both"}] * 2
    assert client.get("/health-check").json()["status"] == "UNHEALTHY"


def test_streams(start: Start) -> None:
    client = start(STREAMS)
    answer = client.post("/predict", json={"fails": False})
    assert (answer.content.decode(), answer.headers["content-type"]) == ("ab\xe4", "application/octet-stream")
    answer = client.post("/predict", json={"fails": False}, headers={"accept": "application/json"})
    assert answer.json() == "ab\xe4"
    failing = client.stream("POST", "/predict", json={"fails": True})
    with failing as answer, pytest.raises(httpx.HTTPError):
        answer.read()


def test_the_request_alone_and_a_class_of_another_name(start: Start) -> None:
    client = start(REQUEST, "model_class_name: Own")
    answer = client.post("/predict?a=1", content=b"abc")
    assert (answer.status_code, answer.content, answer.headers["x-own"], answer.headers["content-type"]) == (
        201,
        b"cba",
        "1",
        "a/b",
    )


def test_sync_methods_run_at_once_in_threads(start: Start) -> None:
    client = start(THREADS, "runtime: {predict_concurrency: 2}")
    headers = {"accept": "application/json"}
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda count: client.post("/predict", json=count, headers=headers).json(), (2, 3)))
    assert answers == ["01", "012"]


FAULTS = [
    (
        PLAIN,
        "model_class_name: Other\nexternal_package_dirs: [../shared_packages]",
        "there is no class Other, which config.yaml names",
    ),
    (PLAIN, "model_class_filename: other.py", "there is no model/other.py, which config.yaml names"),
    (PLAIN, "a: [", "config.yaml: "),
    ("class Model:\n    async def websocket(self, websocket): ...\n", CONFIG, "websocket() is not served"),
    ("class Model:\n    def predict(self, a, b, c): ...\n", CONFIG, "predict() takes the inputs, and the request"),
    (STREAMS, "runtime: {predict_concurrency: many}", "`predict_concurrency` is 'many'"),
]


@pytest.mark.parametrize(("text", "config", "message"), FAULTS)
def test_faults_are_named(
    tmp_path: Path, server_process: Callable[..., ServerProcess], text: str, config: str, message: str
) -> None:
    environment = {**os.environ, "TRUSS_SECRET_token": "t"}
    failed: Any = server_process(str(write(tmp_path / "truss", text, config)), env=environment).wait_for("setup-failed")
    assert message in json.dumps(failed)


def test_what_is_recognised(tmp_path: Path) -> None:
    assert find_model(str(write(tmp_path / "truss", PLAIN))).backend == "truss"
    (tmp_path / "truss/model/model.py").unlink()  # that of an engine
    with pytest.raises(ProjectError):
        find_model(str(tmp_path / "truss"))
