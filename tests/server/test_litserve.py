"""Files that were written for LitServe, unchanged: served in place, and asked as its own server is."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from geartrain.project.errors import ProjectError
from geartrain.project.source import find_model
from tests.support.packages import HAS_PACKAGES, packages
from tests.support.servers import ServerProcess, listening_ports, wait_for_waiting

SIMPLE = """
    import litserve as ls
    import uvicorn

    class SquareAPI(ls.LitAPI):
        def setup(self, device):
            self.device_name = device
            self.power = 2

        def decode_request(self, request):
            return request["input"]

        def predict(self, x):
            if x is None:
                raise ls_error(418, "no tea")
            return x ** self.power

        def encode_response(self, output):
            if output == 0:
                self.power = 0
            return {"output": output, "device": self.device_name}

        def health(self):
            return self.power > 0

    def ls_error(code, detail):
        from fastapi import HTTPException
        return HTTPException(status_code=code, detail=detail)

    if __name__ == "__main__":
        server = ls.LitServer(SquareAPI(), accelerator="auto", workers_per_device=2)
        server.app.add_middleware(object)
        server.run(port=8123)
        uvicorn.run("anything", port=8124)
"""
BATCHED = """
    import numpy as np
    from litserve import LitAPI
    from litserve.server import LitServer

    class API(LitAPI):
        def setup(self, device): ...

        def decode_request(self, request, context):
            context["name"] = request["name"]
            return np.asarray(request["input"], dtype=np.float32)

        def predict(self, x, context):
            if (x < 0).any():
                open("gate").read()
            return np.stack([x.sum(axis=1), np.full(len(x), len(x)), np.full(len(x), len(context))], axis=1)

        def encode_response(self, output, context):
            if output[0] == 7:
                raise ValueError("seven")
            return {"sum": float(output[0]), "size": int(output[1]), "names": int(output[2]), "name": context["name"]}

    LitServer(API(max_batch_size=4, batch_timeout=2)).run()
"""
STREAMED = """
    import litserve as ls

    class API(ls.LitAPI):
        def setup(self, device):
            self.words = ["a", "b", "c"]

        def decode_request(self, request):
            return request["prompt"]

        def predict(self, prompt):
            for word in self.words:
                yield prompt + word

        def encode_response(self, output):
            for word in output:
                if word == "!b":
                    raise ValueError("broken off")
                yield {"word": word}

    if "__main__" == __name__:
        ls.LitServer(API(stream=True)).run()
"""
STREAMED_BATCH = """
    import litserve as ls

    class API(ls.LitAPI):
        def decode_request(self, request):
            return request["prompt"]

        def predict(self, prompts):
            for step in range(3):
                yield [prompt + str(step) for prompt in prompts]

        def encode_response(self, output):
            for words in output:
                yield [word + " " for word in words]

    ls.LitServer(API(stream=True, max_batch_size=4)).run()
"""
ASYNC = """
    import asyncio
    import litserve as ls

    class API(ls.LitAPI):
        def setup(self, device):
            self.both = 0

        async def decode_request(self, request):
            return request["input"]

        async def predict(self, x):
            self.both += 1
            while self.both < 2:
                await asyncio.sleep(0.005)
            return x * 2

        async def encode_response(self, output):
            return output

    ls.LitServer(API(enable_async=True)).run()
"""
ASYNC_STREAM = """
    import litserve as ls

    class API(ls.LitAPI):
        async def predict(self, request):
            for number in range(request["count"]):
                yield number

        async def encode_response(self, output):
            async for number in output:
                yield {"n": number}

    ls.LitServer(API(enable_async=True, stream=True)).run()
"""
FORMS = """
    import litserve as ls
    from fastapi import Request, Response

    class API(ls.LitAPI):
        def decode_request(self, request: Request):
            file = request["file"]
            return request["title"], file.filename, file.file.read()

        def predict(self, x):
            return x

        def encode_response(self, output) -> Response:
            title, name, content = output
            headers = {"x-title": title, "x-name": name}
            return Response(content[::-1], status_code=201, headers=headers, media_type="image/x")
"""
MODEL = """
    import litserve as ls
    from pydantic import BaseModel

    class Question(BaseModel):
        text: str
        times: int = 1

    class Answer(BaseModel):
        text: str

    class API(ls.LitAPI):
        def decode_request(self, request: Question) -> Question:
            return request

        def predict(self, x: Question) -> str:
            return x.text * x.times

        def encode_response(self, output: str) -> Answer:
            return Answer(text=output)
