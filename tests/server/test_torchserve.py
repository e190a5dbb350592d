"""Handlers of TorchServe, unchanged: archives and folders, served in place and asked as TorchServe is."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import textwrap
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from geartrain.project.errors import ProjectError
from geartrain.project.source import find_model
from tests.support.packages import packages
from tests.support.servers import ServerProcess, listening_ports, wait_for_waiting

ECHO = """
    import json
    from ts.torch_handler.base_handler import BaseHandler
    from ts.utils.util import PredictionException

    class Echo(BaseHandler):
        def initialize(self, context):
            with open(context.system_properties["model_dir"] + "/weights.txt") as file:
                self.weight = float(file.read())
            self.name = context.manifest["model"]["modelName"]
            self.initialized = True

        def handle(self, data, context):
            item = data[0]
            context.metrics.add_counter("echoed", 1)
            if "status" in item:
                context.set_response_status(code=int(item["status"]), phrase="so", idx=0)
                context.set_response_header(0, "x-own", context.get_request_header(0, "x-asked") or "none")
                context.set_response_content_type(0, "text/x-own")
                return ["done"]
            body = item.get("body", item.get("data"))
            if body == "refuse":
                raise PredictionException("not this one", 413)
            if body == "memory":
                raise MemoryError()
            if body == "short":
                return []
            if body == "broken":
                raise ValueError("broken")
            assert not isinstance(body, bytes)
            if isinstance(body, bytearray):
                return [bytes(body)[::-1]]
            return [{"body": body, "weight": self.weight, "model": self.name, "fields": sorted(item)}]
"""
FUNCTION = """
    loaded = []

    def handle(data, context):
        if data is None:
            loaded.append(context.system_properties["batch_size"])
            return None
        if data[0]["body"] == "wait":
            open("gate").read()
        if any(item["body"] == "bad" for item in data):
            raise ValueError("bad")
        return [f"{item['body']} of {len(data)}, {loaded}" for item in data]
"""
STREAM = """
    from ts.handler_utils.utils import send_intermediate_predict_response

    def handle(data, context):
        if data is None:
            return
        if data[0]["body"] == "early":
            raise ValueError("early")
        for number in range(3):
            send_intermediate_predict_response([f"{number} "], context.request_ids, "Intermediate", 200, context)
        if data[0]["body"] == "late":
            raise ValueError("late")
        return ["end"]
"""
NET = """
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1, bias=False)

        def forward(self, x):
            return self.layer(x)
"""
DERIVED = """
    import torch
    from ts.torch_handler.base_handler import BaseHandler

    class Handler(BaseHandler):
        def preprocess(self, data):
            return torch.tensor([item["body"]["x"] for item in data])

        def postprocess(self, data):
            return [{"y": row, "mapping": self.mapping} for row in data.tolist()]
