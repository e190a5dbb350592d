"""Classes for KServe, unchanged: with its package, and with the modules that stand in for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from geartrain.project.errors import ProjectError
from geartrain.project.source import find_model
from tests.support.servers import ServerProcess, answer_together

WITHOUT_THE_PACKAGE = """
    import sys

    class Hidden:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "kserve":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Hidden())
"""
SCALER = """
    import argparse
    from typing import Dict, Union

    import kserve
    from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer, model_server
    from kserve.errors import InferenceError, InvalidInput, ModelNotReady
    from kserve.utils.utils import generate_uuid
    from helper import scale

    class Scaler(Model):
        \"\"\"Multiplies numbers.\"\"\"

        def __init__(self, name: str, factor: float):
            super().__init__(name, return_response_headers=True)
            self.name = name
            self.factor = factor
            self.ready = False

        def load(self):
            with open(args.weights) as file:
                self.factor *= float(file.read())
            self.ready = True
            return self.ready

        def preprocess(self, payload, headers=None):
            if isinstance(payload, dict) and "instances" not in payload:
                raise InvalidInput('Expected "instances"')
            return payload

        def predict(self, payload: Union[Dict, InferRequest], headers=None, response_headers=None):
            if isinstance(payload, bytes):
                return payload[::-1]
            if isinstance(payload, InferRequest):
                return self.infer(payload)
            response_headers["x-user"] = headers.get("x-user", "none")
            instances = payload["instances"]
            if instances == ["error"]:
                raise InferenceError("no such weights")
            if instances == ["later"]:
                raise ModelNotReady(self.name)
            if instances == ["bug"]:
                raise KeyError("bug")
            return {"predictions": [scale(each) * self.factor for each in instances]}

        def infer(self, request):
            assert request.model_name == self.name
            first = request.inputs[0]
            if first.datatype == "BYTES":
                if first.data[0] == "bad":
                    raise InvalidInput("send no bad texts")
                texts = [text.upper() for text in first.data]
                output = InferOutput("texts", [len(texts)], "BYTES", data=texts)
                return InferResponse(request.id or generate_uuid(), self.name, [output])
            array = first.as_numpy() * self.factor * request.parameters.get("times", 1)
            output = InferOutput(name="scaled", shape=list(array.shape), datatype="FP32")
            output.set_data_from_numpy(array.astype("float32"))
            return InferResponse(response_id=generate_uuid(), model_name=self.name, infer_outputs=[output])

        def postprocess(self, result, headers=None, response_headers=None):
            return result

        def explain(self, payload, headers=None):
            return {"explanations": [f"times {self.factor}"] * len(payload["instances"])}

    parser = argparse.ArgumentParser(parents=[model_server.parser])
    parser.add_argument("--weights", default="none")
    parser.add_argument("--factor", type=float, default=1.0)
    args, _ = parser.parse_known_args()

    if __name__ == "__main__":
        args, _ = parser.parse_known_args()
        model = Scaler(args.model_name, args.factor)
        model.load()
        ModelServer(http_port=0, grpc_port=0).start([model])
"""
ASYNC = """
    import asyncio
    from kserve import Model, ModelServer

    class Words(Model):
        def __init__(self, name):
            super().__init__(name)
            self.load()

        async def preprocess(self, payload, headers=None):
            await asyncio.sleep(0)
            return payload["instances"] if isinstance(payload, dict) else payload

        async def predict(self, words, headers=None):
            if not isinstance(words, list):
                contents = {"fp32_contents": [2 * each for each in words.inputs[0].data]}
                output = {"name": "doubled", "shape": [2], "datatype": "FP32", "contents": contents}
                return {"id": "1", "model_name": "words", "outputs": [output]}
            if words[0] != "stream":
                return {"predictions": [len(word) for word in words]}

            async def pieces():
                for word in words[1:]:
                    await asyncio.sleep(0)
                    yield word + " "

            return pieces()

    ModelServer().start([Words("words")])