"""

Start = Callable[..., httpx.Client]


@pytest.fixture
def start(tmp_path: Path, server_process: Callable[..., ServerProcess]) -> Iterator[Start]:
    """Serve a folder with a file for LitServe."""
    clients = []

    def serve(text: str, name: str = "server.py", *, settings: str = "") -> httpx.Client:
        folder = tmp_path / "lit"
        folder.mkdir()
        (folder / name).write_text(textwrap.dedent(text))
        (folder / "client.py").write_text("import requests\n")
        if settings:
            (folder / "geartrain.yaml").write_text(settings)
        process = server_process(str(folder), env=packages())
        url = process.wait_for("listening")["url"]
        process.wait_for("ready")
        clients.append(httpx.Client(base_url=url, timeout=60))
        clients[-1].process = process  # type: ignore[attr-defined]
        return clients[-1]

    yield serve
    for client in clients:
        client.close()


def test_one_request(start: Start) -> None:
    client = start(SIMPLE)
    assert client.get("/health").status_code == 200
    assert client.post("/predict", json={"input": 4}).json() == {"output": 16, "device": "cpu"}
    answer = client.post("/predict", json={"input": None})
    assert (answer.status_code, answer.json()) == (418, {"detail": "no tea"})
    answer = client.post("/predict", json={})
    assert (answer.status_code, answer.json()) == (500, {"detail": "KeyError: 'input'"})
    answer = client.post("/predict", content="{", headers={"content-type": "application/json"})
    assert (answer.status_code, "no JSON" in answer.json()["detail"]) == (400, True)
    answer = client.post("/predict", content="a", headers={"content-type": "image/png"})
    assert (answer.status_code, "send JSON, or a form" in answer.json()["detail"]) == (400, True)
    answer = client.post("/predict", content="[" * 100_000, headers={"content-type": "application/json"})
    assert (answer.status_code, "nested too deeply" in answer.json()["detail"]) == (400, True)
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert client.post("/predict", content=b"other=\xff", headers=headers).json() == {"detail": "KeyError: 'input'"}
    # the other protocols
    assert client.post("/predictions", json={"input": {"body": {"input": 3}}}).json()["output"]["output"] == 9
    assert client.post("/invoke", json={"input": 5}).json()["output"] == 25
    assert client.get("/health-check").json()["status"] == "READY"
    client.post("/predict", json={"input": 0})
    assert client.get("/health-check").json()["status"] == "UNHEALTHY"


def test_nothing_else_listens(start: Start) -> None:
    client = start(SIMPLE)
    process: ServerProcess = client.process  # type: ignore[attr-defined]
    assert listening_ports(process.popen.pid) == {client.base_url.port}


def test_batches(start: Start, tmp_path: Path) -> None:
    client = start(BATCHED)

    def ask(number: int) -> dict[str, Any]:
        answer: dict[str, Any] = client.post("/predict", json={"input": [number, 1], "name": f"n{number}"}).json()
        return answer

    os.mkfifo(tmp_path / "lit/gate")
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(ask, -1)
        with (tmp_path / "lit/gate").open("w"):  # by then it runs
            others = [pool.submit(ask, number) for number in (1, 6, 2, 3)]
            wait_for_waiting(client, 4)
        answers = [each.result() for each in others]
    assert first.result() == {"sum": 0.0, "size": 1, "names": 1, "name": "n-1"}
    assert answers[1] == {"detail": "ValueError: seven"}
    del answers[1]
    assert answers == [{"sum": n + 1.0, "size": 4, "names": 4, "name": f"n{n}"} for n in (1, 2, 3)]


def test_streams(start: Start) -> None:
    client = start(STREAMED)
    with client.stream("POST", "/predict", json={"prompt": "x"}) as answer:
        assert answer.status_code == 200
        lines = list(answer.iter_lines())
    assert [json.loads(line)["word"] for line in lines] == ["xa", "xb", "xc"]
    with client.stream("POST", "/predict", json={"prompt": "!"}) as answer, pytest.raises(httpx.HTTPError):
        answer.read()


def test_a_stream_that_takes_batches(start: Start) -> None:
    client = start(STREAMED_BATCH)
    assert client.post("/predict", json={"prompt": "x"}).text == "x0 x1 x2 "


def test_async_requests_run_together(start: Start) -> None:
    client = start(ASYNC)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda number: client.post("/predict", json={"input": number}).json(), (3, 4)))
    assert answers == [6, 8]


def test_async_streams(start: Start) -> None:
    client = start(ASYNC_STREAM)
    assert client.post("/predict", json={"count": 2}).text == '{"n": 0}\n{"n": 1}\n'


def test_forms_and_answers_with_a_status(start: Start) -> None:
    client = start(FORMS, "app.py")
    answer = client.post("/predict", data={"title": "t"}, files={"file": ("f.bin", b"abc")})
    assert (answer.status_code, answer.content, answer.headers["x-title"], answer.headers["x-name"]) == (
        201,
        b"cba",
        "t",
        "f.bin",
    )
    headers = {"content-type": "multipart/form-data; boundary=x"}
    answer = client.post("/predict", content=b"no form", headers=headers)
    assert answer.status_code == 400


def test_models_of_pydantic(start: Start) -> None:
    client = start(MODEL)
    assert client.post("/predict", json={"text": "ab", "times": 2}).json() == {"text": "abab"}
    answer = client.post("/predict", json={"times": "x"})
    assert answer.status_code == 422
    assert [each["loc"] for each in answer.json()["detail"]] == [["body", "text"], ["body", "times"]]


CHAT = """
    import litserve as ls
    from litserve.specs.openai import ChatMessage

    class API(ls.LitAPI):
        def setup(self, device): ...

        def predict(self, messages, context):
            for word in messages[-1]["content"].split():
                yield f"{word}{context.get('temperature', '')} "

    class Own(API):
        def decode_request(self, request, context):
            context["asked"] = request.messages[0].content
            return [{"content": "x y"}]

        def encode_response(self, output, context):
            yield {"role": "assistant", "content": context["asked"] + " " + "".join(output)}
            yield {"role": "assistant", "content": "", "prompt_tokens": 25, "completion_tokens": 10}

    class Tools(API):
        def encode_response(self, output):
            call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            yield ChatMessage(role="assistant", content="", tool_calls=[call])

    class Batches(API):
        def batch(self, inputs):
            return inputs

        def predict(self, inputs, context):
            assert isinstance(context, list)
            for number in range(3):
                yield [f"{number} "] * len(inputs)

        def unbatch(self, output):
            return output

        def encode_response(self, output):
            for each in output:
                yield [{"role": "assistant", "content": text} for text in each]

    class Async(API):
        async def decode_request(self, request):
            return request.messages[-1].content

        async def predict(self, text):
            for word in text.split():
                yield word + "! "

        async def encode_response(self, output):
            async for word in output:
                yield {"role": "assistant", "content": word}

    ls.LitServer(API(spec=ls.OpenAISpec())).run()