"""
WEIGHTS = {"weights.txt": "2.5"}

Start = Callable[..., httpx.Client]


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write the files of a model."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else textwrap.dedent(content).encode())
    return folder


def manifest(**model: Any) -> str:
    """Write a manifest as torch-model-archiver does."""
    return json.dumps({"createdOn": "1", "runtime": "python", "model": {"modelName": "net", **model}})


def archive(path: Path, files: Mapping[str, str | bytes]) -> Path:
    """Make an archive as torch-model-archiver does."""
    with zipfile.ZipFile(path, "w") as made:
        for name, content in files.items():
            made.writestr(name, content if isinstance(content, bytes) else textwrap.dedent(content))
    return path


@pytest.fixture
def start(server_process: Callable[..., ServerProcess]) -> Iterator[Start]:
    """Serve a model."""
    clients = []

    def serve(path: Path) -> httpx.Client:
        process = server_process(str(path), env=packages())
        url = process.wait_for("listening")["url"]
        process.wait_for("ready")
        clients.append(httpx.Client(base_url=url, timeout=60))
        assert listening_ports(process.popen.pid) == {int(url.rpartition(":")[2])}
        return clients[-1]

    yield serve
    for client in clients:
        client.close()


def test_an_archive(start: Start, tmp_path: Path) -> None:
    contents = {"MAR-INF/MANIFEST.json": manifest(handler="echo.py", modelVersion="1.0"), "echo.py": ECHO, **WEIGHTS}
    client = start(archive(tmp_path / "net.mar", contents))
    assert client.get("/ping").json() == {"status": "Healthy"}
    answer = client.post("/predictions/net", json={"x": 1})
    assert answer.json() == {"body": {"x": 1}, "weight": 2.5, "model": "net", "fields": ["body"]}
    for version in ("1.0", "1", "01"):
        assert client.post(f"/predictions/net/{version}", json={"x": 1}).json()["weight"] == 2.5
    assert client.post("/predictions/net/1.1", json={"x": 1}).status_code == 404
    # as `curl -T` sends a file
    answer = client.put("/predictions/net", content=b"abc")
    assert (answer.content, answer.headers["content-type"]) == (b"cba", "application/octet-stream")
    assert (
        client.post("/predictions/net", content="text", headers={"content-type": "text/plain"}).json()["body"] == "text"
    )
    assert client.post("/predictions/net", content="{", headers={"content-type": "application/json"}).content == b"{"
    answer = client.post(
        "/predictions/net?a=1", data={"b": "2"}, files={"data": ("f.json", b"[7]", "application/json")}
    )
    assert (answer.json()["body"], answer.json()["fields"]) == ([7], ["b", "data"])  # TorchServe has no query here
    answer = client.post("/predictions/net", data={"status": "418"}, headers={"x-asked": "yes"})
    assert (answer.status_code, answer.text, answer.headers["x-own"], answer.headers["content-type"]) == (
        418,
        "done",
        "yes",
        "text/x-own",
    )


VERSIONED = """
    def handle(data, context):
        if data is not None:
            return [context.manifest["model"]["modelVersion"]]