"""
PLAIN = """
    import kserve

    class Base(kserve.Model):
        def predict(self, payload, headers=None):
            return {"predictions": [self.name, self.ready]}

    class Only(Base):
        pass
"""

Start = Callable[..., tuple[httpx.Client, ServerProcess]]


@pytest.fixture(params=["package", "shim"])
def start(
    request: pytest.FixtureRequest, tmp_path: Path, server_process: Callable[..., ServerProcess]
) -> Iterator[Start]:
    """Serve a folder with a script, with KServe's package, and without it."""
    clients = []

    def serve(text: str, settings: str = "", place: str = "server.py") -> tuple[httpx.Client, ServerProcess]:
        folder = tmp_path / "scaler"
        folder.mkdir()
        (folder / place).write_text(textwrap.dedent(text))
        (folder / "helper.py").write_text("def scale(value):\n    return 10 * value\n")
        (folder / "weights.txt").write_text("2.5")
        (folder / "geartrain.yaml").write_text(settings)
        hidden = tmp_path / "hidden"
        hidden.mkdir()
        if request.param == "shim":
            (hidden / "sitecustomize.py").write_text(textwrap.dedent(WITHOUT_THE_PACKAGE))
        process = server_process(str(folder), env={"PYTHONPATH": str(hidden)})
        url = process.wait_for("listening")["url"]
        process.wait_for("ready")
        clients.append(httpx.Client(base_url=url))
        return clients[-1], process

    yield serve
    for client in clients:
        client.close()


def listening(process: ServerProcess) -> set[int]:
    """The ports on which a server and its workers listen."""
    server = psutil.Process(process.popen.pid)
    connections = [each for one in (server, *server.children(recursive=True)) for each in one.connections("inet")]
    return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}


def test_version_1(start: Start) -> None:
    settings = "parameters: {weights: weights.txt, factor: 2}"
    client, process = start(SCALER, settings)
    path = "/v1/models/scaler:predict"
    answer = client.post(path, json={"instances": [1, 2]}, headers={"x-user": "me"})
    assert (answer.status_code, answer.json()) == (200, {"predictions": [50, 100]})
    assert (answer.headers["x-user"], answer.headers["content-type"]) == ("me", "application/json")
    assert client.post(path, content=b"abc", headers={"content-type": "image/png"}).content == b"cba"
    for body, status, text in (
        ({"inputs": [1]}, 400, 'Expected "instances"'),
        ({"instances": ["error"]}, 500, "InferenceError: no such weights"),
        ({"instances": ["later"]}, 503, "Model with name scaler is not ready."),
        ({"instances": ["bug"]}, 500, "KeyError: 'bug'"),
    ):
        answer = client.post(path, json=body)
        assert (answer.status_code, answer.json()) == (status, {"error": text})
    answer = client.post(path, content="{", headers={"content-type": "application/json"})
    assert (answer.status_code, "Unrecognized request format" in answer.text) == (400, True)
    answer = client.post("/v1/models/scaler:explain", json={"instances": [1, 2]})
    assert answer.json() == {"explanations": ["times 5.0", "times 5.0"]}
    assert client.get("/v1/models").json() == {"models": ["scaler"]}
    assert client.get("/v1/models/scaler").json() == {"name": "scaler", "ready": True}
    assert client.post("/v1/models/other:explain", json={"instances": []}).status_code == 404
    assert listening(process) == {httpx.URL(client.base_url).port}  # nothing of the script's server


def test_version_2(start: Start) -> None:
    client, _ = start(SCALER, "parameters: {weights: weights.txt}")
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [[1, 2]]}
    answer = client.post("/v2/models/scaler/infer", json={"inputs": [tensor], "parameters": {"times": 2}})
    (output,) = answer.json()["outputs"]
    assert output == {"name": "scaled", "datatype": "FP32", "shape": [1, 2], "data": [5.0, 10.0]}
    texts = {"name": "t", "shape": [2], "datatype": "BYTES", "data": ["a", "é"]}
    (output,) = client.post("/v2/models/scaler/infer", json={"inputs": [texts]}).json()["outputs"]
    assert (output["datatype"], output["data"]) == ("BYTES", ["A", "É"])
    bad = {**texts, "shape": [1], "data": ["bad"]}
    answer = client.post("/v2/models/scaler/infer", json={"inputs": [bad]})
    assert (answer.status_code, answer.json()["error"]) == (400, "send no bad texts")
    # and over Cog's API
    body: dict[str, Any] = {"input": {"body": {"instances": [1]}}}
    assert client.post("/predictions", json=body).json()["output"] == {"predictions": [25.0]}
    body = {"input": {"tensors": {"x": [1.5]}}}
    output = client.post("/predictions", json=body).json()["output"]["scaled"]
    assert output == {"datatype": "FP32", "shape": [1], "data": [3.75]}


