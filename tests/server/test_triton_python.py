"""Classes of Triton's Python backend, unchanged, served from a repository of Triton and asked by its clients."""

from __future__ import annotations

import contextlib
import json
import queue
import runpy
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as by_grpc
import tritonclient.http as by_http
from tritonclient.utils import InferenceServerException

from geartrain.authoring.requests import Tensors
from geartrain.authoring.scope import Scope
from geartrain.worker.loading.triton import utils
from geartrain.worker.loading.triton.values import InferenceRequest
from tests.support.servers import PATIENCE, ServerProcess

ROOT = Path(__file__).parents[1] / "models" / "triton"
NAMES = sorted(path.name for path in ROOT.iterdir())
A = np.array([1, 2, 3, 4], np.float32)
B = np.array([4, 3, 2, 0.5], np.float32)


class Served:
    """A server of the repository, and a client of each kind."""

    def __init__(self) -> None:
        self.process = ServerProcess(str(ROOT), "--grpc-port", "0")
        events = ("listening", "listening-grpc", "ready", "setup-failed")
        self.lines = [self.process.wait_for_one(*events) for _ in range(len(NAMES) + 2)]
        self.url, grpc = (self._url(event) for event in events[:2])
        self.client = httpx.Client(base_url=self.url, timeout=40)
        self.http = by_http.InferenceServerClient(self.url.removeprefix("http://"), network_timeout=40)
        self.grpc = by_grpc.InferenceServerClient(grpc)

    def _url(self, event: str) -> str:
        (line,) = [line for line in self.lines if line["message"] == event]
        return str(line["url"])

    def generate(self, model: str, **members: Any) -> Any:
        return self.client.post(f"/v2/models/{model}/generate", json=members).json()

    def close(self) -> None:
        self.client.close()
        self.http.close()
        self.grpc.close()
        self.process.end()


@pytest.fixture(scope="module")
def triton() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


def inputs(kind: Any, **arrays: np.ndarray) -> list[Any]:
    given = []
    for name, array in arrays.items():
        datatype = {"O": "BYTES", "b": "BOOL", "f": f"FP{array.itemsize * 8}", "i": f"INT{array.itemsize * 8}"}
        one = kind.InferInput(name, list(array.shape), datatype[array.dtype.kind])
        one.set_data_from_numpy(array)
        given.append(one)
    return given


def directly(model: str, config: dict[str, Any], **arrays: np.ndarray) -> dict[str, np.ndarray]:
    """Call the class itself with one request, and return its tensors by name."""
    utils.install()
    names = runpy.run_path(str(ROOT / model / "1" / "model.py"))
    instance = names["TritonPythonModel"]()
    instance.initialize({"model_config": json.dumps(config), "model_name": model, "model_version": "1"})
    (response,) = instance.execute([InferenceRequest(Tensors(arrays), (), Scope())])
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def test_all_models_are_ready(triton: Served) -> None:
    assert [line for line in triton.lines if line["message"] == "setup-failed"] == []
    assert [name for name in NAMES if not triton.http.is_model_ready(name)] == []


def test_metadata_and_configuration_are_those_of_the_model(triton: Served) -> None:
    metadata = triton.http.get_model_metadata("gathered")
    assert (metadata["platform"], metadata["properties"]["kind"]) == ("python", "code")
    assert [(each["name"], each["datatype"], each["shape"]) for each in metadata["inputs"]] == [
        ("TEXT", "BYTES", [-1, 1]),
        ("TIMES", "INT32", [-1, 1]),
    ]
    config = triton.http.get_model_config("gathered")
    assert (config["backend"], config["max_batch_size"], config["default_model_filename"]) == ("python", 8, "model.py")
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    assert [each["optional"] for each in config["input"]] == [False, True]
    assert triton.http.get_model_config("repeat")["model_transaction_policy"] == {"decoupled": True}


@pytest.mark.parametrize("binary", [True, False])
def test_answers_are_those_of_the_class(triton: Served, binary: bool) -> None:
    given = inputs(by_http, INPUT0=A, INPUT1=B)
    wanted = [by_http.InferRequestedOutput(name, binary_data=binary) for name in ("OUTPUT0", "OUTPUT1")]
    answer = triton.http.infer("add_sub", given, outputs=wanted)
    other = triton.grpc.infer("add_sub", inputs(by_grpc, INPUT0=A, INPUT1=B))
    for name, array in directly("add_sub", triton.http.get_model_config("add_sub"), INPUT0=A, INPUT1=B).items():
        assert answer.as_numpy(name).tolist() == other.as_numpy(name).tolist() == array.tolist()
        assert answer.as_numpy(name).dtype == other.as_numpy(name).dtype == array.dtype