"""


def test_versions_by_their_manifests_load_a_model_on_demand(
    tmp_path: Path, server_process: Callable[..., ServerProcess]
) -> None:
    for number, own in enumerate(("1.0", "2.1"), start=1):
        about = manifest(handler="h.py:handle", modelVersion=own)
        write(tmp_path / f"net/{number}", {"MAR-INF/MANIFEST.json": about, "h.py": VERSIONED})
    write(tmp_path, {"net/geartrain.yaml": "versions: all"})
    process = server_process(str(tmp_path), "--load", "on-demand", "--api", "torchserve", env=packages())
    with httpx.Client(base_url=process.wait_for("listening")["url"], timeout=60) as client:
        assert client.post("/predictions/net/2.1", content="x").text == "2.1"
        assert client.post("/predictions/net/1.0", content="x").text == "1.0"
        assert client.post("/predictions/net/1", content="x").text == "1.0"
        assert client.post("/predictions/net/3.0", content="x").status_code == 404
        assert client.post("/predictions/other/1.0", content="x").status_code == 404


def test_errors(start: Start, tmp_path: Path) -> None:
    client = start(write(tmp_path / "net", {"anything.py": ECHO, **WEIGHTS}))
    text = {"content-type": "text/plain"}

    def told(code: int, message: str, kind: str = "InternalServerException") -> tuple[int, str]:
        return code, f'{{\n  "code": {code},\n  "type": "{kind}",\n  "message": "{message}"\n}}\n'

    def asked(word: str, path: str = "/predictions/net") -> tuple[int, str]:
        answer = client.post(path, content=word, headers=text)
        assert "retry-after" not in answer.headers
        return answer.status_code, answer.text

    assert asked("refuse") == told(413, "not this one")
    assert asked("memory") == told(507, "Out of resources")
    assert asked("broken") == told(503, "ValueError: broken")
    assert asked("x", "/predictions/other") == told(404, "Model not found: other", "ModelNotFoundException")
    version = "Model version: 7 does not exist for model: net"
    assert asked("x", "/predictions/net/7") == told(404, version, "ModelVersionNotFoundException")
    assert client.get("/ping").text == '{\n  "status": "Healthy"\n}\n'
    answer = client.post("/predictions/net", content="short", headers=text)
    assert (answer.status_code, "0 outputs for 1 requests" in answer.json()["message"]) == (503, True)
    answer = client.post("/predictions/net", content=b"x", headers={"content-type": "multipart/form-data; boundary=x"})
    assert answer.status_code == 400
    deep = b"[" * 100_000
    answer = client.post("/predictions/net", content=deep, headers={"content-type": "application/json"})
    assert answer.content == deep[::-1]  # that cannot be decoded stays as it is
    # the other protocols, and the metric
    body = {"input": {"body": {"x": 1}}}
    answer = client.post("/predictions", json=body)
    assert (answer.json()["output"]["weight"], answer.json()["metrics"]["echoed"]) == (2.5, 1)


def test_batches_of_a_function(start: Start, tmp_path: Path) -> None:
    config = "batchSize: 4\nmaxBatchDelay: 3000\nminWorkers: 1\n"
    files = {"MAR-INF/MANIFEST.json": manifest(handler="fn.py:handle", configFile="c.yaml"), "fn.py": FUNCTION}
    client = start(write(tmp_path / "net", {**files, "c.yaml": config}))
    text = {"content-type": "text/plain"}

    def ask(word: str) -> httpx.Response:
        return client.post("/predictions/net", content=word, headers=text)

    os.mkfifo(tmp_path / "net/gate")
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(ask, "wait")
        with (tmp_path / "net/gate").open("w"):  # by then it runs
            others = [pool.submit(ask, word) for word in "abcd"]
            wait_for_waiting(client, 4)
        answers = [each.result().text for each in others]
    assert first.result().text == "wait of 1, [4]"
    assert answers == [f"{word} of 4, [4]" for word in "abcd"]
    assert ask("bad").status_code == 503


def test_streams(start: Start, tmp_path: Path) -> None:
    client = start(write(tmp_path / "net", {"handler.py": STREAM}))
    text = {"content-type": "text/plain"}
    for _ in range(2):
        with client.stream("POST", "/predictions/net", content="go", headers=text) as answer:
            assert (answer.status_code, answer.read()) == (200, b"0 1 2 end")
    assert client.post("/predictions/net", content="early", headers=text).status_code == 503
    with (
        client.stream("POST", "/predictions/net", content="late", headers=text) as answer,
        pytest.raises(httpx.HTTPError),
    ):
        answer.read()
    assert client.post("/predictions/net", content="go", headers=text).text == "0 1 2 end"


def test_stopping_criteria(start: Start, tmp_path: Path) -> None:
    """A handler is called again, with the same id and no data, until the criterion of its request is met."""
    counting = """
    left = {}

    def handle(data, context):
        if data is None:
            return
        request = context.request_ids[0]
        if request not in left:
            left[request] = int(data[0]["body"])
        assert data[0] or left[request] < 3
        left[request] -= 1

        def is_done(output):
            assert output == f"{left[request]} "
            if left[request] == 0:
                del left[request]
                return True
            return False if left[request] > 0 else None

        context.stopping_criteria = [is_done]
        return [f"{left[request]} "]
    """
    client = start(write(tmp_path / "net", {"handler.py": counting, "model-config.yaml": "batchSize: 2"}))
    text = {"content-type": "text/plain"}
    for asked, answer in (("3", "2 1 0 "), ("1", "0 "), ("2", "1 0 "), ("0", "-1 ")):
        assert client.post("/predictions/net", content=asked, headers=text).text == answer
    with client.stream("POST", "/predictions/net", content="3", headers=text) as found:
        assert [each for each in found.iter_raw() if each][-1].endswith(b"0 ")


def test_a_client_that_leaves_ends_its_handler(start: Start, tmp_path: Path) -> None:
    """A handler whose stream nobody reads is stopped, and the next request has a head of its own."""
    endless = """
    import itertools
    from ts.handler_utils.utils import send_intermediate_predict_response

    def handle(data, context):
        if data is None:
            return
        if data[0]["body"] == "go":
            return ["alone"]
        context.set_response_header(0, "x-own", "endless")
        for number in itertools.count():
            send_intermediate_predict_response([f"{number} " * 1000], context.request_ids, "", 200, context)
    """
    client = start(write(tmp_path / "net", {"handler.py": endless}))
    text = {"content-type": "text/plain"}
    with client.stream("POST", "/predictions/net", content="x", headers=text) as answer:
        assert answer.headers["x-own"] == "endless"
        assert next(answer.iter_raw()).startswith(b"0 ")
    answer = client.post("/predictions/net", content="go", headers=text)
    assert (answer.text, "x-own" in answer.headers) == ("alone", False)


def test_archives_of_killed_processes_are_removed(start: Start, tmp_path: Path) -> None:
    old, new = (Path(tempfile.mkdtemp(prefix="geartrain-mar-")) for _ in range(2))
    os.utime(old, (1, 1))
    held = Path(tempfile.mkdtemp(prefix="geartrain-mar-"))
    os.utime(held, (1, 1))
    lock = os.open(held, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        start(archive(tmp_path / "net.mar", {"MAR-INF/MANIFEST.json": manifest(handler="f.py"), "f.py": FUNCTION}))
        assert [each.exists() for each in (old, new, held)] == [False, True, True]
    finally:
        os.close(lock)
        for each in (new, held):
            each.rmdir()


def test_weights_of_torch(start: Start, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    folder = write(
        tmp_path / "net", {"handler.py": DERIVED, "model.py": NET, "index_to_name.json": '{"0": ["n", "cat"]}'}
    )
    torch.save({"layer.weight": torch.tensor([[2.0, 3.0]])}, folder / "weights.pth")
    client = start(folder)
    assert client.post("/predictions/net", json={"x": [1, 1]}).status_code == 503  # whole numbers, as for the class
    assert client.post("/predictions/net", json={"x": [1.0, 1.0]}).json() == {"y": [5.0], "mapping": {"0": "cat"}}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_handler_of_torchserve_itself(start: Start, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    scripted = torch.jit.script(torch.nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        scripted.weight.copy_(torch.tensor([[2.0, 3.0]]))
    path = tmp_path / "net.pt"
    scripted.save(str(path))
    about = manifest(handler="base_handler", serializedFile="net.pt")
    files: dict[str, str | bytes] = {"MAR-INF/MANIFEST.json": about, "net.pt": path.read_bytes()}
    client = start(archive(tmp_path / "net.mar", files))
    answer = client.post("/predictions/net", content="[1]", headers={"content-type": "application/json"})
    assert answer.status_code == 503  # a dict is no tensor, there as here
    assert "dict" in answer.json()["message"]


FAULTS: list[tuple[dict[str, str | bytes], str]] = [
    ({"MAR-INF/MANIFEST.json": "{"}, "MANIFEST.json is no JSON"),
    ({"MAR-INF/MANIFEST.json": '{"model": 7}'}, "`model` is an object"),
    ({"MAR-INF/MANIFEST.json": manifest(handler="text_classifier")}, "the handler 'text_classifier' of the manifest"),
    (
        {"handler.py": "class Asking:\n    async def handle(self, data, context):\n        ...\nimport ts"},
        "Asking.handle() is async",
    ),
    ({"MAR-INF/MANIFEST.json": manifest(handler="a.py"), "a.py": "x = 1"}, "it has no function handle(data, context)"),
    ({"handler.py": ECHO, "model-config.yaml": "batchSize: many"}, "`batchSize` is 'many'; it is a whole number"),
    ({"handler.py": ECHO, "model-config.yaml": "a: ["}, "model-config.yaml: "),
    ({"handler.py": "from ts.torch_handler.text_classifier import TextClassifier\nclass A: ..."}, "stands in for"),
]


@pytest.mark.parametrize(("files", "message"), FAULTS)
def test_faults_are_named(
    tmp_path: Path, server_process: Callable[..., ServerProcess], files: dict[str, str | bytes], message: str
) -> None:
    failed: Any = server_process(str(write(tmp_path / "net", files))).wait_for("setup-failed")
    assert message in json.dumps(failed)


def test_a_broken_archive(tmp_path: Path, server_process: Callable[..., ServerProcess]) -> None:
    (tmp_path / "net.mar").write_bytes(b"PK\x03\x04 no archive")
    failed: Any = server_process(str(tmp_path / "net.mar")).wait_for("setup-failed")
    assert "it cannot be unpacked" in json.dumps(failed)


def test_what_is_recognised(tmp_path: Path) -> None:
    found: dict[str, dict[str, str | bytes]] = {
        "function": {"any.py": FUNCTION},
        "class": {"handler.py": ECHO, "model.pt": b"PK"},
        "manifest": {"MAR-INF/MANIFEST.json": manifest(handler="any.py"), "any.py": "", "handler.py": ECHO},
    }
    for name, files in found.items():
        assert find_model(str(write(tmp_path / name, files))).backend == "torchserve"
    with pytest.raises(ProjectError):
        find_model(str(write(tmp_path / "none", {"handler.py": "def handle(data):\n    pass\n"})))