def test_steps_that_are_coroutines_and_a_stream(start: Start) -> None:
    client, process = start(ASYNC)
    path = "/v1/models/scaler:predict"
    assert client.post(path, json={"instances": ["a", "bcd"]}).json() == {"predictions": [1, 3]}
    with client.stream("POST", path, json={"instances": ["stream", "a", "b"]}) as answer:
        assert b"".join(answer.iter_raw()) == b"a b "
    answer = client.post("/v1/models/scaler:explain", json={"instances": ["a"]})
    assert answer.status_code == 501
    assert listening(process) == {httpx.URL(client.base_url).port}


@pytest.mark.parametrize("settings", ["", "batching: {max_size: 4, max_delay: 0}"])
def test_a_stream_and_messages_of_grpc_with_and_without_shared_calls(start: Start, settings: str) -> None:
    client, _ = start(ASYNC, settings)
    path = "/v1/models/scaler:predict"
    for _ in range(2):
        assert client.post(path, json={"instances": ["a", "bcd"]}).json() == {"predictions": [1, 3]}
        with client.stream("POST", path, json={"instances": ["stream", "a", "b"]}) as answer:
            assert b"".join(answer.iter_raw()) == b"a b "
    tensor = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1.5, 2]}
    answer = client.post("/v2/models/scaler/infer", json={"inputs": [tensor]})
    (output,) = answer.json()["outputs"]
    assert output == {"name": "doubled", "shape": [2], "datatype": "FP32", "data": [3.0, 4.0]}


def test_a_class_alone(start: Start) -> None:
    client, _ = start(PLAIN)
    assert client.post("/v1/models/scaler:predict", json={}).json() == {"predictions": ["scaler", True]}


TRANSFORMER = """
    import argparse
    from kserve import Model, ModelServer, model_server

    class Doubled(Model):
        def preprocess(self, payload, headers=None):
            return {"instances": [2 * each for each in payload["instances"]]}

        def postprocess(self, result, headers=None):
            return {"predictions": [-each for each in result["predictions"]]}

    if __name__ == "__main__":
        args, _ = argparse.ArgumentParser(parents=[model_server.parser]).parse_known_args()
        model = Doubled(args.model_name)
        model.load()
        ModelServer().start([model])
"""
PREDICTOR = """
    from kserve import Model

    class Increased(Model):
        def predict(self, payload, headers=None):
            return {"predictions": [each + 1 for each in payload["instances"]]}
"""


def test_a_transformer_asks_its_predictor(tmp_path: Path, server_process: Callable[..., ServerProcess]) -> None:
    address = ""
    for place, text in (("predictor", PREDICTOR), ("transformer", TRANSFORMER)):
        folder = tmp_path / place / "numbers"
        folder.mkdir(parents=True)
        (folder / "server.py").write_text(textwrap.dedent(text))
        (folder / "geartrain.yaml").write_text(f"parameters: {{predictor_host: '{address}'}}" if address else "")
        process = server_process(str(folder))
        address = process.wait_for("listening")["url"].rpartition("/")[2]
        process.wait_for("ready")
    answer = httpx.post(f"http://{address}/v1/models/numbers:predict", json={"instances": [1, 2]}, timeout=30)
    assert answer.json() == {"predictions": [-3, -5]}