def test_a_request_has_its_id_its_parameters_and_its_wanted_outputs(triton: Served) -> None:
    told = {"config": "add_sub", "model_name": "add_sub", "model_version": "1"}
    wanted = [by_http.InferRequestedOutput("OUTPUT1")]
    answer = triton.http.infer(
        "add_sub",
        inputs(by_http, INPUT0=A, INPUT1=B),
        outputs=wanted,
        request_id="own",
        sequence_id=7,
        sequence_start=True,
        parameters={"tell": True},
    ).get_response()
    assert answer["id"] == "own"
    assert answer["parameters"] == {**told, "id": "own", "correlation": 7, "flags": 1, "wanted": "OUTPUT1"}
    assert [each["name"] for each in answer["outputs"]] == ["OUTPUT1"]
    found = triton.grpc.infer("add_sub", inputs(by_grpc, INPUT0=A, INPUT1=B), parameters={"tell": True})
    assert found.get_response().parameters["wanted"].string_param == "OUTPUT0,OUTPUT1"
    assert found.get_response().parameters["id"].string_param == ""
    with pytest.raises(InferenceServerException, match=r"INPUT0.*\[4\]"):
        triton.http.infer("add_sub", inputs(by_http, INPUT0=A[:2], INPUT1=B))


def ask(triton: Served, *values: str, times: int = 0) -> httpx.Response:
    given = [{"name": "TEXT", "shape": [len(values), 1], "datatype": "BYTES", "data": values}]
    if times:
        given.append({"name": "TIMES", "shape": [len(values), 1], "datatype": "INT32", "data": [times] * len(values)})
    return triton.client.post("/v2/models/gathered/infer", json={"inputs": given})


def together(triton: Served, *texts: str, times: int = 0) -> list[httpx.Response]:
    """Ask with each of these texts at once, after a full batch: from then on as many rows are waited for."""
    assert ask(triton, *"abcd").json()["outputs"][1]["data"] == [1, 1, 1, 1]
    with ThreadPoolExecutor(len(texts)) as threads:
        return list(threads.map(lambda text: ask(triton, *text.split(","), times=times), texts))


def test_a_batch_has_its_requests_apart_and_an_error_for_one(triton: Served) -> None:
    found = together(triton, "a", "code 5", "c", "code 3")
    assert [each.status_code for each in found] == [200, 501, 200, 400]
    assert found[1].json() == found[3].json() == {"error": "no such thing"}
    for each, text in ((found[0], "a"), (found[2], "c")):
        assert each.json()["parameters"] == {"batch_size": 4, "first": text}
        assert [output["data"] for output in each.json()["outputs"]] == [[text], [4]]
    found = together(triton, "a,b", "cd,e", times=2)  # an optional input
    assert [each.json()["outputs"][0]["data"] for each in found] == [["aa", "bb"], ["cdcd", "ee"]]
    assert [each.json()["outputs"][1]["data"] for each in found] == [[2, 2], [2, 2]]


def test_what_execute_raises_is_the_error_of_all(triton: Served) -> None:
    found = together(triton, "raise", "a", "b", "c")
    assert [each.status_code for each in found] == [500] * 4
    assert {each.json()["error"] for each in found} == {"TritonModelException: all of them"}
    refused = ask(triton, *"abcdefghi")
    assert (refused.status_code, "at most 8" in refused.json()["error"]) == (400, True)


def test_a_class_completes_its_configuration(triton: Served) -> None:
    config = triton.http.get_model_config("completed")
    assert (config["max_batch_size"], config["input"][0]["dims"], "dynamic_batching" in config) == (4, [2, -1], True)
    x = np.arange(6, dtype=np.float64).reshape(1, 2, 3)
    assert triton.http.infer("completed", inputs(by_http, x=x)).as_numpy("y").tolist() == (x * 2).tolist()


class Stream:
    """A stream over gRPC: what comes is read one by one."""

    def __init__(self, triton: Served) -> None:
        self._client = triton.grpc
        self._found: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._client.start_stream(lambda result, error: self._found.put(error or result))

    def ask(self, model: str, *, final: bool = True, **arrays: np.ndarray) -> None:
        self._client.async_stream_infer(model, inputs(by_grpc, **arrays), enable_empty_final_response=final)

    def next(self) -> Any:
        return self._found.get(timeout=PATIENCE)

    def numbers(self) -> list[int]:
        """The outputs up to the last response."""
        found = []
        while not (response := self.next()).get_response().parameters["triton_final_response"].bool_param:
            found.append(int(response.as_numpy("OUT")[0]))
        return found


@contextlib.contextmanager
def stream(triton: Served) -> Iterator[Stream]:
    found = Stream(triton)
    try:
        yield found
    finally:
        triton.grpc.stop_stream(cancel_requests=True)