"""
SEVERAL = (
    MODEL
    + """
    class Other(ls.LitAPI):
        def predict(self, xs):
            return [{"other": x} for x in xs]

        def encode_response(self, output):
            if output == {"other": 0}:
                raise ValueError("none")
            return output

        def health(self):
            return True

    ls.LitServer([API(api_path="/a"), Other(api_path="/deep/b", max_batch_size=2, batch_timeout=0.1)]).run()
"""
)


@pytest.mark.parametrize(
    ("api", "whole"),
    [
        ("API", "good1.0 day1.0 "),
        ("Own", "good day x1.0 y1.0 "),
        ("Batches", "0 1 2 "),
        ("Async", "good! day! "),
    ],
)
def test_chats(start: Start, api: str, whole: str) -> None:
    options = {"Batches": "max_batch_size=2", "Async": "enable_async=True"}.get(api, "")
    made = f"{api}(spec=ls.OpenAISpec(), {options})"
    url = str(start(CHAT.replace("API(spec=ls.OpenAISpec())", made)).base_url)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    asked: Any = {"model": "lit", "messages": [{"role": "user", "content": "good day"}], "temperature": 1}
    answer = client.chat.completions.create(**asked)
    assert answer.choices[0].message.content == whole
    if api == "Own":
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (25, 10)
    pieces = [chunk.choices[0].delta.content for chunk in client.chat.completions.create(**asked, stream=True)]
    assert "".join(filter(None, pieces)) == whole


def test_calls_of_tools(start: Start) -> None:
    client = start(CHAT.replace("API(spec=ls.OpenAISpec())", "Tools(spec=ls.OpenAISpec())"))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {"model": "lit", "messages": [{"role": "user", "content": "x"}], "tools": [tool]}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "f"


def test_one_of_several_models(start: Start) -> None:
    client = start(SEVERAL, settings="parameters: {api_path: /a}")
    assert client.post("/a", json={"text": "x"}).json() == {"text": "x"}
    assert client.post("/predict", json={"text": "x"}).json() == {"text": "x"}
    assert client.post("/deep/b", json=1).status_code == 404


def test_several_models_have_their_paths(start: Start) -> None:
    client = start(SEVERAL)
    assert client.post("/a", json={"text": "x", "times": 2}).json() == {"text": "xx"}
    assert client.post("/a", json={"times": 2}).status_code == 422
    assert client.post("/deep/b", json=7).json() == {"other": 7}
    assert client.post("/deep/b", json=0).status_code == 500
    answer = client.post("/predict", json=7)
    assert (answer.status_code, "ask one by its path (/a, /deep/b)" in answer.json()["detail"]) == (400, True)
    body = {"input": {"body": 7, "path": "/deep/b"}}
    assert client.post("/predictions", json=body).json()["output"] == {"other": 7}
    assert client.get("/health-check").json()["status"] == "READY"


@pytest.mark.parametrize(
    ("made", "path"),
    [
        ('SquareAPI(api_path="/own/path")', "/own/path"),
        ("SquareAPI(api_path=PATH + '')", "/predict"),  # computed
    ],
)
def test_a_model_has_its_path(start: Start, made: str, path: str) -> None:
    text = SIMPLE.replace("SquareAPI()", made).replace(
        "import litserve as ls", 'import litserve as ls\n    PATH = "/x"'
    )
    client = start(text)
    assert client.post(path, json={"input": 4}).json()["output"] == 16
    assert client.post("/predict", json={"input": 4}).json()["output"] == 16
    assert client.post("/x", json={"input": 4}).status_code == 404


FAULTS = [
    (
        SEVERAL.replace('"/a"', '"/a", enable_async=True').replace(
            "def predict(self, x: Q", "async def predict(self, x: Q"
        ),
        "",
        "its model /a is async, or has a spec: name one with",
    ),
    (SEVERAL.replace("/a", "/deep/b"), "", "it has several models with the same api_path (/deep/b)"),
    (SEVERAL, "parameters: {api_path: /c}", "there is no LitAPI with the api_path '/c'"),
    (
        SIMPLE.replace("SquareAPI()", "SquareAPI(spec=ls.OpenAIEmbeddingSpec())"),
        "",
        "OpenAIEmbeddingSpec() is not served",
    ),
    (SIMPLE.replace("SquareAPI()", "SquareAPI(max_batch_size=0)"), "", "max_batch_size must be greater than 0"),
    ("import litserve as ls\n\nls.LitServer([]).run()\n", "", "it has no class that is derived from LitAPI"),
    *([] if HAS_PACKAGES else [(f"import litserve.loops\n{textwrap.dedent(SIMPLE)}", "", "stands in for")]),
]


@pytest.mark.parametrize(("text", "settings", "message"), FAULTS)
def test_faults_are_named(
    tmp_path: Path, server_process: Callable[..., ServerProcess], text: str, settings: str, message: str
) -> None:
    (tmp_path / "server.py").write_text(textwrap.dedent(text))
    if settings:
        (tmp_path / "geartrain.yaml").write_text(settings)
    failed: Any = server_process(str(tmp_path), env=packages()).wait_for("setup-failed")
    assert message in json.dumps(failed)


def test_the_file_with_the_server_is_the_model(tmp_path: Path) -> None:
    (tmp_path / "api.py").write_text("import litserve as ls\n\nclass API(ls.LitAPI): ...\n")
    assert find_model(str(tmp_path)).runner == "api.py"
    (tmp_path / "server.py").write_text("import litserve as ls\nfrom api import API\n\nls.LitServer(API()).run()\n")
    (tmp_path / "model.safetensors").touch()
    found = find_model(str(tmp_path))
    assert (found.backend, found.runner) == ("litserve", "server.py")
    assert find_model(str(tmp_path / "api.py")).backend == "litserve"
    (tmp_path / "server.py").write_text("# import litserve\n")
    (tmp_path / "api.py").unlink()
    with pytest.raises(ProjectError):
        find_model(str(tmp_path / "other"))