def test_bodies_without_an_end(start: Start) -> None:
    client, _ = start(SCALER, "parameters: {weights: weights.txt}")
    headers = {"content-type": "application/json"}
    for body in (b"[" * 100_000, b"\xff", b""):
        answer = client.post("/v1/models/scaler:predict", content=body, headers=headers)
        assert (answer.status_code, "error" in answer.json()) == (400, True)


# what is recognised, and what cannot be


def test_the_doctor_tells_what_a_script_was_written_for(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(textwrap.dedent(ASYNC))
    found = subprocess.run(
        [sys.executable, "-m", "geartrain", "doctor", str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "server.py: a model for KServe; loads; asked as there" in found.stdout


@pytest.mark.parametrize("name", ["model.py", "transformer.py", "0.py"])
@pytest.mark.parametrize("text", [SCALER, ASYNC, PLAIN])
def test_scripts_are_found_whatever_they_are_called(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(textwrap.dedent(text))
    (tmp_path / "model.joblib").write_bytes(b"\x80\x04sklearn")
    (tmp_path / "helper.py").write_text("import kserve\n")
    found = find_model(str(tmp_path))
    assert (found.backend, found.runner) == ("kserve", name)
    assert find_model(str(tmp_path / name)).backend == "kserve"


def test_other_files_are_none(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text("import kserve\n\nclass Model:\n    pass\n")
    with pytest.raises(ProjectError):
        find_model(str(tmp_path))


MADE = """
    import argparse
    import kserve
    from helper import scale

    class_of = type("Made", (kserve.Model,), {"predict": lambda self, payload, headers=None: {"predictions": [
        scale(each) * args.factor for each in payload["instances"]]}})
    parser = argparse.ArgumentParser(parents=[kserve.model_server.parser])
    parser.add_argument("--factor", type=int, required=True)
    args, _ = parser.parse_known_args()

    if __name__ == "__main__":
        kserve.ModelServer().start([class_of(args.model_name)])
"""


def test_a_class_from_elsewhere_and_arguments_that_the_file_reads(start: Start) -> None:
    client, _ = start(MADE, "parameters: {factor: 3}")  # as KServe's own server of scikit-learn

    answer = client.post("/v1/models/scaler:predict", json={"instances": [1, 2]})
    assert answer.json() == {"predictions": [30, 60]}


TWO = """
    from kserve import Model, ModelServer

    class One(Model):
        def predict(self, payload, headers=None):
            if isinstance(payload, dict):
                return {"predictions": [f"{self.name} {each}" for each in payload["instances"]]}
            payload.model_name = self.name
            from kserve import InferOutput, InferResponse
            output = InferOutput("name", [1], "BYTES", data=[payload.model_name])
            return InferResponse("1", self.name, [output])

    if __name__ == "__main__":
        first = One("a")
        ModelServer().start([first, One(name="b")])
"""


@pytest.mark.parametrize("settings", ["", "parameters: {models: [a, b]}"])
def test_several_models(start: Start, settings: str) -> None:
    text = TWO if not settings else TWO.replace('name="b"', 'name="".join("b")')  # not written as a text
    client, process = start(text, settings)
    process.wait_for("ready")

    assert sorted(client.get("/v2/models").json()["models"]) == ["a", "b"]
    for name in ("a", "b"):
        answer = client.post(f"/v1/models/{name}:predict", json={"instances": [1]})
        assert answer.json() == {"predictions": [f"{name} 1"]}
        body = {"inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": [1]}]}
        answer = client.post(f"/v2/models/{name}/infer", json=body)
        assert answer.json()["outputs"][0]["data"] == [name]
    assert client.post("/v1/models/c:predict", json={"instances": [1]}).status_code == 404


# requests that share calls


SHARED = """
    import pathlib

    import kserve
    from kserve.errors import InvalidInput

    class Counted(kserve.Model):
        {define} predict(self, payload, headers=None):
            if not isinstance(payload, dict):
                (x,) = payload.inputs
                total = x.as_numpy().sum(axis=1)
                data = [f"{{each:g}} of {{len(total)}}" for each in total]
                output = kserve.InferOutput("text", [len(total)], "BYTES", data)
                return kserve.InferResponse("", self.name, [output])
            given = payload["instances"]
            if given == [-1]:
                pathlib.Path(__file__).with_name("gate").read_text()
            if 7 in given:
                raise InvalidInput("seven")
            if 8 in given:
                return {{"predictions": "none"}}
            texts = [f"{{each * payload.get('times', 1)}} of {{len(given)}}" for each in given]
            return {{"predictions": texts, "user": (headers or {{}}).get("x-user")}}
"""


@pytest.mark.parametrize("define", ["def", "async def"])
def test_requests_share_calls(start: Start, tmp_path: Path, define: str) -> None:
    client, process = start(SHARED.format(define=define), "batching: {max_size: 8, max_delay: 0.5}")
    gate = tmp_path / "scaler/gate"
    os.mkfifo(gate)

    def ask(*instances: int, user: str = "me", **more: Any) -> Callable[[], httpx.Response]:
        body = {"instances": instances, **more}
        return lambda: client.post("/v1/models/scaler:predict", json=body, headers={"x-user": user})

    def infer(*rows: list[float]) -> Callable[[], httpx.Response]:
        x = {"name": "x", "datatype": "FP64", "shape": [len(rows), 2], "data": rows}
        return lambda: client.post("/v2/models/scaler/infer", json={"inputs": [x]})

    def together(*asks: Callable[[], httpx.Response]) -> list[Any]:
        found = answer_together(client, gate, ask(-1), *asks)
        return [(each.status_code, each.json().get("predictions") or each.json()) for each in found]

    answers = together(ask(1), ask(2, 3), ask(4, times=10))
    assert answers == [(200, ["1 of 3"]), (200, ["2 of 3", "3 of 3"]), (200, ["40 of 1"])]
    found = answer_together(client, gate, ask(-1), infer([1, 1]), infer([2, 0], [3, 0]), infer([1, 2]))
    assert [each.json()["outputs"][0]["data"] for each in found] == [["2 of 4"], ["2 of 4", "3 of 4"], ["3 of 4"]]
    # the call of both fails, and is made for each
    assert together(ask(7), ask(2)) == [(400, {"error": "seven"}), (200, ["2 of 1"])]
    found = answer_together(client, gate, ask(-1), ask(1), ask(2, user="you"))
    assert [(each.json()["predictions"], each.json()["user"]) for each in found] == [
        (["1 of 2"], None),  # the header field that they do not have in common is left out
        (["2 of 2"], None),
    ]
    assert together(ask(8), ask(2)) == [(200, "none"), (200, ["2 of 1"])]
    assert together(ask(1), ask(2)) == [(200, ["1 of 1"]), (200, ["2 of 1"])]
    process.popen.terminate()
    assert "requests do not share calls any more" in str(process.read_to_the_end())


FAULTS: list[tuple[str, str, str]] = [
    (TWO.replace('"b"', '"".join("b")'), "", "it has 2 models (a, b): name them with `parameters: {models: [a, b]}`"),
    (TWO, "parameters: {models: [c]}", "there is no model 'c'; there are a, b"),
    (
        PLAIN.replace("class Only(Base)", "class Only(kserve.Model)"),
        "",
        "2 classes derived from kserve.Model (Base, Only)",
    ),
    (SCALER, "parameters: {weights: none}", "none"),
    ("from kserve import Model\nclass Mine(Model if False else object):\n    pass\n", "", "no class that is derived"),
]


@pytest.mark.parametrize(("text", "settings", "message"), FAULTS)
def test_faults_are_named(
    tmp_path: Path, server_process: Callable[..., ServerProcess], text: str, settings: str, message: str
) -> None:
    folder = tmp_path / "scripted"
    folder.mkdir()
    (folder / "server.py").write_text(textwrap.dedent(text))
    (folder / "helper.py").write_text("scale = None\n")
    (folder / "geartrain.yaml").write_text(settings)
    process = server_process(str(folder))
    failed: Any = process.wait_for("setup-failed")
    assert message in json.dumps(failed)