def test_decoupled_responses_come_one_by_one(triton: Served) -> None:
    with stream(triton) as answers:
        answers.ask("repeat", IN=np.array([4, 2, 0, 1], np.int32))
        assert answers.numbers() == [4, 2, 0, 1]
        answers.ask("repeat", IN=np.array([5, -1, 6], np.int32))
        assert answers.next().as_numpy("OUT").tolist() == [5]
        assert "negative" in str(answers.next())
        answers.ask("repeat", IN=np.array([], np.int32))
        assert "there is nothing to repeat" in str(answers.next())
        answers.ask("repeat", IN=np.arange(600, dtype=np.int32))
        answers.ask("add_sub", INPUT0=A, INPUT1=B)


def test_decoupled_responses_over_http(triton: Served) -> None:
    with triton.client.stream("POST", "/v2/models/repeat/generate_stream", json={"IN": [3, 4]}) as answer:
        events = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line]
    assert [(each["OUT"], each["IDX"]) for each in events] == [(3, 0), (4, 1)]
    found = triton.http.infer("repeat", inputs(by_http, IN=np.arange(700, dtype=np.int32)))
    assert found.as_numpy("OUT").tolist() == list(range(700))
    assert triton.generate("shout", text_input="how are you")["text_output"] == "HOWAREYOU"


def wait_for_running(triton: Served, number: int) -> None:
    """Wait until so many threads of the model send responses."""
    until = time.monotonic() + PATIENCE
    while (found := triton.generate("repeat", IN=[0], running=True)["OUT"]) != number:
        assert time.monotonic() < until, f"{found} instead of {number}"


def test_a_client_that_leaves_is_told_to_the_sender(triton: Served) -> None:
    body = {"IN": [1], "WAIT": True}
    with triton.client.stream("POST", "/v2/models/repeat/generate_stream", json=body) as answer:
        lines = answer.iter_lines()  # kept: without it, httpx would close the connection
        assert json.loads(next(lines).removeprefix("data: "))["OUT"] == 1
        wait_for_running(triton, 1)
    wait_for_running(triton, 0)


def test_metrics_have_the_names_and_labels_of_the_model(triton: Served) -> None:
    for number in (1, 20):
        assert triton.generate("counting", INPUT0=[number, 1])["OUTPUT0"] == number + 1
    text = ""
    while 'requests_seen_ns{model="counting",version="1"} 2.0\n' not in text:  # they come about once a second
        text = triton.client.get("/metrics").text
    assert "# TYPE requests_seen_ns counter\n# HELP" not in text
    for line in (
        "# HELP requests_seen_ns Requests, and no time",
        "# TYPE requests_seen_ns counter",
        "# TYPE last_sum gauge",
        'last_sum{own="a"} 21.0',
        "# TYPE sums histogram",
        'sums_bucket{le="10.0"} 1.0',
        'sums_bucket{le="+Inf"} 2.0',
        "sums_sum 23.0",
    ):
        assert f"{line}\n" in text


def test_a_model_asks_other_models(triton: Served) -> None:
    given = {"INPUT0": A.tolist(), "INPUT1": B.tolist()}
    assert triton.generate("caller", MODEL="add_sub", **given)["OUTPUT0"] == (A + B).tolist()
    assert triton.generate("chained", A=A.tolist())["REST"] == (A * 99).tolist()  # an ensemble
    assert triton.generate("caller_async", **given)["OUTPUT0"] == ((A - B) * 99).tolist()
    assert "unknown model: 'none'" in triton.generate("caller", MODEL="none", **given)["error"]
    assert "unexpected" in triton.generate("caller", MODEL="counting", **given)["error"]
    for more in ({}, {"ASYNC": True}):
        assert triton.generate("caller_stream", IN=[3, 4, 5], **more)["SUM"] == 12
        assert "negative" in triton.generate("caller_stream", IN=[3, -4], **more)["error"]


def test_threads_belong_to_the_request_that_started_them(triton: Served) -> None:
    given = {"INPUT0": {"datatype": "FP32", "data": A.tolist()}}
    for more in ({}, {}, {"POOL": [True]}, {"POOL": [True]}):
        body = {"input": {"tensors": {**given, **more}}}
        found = triton.client.post("/models/threads/predictions", json=body).json()
        assert [each["OUTPUT0"]["data"] for each in found["output"]] == [(A * 2).tolist()] * 2
        assert found["logs"] == "asked add_sub\n" * 2


def test_models_are_finalized_at_the_end() -> None:
    process = ServerProcess(str(ROOT / "add_sub"))
    try:
        process.wait_for("ready")
        process.popen.send_signal(signal.SIGTERM)
        assert any("add_sub is finalized" in json.dumps(line) for line in process.read_to_the_end())
    finally:
        process.end()
