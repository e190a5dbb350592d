"""Runtimes of one's own for MLServer, unchanged: without its package, and with it where it is installed."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from tests.support.packages import packages
from tests.support.servers import ServerProcess, listening_ports, wait_for_waiting

DISTANCES = """
    import json

    import mlserver
    import numpy as np
    from helper import NAME
    from mlserver import MLModel
    from mlserver.codecs import NumpyCodec, StringCodec
    from mlserver.errors import MLServerError
    from mlserver.types import InferenceRequest, InferenceResponse, Parameters
    from mlserver.utils import get_model_uri

    class Distances(MLModel):
        async def load(self) -> bool:
            path = await get_model_uri(self._settings, wellknown_filenames=["centres.json"])
            with open(path) as file:
                centres = json.load(file)
            self.labels = list(centres)
            self.centres = np.array(list(centres.values()), dtype=np.float32)
            self.extra = self.settings.parameters.extra["factor"]
            mlserver.register("own_requests", "Requests")
            return True

        async def predict(self, payload: InferenceRequest) -> InferenceResponse:
            mlserver.log(own_requests=1)
            points = self.decode(payload.inputs[0], default_codec=NumpyCodec)
            if points.shape[1] != 2:
                raise MLServerError("points have two coordinates", status_code=422)
            if points[0, 0] < 0:
                raise MLServerError("no such point", status_code=404)
            if points[0, 0] > 100:
                raise KeyError("far")
            distances = np.linalg.norm(points[:, None] - self.centres, axis=2) * self.extra
            labels = [self.labels[best] for best in distances.argmin(axis=1)]
            outputs = [
                StringCodec.encode_output("label", labels),
                NumpyCodec.encode_output("distance", distances.min(axis=1)[:, None]),
            ]
            return InferenceResponse(
                id=payload.id,
                model_name=self.name,
                model_version=self.version,
                parameters=Parameters(by=NAME, seen=str(payload.parameters.hint)),
                outputs=outputs,
            )

        async def unload(self) -> bool:
            print("unloaded", flush=True)
            return True
"""
CONTENTS = """
    from mlserver import MLModel
    from mlserver.codecs import NumpyCodec, StringCodec, register_input_codec
    from mlserver.types import InferenceResponse, ResponseOutput

    @register_input_codec
    class Reversed(StringCodec):
        ContentType = "reversed"

        @classmethod
        def decode_input(cls, request_input):
            return [text[::-1] for text in StringCodec.decode_input(request_input)]

    class Contents(MLModel):
        async def predict(self, payload):
            found = [self.decode(each) for each in payload.inputs]
            texts = [f"{type(value).__name__} {list(value)}" for value in found]
            kinds = [each.parameters and each.parameters.content_type or "none" for each in payload.inputs]
            outputs = [StringCodec.encode_output("kinds", kinds), StringCodec.encode_output("texts", texts)]
            wanted = [each.name for each in payload.outputs or []]
            return InferenceResponse(model_name=self.name, outputs=[*outputs, ResponseOutput(
                name="wanted", shape=[len(wanted)], datatype="BYTES", data=wanted)])
"""
ARGUMENTS = """
    from typing import List, Optional

    import numpy as np
    from mlserver import MLModel
    from mlserver.codecs import decode_args

    class Joined(MLModel):
        @decode_args
        async def predict(self, numbers: np.ndarray, words: List[str]) -> List[str]:
            return [f"{word}{number}" for word, number in zip(words, numbers.ravel().tolist())]
"""
FRAME = """
    import pandas as pd
    from mlserver import MLModel
    from mlserver.codecs import PandasCodec

    class Frame(MLModel):
        async def predict(self, payload):
            frame = self.decode_request(payload, default_codec=PandasCodec)
            assert isinstance(frame, pd.DataFrame), frame
            frame["total"] = frame["a"] + frame["b"]
            return self.encode_response(frame[["total", "word"]])
"""
STREAM = """
    import asyncio
    from mlserver import MLModel
    from mlserver.codecs import StringCodec
    from mlserver.types import InferenceResponse

    class Words(MLModel):
        async def predict_stream(self, payloads):
            payload = [each async for each in payloads][0]
            (text,) = StringCodec.decode_input(payload.inputs[0])
            for word in text.split():
                await asyncio.sleep(0)
                yield InferenceResponse(model_name=self.name, outputs=[StringCodec.encode_output("output", [word])])
"""
SHARED = """
    import json
    from pathlib import Path

    import numpy as np
    from mlserver import MLModel
    from mlserver.codecs import NumpyCodec, StringCodec
    from mlserver.errors import MLServerError
    from mlserver.types import InferenceResponse, Parameters

    class Sums(MLModel):
        async def predict(self, payload):
            x = self.decode(payload.inputs[0], default_codec=NumpyCodec)
            hint = payload.parameters.model_dump().get("hint", 1)
            if (x == -1).any():
                Path(__file__).with_name("gate").open().read()
            if (x == 7).any():
                raise MLServerError("seven", status_code=422)
            if hint == "whole":
                return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("sum", x.sum(axis=0))])
            sums = x.sum(axis=1) * hint
            outputs = [
                NumpyCodec.encode_output("sum", sums),
                StringCodec.encode_output("text", [f"{each:g} of {len(x)}" for each in sums]),
            ]
            kind = payload.parameters.content_type or "none"
            return InferenceResponse(model_name=self.name, parameters=Parameters(kind=kind), outputs=outputs)
"""
POINTS = {"name": "points", "datatype": "FP32", "shape": [1, 2], "data": [3, 4]}
Start = Callable[..., tuple[httpx.Client, ServerProcess]]


@pytest.fixture
def start(tmp_path: Path, server_process: Callable[..., ServerProcess]) -> Iterator[Start]:
    """Serve a folder with a runtime."""
    clients = []

    def serve(
        text: str, name: str, *arguments: str, helper: str = "NAME = 'helper'\n", **settings: Any
    ) -> tuple[httpx.Client, ServerProcess]:
        folder = tmp_path / "own"
        folder.mkdir()
        document = {"name": "own", "implementation": f"runtime.{name}", **settings}
        (folder / "model-settings.json").write_text(json.dumps(document))
        (folder / "runtime.py").write_text(textwrap.dedent(text))
        (folder / "helper.py").write_text(helper)
        (folder / "weights").mkdir()
        (folder / "weights" / "centres.json").write_text('{"near": [0, 0], "far": [30, 40]}')
        process = server_process(str(folder), *arguments, env=packages())
        url = process.wait_for("listening")["url"]
        process.wait_for("ready")
        clients.append(httpx.Client(base_url=url))
        return clients[-1], process

    yield serve
    for client in clients:
        client.close()


def infer(client: httpx.Client, *inputs: dict[str, Any], status: int = 200, **more: Any) -> Any:
    answer = client.post("/v2/models/own/infer", json={"inputs": list(inputs), **more})
    assert answer.status_code == status, answer.text
    return answer.json()


def test_a_runtime(start: Start) -> None:
    parameters = {"uri": "./weights", "version": "v2", "extra": {"factor": 2}}
    client, process = start(DISTANCES, "Distances", parameters=parameters)
    found = infer(client, POINTS, id="7", parameters={"hint": "x"})
    assert found["outputs"] == [
        {"name": "label", "datatype": "BYTES", "shape": [1, 1], "data": ["near"]},
        {"name": "distance", "datatype": "FP32", "shape": [1, 1], "data": [10.0]},
    ]
    assert (found["id"], found["model_version"]) == ("7", "v2")
    assert found["parameters"] == {"by": "helper", "seen": "x"}
    hint = {"parameters": {"hint": ""}}
    three = {**POINTS, "shape": [1, 3], "data": [1, 2, 3]}
    assert infer(client, three, **hint, status=400) == {"error": "points have two coordinates"}
    assert infer(client, {**POINTS, "data": [-1, 0]}, **hint, status=404) == {"error": "no such point"}
    assert "far" in infer(client, {**POINTS, "data": [101, 0]}, **hint, status=500)["error"]
    body = {"input": {"tensors": {"points": [[3.0, 4.0]]}, **hint}}
    output = client.post("/models/own/predictions", json=body).json()["output"]
    assert output["label"]["data"] == [["near"]]
    assert "own_requests_count" in client.get("/metrics").text
    assert listening_ports(process.popen.pid) == {httpx.URL(client.base_url).port}
    process.popen.terminate()
    log = str(process.read_to_the_end())
    assert "KeyError" in log
    assert "unloaded" in log


def test_content_types_over_rest_and_grpc(start: Start) -> None:
    inputs = [{"name": "told", "datatype": "BYTES", "shape": [-1], "parameters": {"content_type": "str"}}]
    client, process = start(CONTENTS, "Contents", "--grpc-port", "0", inputs=inputs)

    def one(name: str, kind: str, *data: Any, datatype: str = "BYTES") -> dict[str, Any]:
        parameters = {"parameters": {"content_type": kind}} if kind else {}
        return {"name": name, "datatype": datatype, "shape": [len(data)], "data": list(data), **parameters}

    sent = [
        one("a", "str", "é"),
        one("b", "reversed", "abc"),
        one("c", "base64", "YQ=="),
        one("d", "np", 1, 2, datatype="INT32"),
        one("e", "", 1, datatype="INT64"),
        one("told", "", "x"),
    ]
    kinds, texts, wanted = infer(client, *sent, outputs=[{"name": name} for name in ("kinds", "texts", "wanted")])[
        "outputs"
    ]
    assert kinds["data"] == ["str", "reversed", "base64", "np", "none", "none"]
    assert texts["data"][:3] == ["list ['é']", "list ['cba']", "list [b'a']"]
    assert texts["data"][3].startswith("ndarray ")
    assert texts["data"][4:] == ["TensorData [1]", "list ['x']"]
    assert wanted["data"] == ["kinds", "texts", "wanted"]
    address: str = next(line["url"] for line in process.lines if line.get("event", line["message"]) == "listening-grpc")
    with triton_grpc.InferenceServerClient(address.rpartition("/")[2]) as grpc:
        tensor = triton_grpc.InferInput("b", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([b"abc"], object))
        tensor._input.parameters["content_type"].string_param = "reversed"  # their client has no method for it
        answer = grpc.infer("own", [tensor])
        assert answer.as_numpy("texts").tolist() == [[b"list ['cba']"]]
        assert answer.as_numpy("kinds").tolist() == [[b"reversed"]]


TOLD = """
    from mlserver import MLModel
    from mlserver.codecs import DecodedParameterName, NumpyCodec, StringCodec, get_decoded, has_decoded
    from mlserver.codecs.utils import InputOrOutput
    from mlserver.types import InferenceRequest, InferenceResponse

    def total(tensor: InputOrOutput) -> int:
        return int(get_decoded(tensor).sum())

    class Told(MLModel):
        async def predict(self, payload: InferenceRequest) -> InferenceResponse:
            (given,) = payload.inputs
            self.decode(given)
            plain = given.dict(exclude={"parameters": {DecodedParameterName}})
            words = [str(has_decoded(given)), str(total(given)), plain["name"], str(sorted(plain["parameters"]))]
            output = StringCodec.encode_output("told", words)
            return InferenceResponse(model_name=self.name, outputs=[output])
"""


def test_decoded_values(start: Start) -> None:
    client, _ = start(TOLD, "Told")
    given = {"name": "x", "datatype": "INT64", "shape": [2], "data": [1, 2], "parameters": {"content_type": "np"}}
    (output,) = infer(client, given)["outputs"]
    assert output["data"][:3] == ["True", "3", "x"]
    assert "content_type" in output["data"][3]
    assert "_decoded_payload" not in output["data"][3]


def test_annotated_arguments(start: Start) -> None:
    client, _ = start(ARGUMENTS, "Joined", parameters={"uri": "."})
    numbers = {"name": "numbers", "datatype": "INT64", "shape": [2], "data": [1, 2]}
    words = {"name": "words", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]}
    (output,) = infer(client, numbers, words)["outputs"]
    assert output == {"name": "output-0", "datatype": "BYTES", "shape": [2, 1], "data": ["a1", "b2"]}
    assert "other" in infer(client, {**words, "name": "other"}, status=400)["error"]


def test_data_frames(start: Start) -> None:
    pytest.importorskip("pandas")
    client, _ = start(FRAME, "Frame", parameters={"content_type": "pd"})
    columns = [{"name": name, "datatype": "INT64", "shape": [2], "data": [1, 2]} for name in ("a", "b")]
    words = {
        "name": "word",
        "datatype": "BYTES",
        "shape": [2],
        "data": ["x", "y"],
        "parameters": {"content_type": "str"},
    }
    total, word = infer(client, *columns, words)["outputs"]
    assert (total["datatype"], total["data"], total["shape"]) == ("INT64", [2, 4], [2, 1])
    assert (word["datatype"], word["data"]) == ("BYTES", ["x", "y"])


def test_a_stream(start: Start) -> None:
    client, _ = start(STREAM, "Words")
    text = {"name": "prompt", "datatype": "BYTES", "shape": [1], "data": ["a b c"]}
    (output,) = infer(client, text)["outputs"]
    assert (output["shape"], output["data"]) == ([3, 1], ["a", "b", "c"])
    body = {"input": {"tensors": {"prompt": ["a b"]}}}
    outputs = client.post("/models/own/predictions", json=body).json()["output"]
    assert [each["output"]["data"] for each in outputs] == [[["a"]], [["b"]]]


def events_of(answer: httpx.Response) -> list[Any]:
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    events = answer.text.split("\n\n")
    assert events.pop() == ""
    return [json.loads(each.removeprefix("data: ")) for each in events]


def test_a_stream_as_clients_of_mlserver_ask_for_it(start: Start) -> None:
    client, _ = start(STREAM, "Words", "--max-body-size", "8MiB")
    text = {"name": "prompt", "datatype": "BYTES", "shape": [1], "data": ["a b"]}
    output = {"name": "output", "datatype": "BYTES", "shape": [1, 1]}
    for path in ("infer_stream", "generate_stream", "versions/1/infer_stream"):
        answer = client.post(f"/v2/models/own/{path}", json={"id": "7", "inputs": [text]})
        assert events_of(answer) == [
            {"id": "7", "model_name": "own", "model_version": "1", "outputs": [{**output, "data": [word]}]}
            for word in ("a", "b")
        ]
    answer = client.post("/v2/models/own/generate", json={"inputs": [text]})
    (whole,) = answer.json()["outputs"]
    assert (whole["shape"], whole["data"]) == ([2, 1], ["a", "b"])
    long = "x" * 2_000_000  # read by another process
    for data, words in (([f"{long} b"], [long, "b"]), (["x b"], ["x", "b"])):
        given = {**text, "data": data}
        found = events_of(client.post("/v2/models/own/infer_stream", json={"inputs": [given]}))
        assert [each["outputs"][0]["data"][0] for each in found] == words
        whole = client.post("/v2/models/own/generate", json={"inputs": [given]}).json()["outputs"][0]
        assert whole["data"] == words
    wrong = {**text, "shape": [2]}
    assert "its shape takes 2" in client.post("/v2/models/own/infer_stream", json={"inputs": [wrong]}).json()["error"]
    binary = {"inputs": [text], "parameters": {"binary_data_output": True}}
    answer = client.post("/v2/models/own/generate_stream", json=binary)
    assert (answer.status_code, "leave out binary_data" in answer.json()["error"]) == (400, True)
    two = client.post("/v2/models/own/infer_stream", json={"inputs": [{**text, "data": ["a", "b"], "shape": [2]}]})
    assert (two.status_code, "too many values" in two.json()["error"]) == (500, True)


def test_a_text_as_data(start: Start) -> None:
    client, _ = start(CONTENTS, "Contents")
    text = {"name": "a", "datatype": "BYTES", "shape": [1], "data": "é", "parameters": {"content_type": "str"}}
    assert infer(client, text)["outputs"][1]["data"] == ["list ['é']"]
    found = infer(client, {**text, "shape": [11], "data": "hello world 😁"})  # as in an example of MLServer
    assert found["outputs"][1]["data"] == ["list ['hello world 😁']"]
    for count in (20_000, 700_000):  # bodies that are read as large ones, of more than a MiB
        large = 'é"[' * count
        long = infer(client, {**text, "shape": [9], "data": large})
        assert long["outputs"][1]["data"] == [f"list {[large]}"]
        assert "4" in infer(client, {**text, "shape": [2, 2], "data": "x" * count}, status=400)["error"]
    assert "2" in infer(client, {**text, "shape": [2], "data": ["é"]}, status=400)["error"]
    assert "4" in infer(client, {**text, "shape": [2, 2]}, status=400)["error"]


HELD = """
    from mlserver import MLModel
    from mlserver.codecs import NumpyCodec, StringCodec
    from mlserver.types import InferenceResponse, ResponseOutput

    class Held(MLModel):
        async def predict(self, payload):
            whole, listed = payload.inputs
            first = NumpyCodec.decode_input(whole)
            first += 10
            words = [str(NumpyCodec.decode_input(whole).tolist()), str(list(whole.data)), str(first.tolist())]
            listed.data.root[0] = 7
            words.append(str(NumpyCodec.decode_input(listed).tolist()))
            listed.shape = [3]
            words.append(str(NumpyCodec.decode_input(listed).tolist()))
            words.append(str(listed.model_dump()["data"]))
            flat = NumpyCodec.encode_output("flat", first.ravel())
            turned = NumpyCodec.encode_output("turned", first.T)
            first[:] = 0
            nested = ResponseOutput(name="nested", shape=[3], datatype="INT8", data=[[1, 2], [3]])
            return InferenceResponse(
                model_name=self.name,
                outputs=[StringCodec.encode_output("words", words), flat, turned, nested],
            )
"""


def test_arrays_are_copies_as_lists_would_be(start: Start) -> None:
    client, _ = start(HELD, "Held")
    whole = {"name": "whole", "datatype": "INT32", "shape": [2, 2], "data": [1, 2, 3, 4]}
    listed = {"name": "listed", "datatype": "FP32", "shape": [3, 1], "data": [1, 2, 3]}
    words, flat, turned, nested = infer(client, whole, listed)["outputs"]
    assert words["data"] == [
        "[[1, 2], [3, 4]]",
        "[1, 2, 3, 4]",
        "[[11, 12], [13, 14]]",
        "[[7.0], [2.0], [3.0]]",
        "[7.0, 2.0, 3.0]",
        "[7, 2.0, 3.0]",
    ]
    assert (flat["shape"], flat["data"], flat["datatype"]) == ([4, 1], [11, 12, 13, 14], "INT32")
    assert (turned["shape"], turned["data"]) == ([2, 2], [11, 13, 12, 14])
    assert (nested["shape"], nested["data"]) == ([3], [1, 2, 3])


LOOP = """
    from helper import begin, state
    from mlserver import MLModel
    from mlserver.codecs import StringCodec
    from mlserver.types import InferenceResponse

    class Loop(MLModel):
        async def load(self) -> bool:
            begin()
            return True

        async def predict(self, payload):
            return InferenceResponse(model_name=self.name, outputs=[StringCodec.encode_output("state", [state()])])
"""
TASKS = """
import asyncio

ended = []

async def _task():
    await asyncio.sleep(0.05)
    ended.append(True)

def begin():
    global kept
    kept = asyncio.create_task(_task())

def state():
    return f"{asyncio.get_running_loop().is_running()} {bool(ended)}"
"""


def test_a_file_with_an_event_loop_has_one(start: Start) -> None:
    client, _ = start(LOOP, "Loop", helper=TASKS)
    states = (infer(client, POINTS)["outputs"][0]["data"][0] for _ in range(500))
    assert next((each for each in states if each == "True True"), None), "no task has run on the loop"


BLOCKED = """
    import os
    from pathlib import Path
    from mlserver import MLModel
    from mlserver.codecs import StringCodec
    from mlserver.types import InferenceResponse

    class Blocked(MLModel):
        async def predict(self, payload):
            if payload.inputs[0].data[0] < 0:
                Path(__file__).with_name("gate").open().read()
            output = StringCodec.encode_output("pid", [str(os.getpid())])
            return InferenceResponse(model_name=self.name, outputs=[output])
"""


def test_a_predict_that_waits_for_nothing_is_stopped_like_a_function(start: Start, tmp_path: Path) -> None:
    client, _ = start(BLOCKED, "Blocked")
    before = infer(client, POINTS)["outputs"][0]["data"]
    gate = tmp_path / "own/gate"
    os.mkfifo(gate)
    body = {"id": "held", "input": {"tensors": {"points": [[-1.0, 0.0]]}}}
    answer = client.post("/models/own/predictions", json=body, headers={"Prefer": "respond-async"})
    assert answer.status_code == 202
    with gate.open("w"):  # by then it runs
        assert client.post("/models/own/predictions/held/cancel").status_code == 200
        assert infer(client, POINTS)["outputs"][0]["data"] == before


# requests that share calls


class Asker:
    """Asks while the model is held at its gate."""

    def __init__(self, client: httpx.Client, gate: Path) -> None:
        self.client = client
        self.gate = gate
        os.mkfifo(gate)

    def together(self, *requests: tuple[Any, dict[str, Any]]) -> list[httpx.Response]:
        """Answer requests that wait for the model at the same moment: rows, and parameters, of each."""
        with ThreadPoolExecutor(len(requests) + 1) as pool:
            held = pool.submit(self.ask, [[-1]])
            with self.gate.open("w"):  # by then it runs
                waiting = [pool.submit(self.ask, rows, **parameters) for rows, parameters in requests]
                wait_for_waiting(self.client, len(requests))
            answers = [each.result() for each in waiting]
        assert texts_of(held.result()) == ["-1 of 1"]
        return answers

    def ask(self, rows: list[list[float]], **parameters: Any) -> httpx.Response:
        x = {"name": "x", "datatype": "FP64", "shape": [len(rows), len(rows[0])], "data": np.ravel(rows).tolist()}
        return self.client.post("/v2/models/own/infer", json={"inputs": [x], "parameters": parameters, "id": "7"})


def texts_of(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    total, text = answer.json()["outputs"]
    assert [f"{each:g}" for each in total["data"]] == [each.partition(" ")[0] for each in text["data"]]
    texts: list[str] = text["data"]
    return texts


def test_requests_share_calls(start: Start, tmp_path: Path) -> None:
    client, _ = start(SHARED, "Sums", max_batch_size=8, max_batch_time=0.5)
    asker = Asker(client, tmp_path / "own/gate")
    answers = asker.together(
        ([[1]], {}), ([[2], [3]], {}), ([[4]], {"hint": 10}), ([[4]], {"content_type": "np"}), ([[5, 5]], {})
    )
    assert list(map(texts_of, answers)) == [["1 of 3"], ["2 of 3", "3 of 3"], ["40 of 1"], ["4 of 1"], ["10 of 1"]]
    assert [answer.json()["parameters"]["kind"] for answer in answers] == ["none", "none", "none", "np", "none"]
    assert {answer.json()["id"] for answer in answers} == {"7"}
    bad, good, other = asker.together(([[7]], {}), ([[2]], {}), ([[3]], {}))
    assert (bad.status_code, bad.json()) == (400, {"error": "seven"})
    assert [texts_of(good), texts_of(other)] == [["2 of 1"], ["3 of 1"]]


def test_outputs_that_cannot_be_cut_end_it(start: Start, tmp_path: Path) -> None:
    client, process = start(SHARED, "Sums", max_batch_size=8, max_batch_time=0.5)
    asker = Asker(client, tmp_path / "own/gate")
    answers = asker.together(*[([[each]], {"hint": "whole"}) for each in (1, 2)])
    assert [answer.json()["outputs"][0]["data"] for answer in answers] == [[1], [2]]
    assert list(map(texts_of, asker.together(([[1]], {}), ([[2]], {})))) == [["1 of 1"], ["2 of 1"]]
    process.popen.terminate()
    assert "requests do not share calls any more: output 'sum' has the shape [1, 1] for 2 rows" in str(
        process.read_to_the_end()
    )


def test_without_a_time_no_calls_are_shared(start: Start, tmp_path: Path) -> None:
    client, _ = start(SHARED, "Sums", max_batch_size=8)
    asker = Asker(client, tmp_path / "own/gate")
    assert list(map(texts_of, asker.together(([[1]], {}), ([[2]], {})))) == [["1 of 1"], ["2 of 1"]]


def test_streams_share_no_calls(start: Start) -> None:
    client, process = start(STREAM, "Words", max_batch_size=8, max_batch_time=0.5)
    text = {"name": "prompt", "datatype": "BYTES", "shape": [1], "data": ["a b"]}
    assert infer(client, text)["outputs"][0]["data"] == ["a", "b"]
    process.popen.terminate()
    assert "requests do not share calls of Words.predict_stream()" in str(process.read_to_the_end())


# what cannot be


FAULTS = [
    (DISTANCES, "Missing", {}, "it has no class Missing that is derived from mlserver.MLModel"),
    (DISTANCES, "NAME", {}, "it has no class NAME that is derived from mlserver.MLModel"),
    (DISTANCES, "Distances", {"parameters": {"uri": "./none"}}, "Invalid URI specified for model own"),
    (ARGUMENTS.replace("List[str]:", "dict:"), "Joined", {}, "dict"),
    (
        CONTENTS.replace(
            "async def predict", "async def load(self):\n            return False\n\n        async def predict"
        ),
        "Contents",
        {},
        "load() has returned False",
    ),
]


@pytest.mark.parametrize(("text", "name", "settings", "message"), FAULTS)
def test_faults_are_named(
    tmp_path: Path,
    server_process: Callable[..., ServerProcess],
    text: str,
    name: str,
    settings: dict[str, Any],
    message: str,
) -> None:
    document = {"name": "own", "implementation": f"runtime.{name}", **settings}
    (tmp_path / "model-settings.json").write_text(json.dumps(document))
    (tmp_path / "runtime.py").write_text(textwrap.dedent(text))
    (tmp_path / "helper.py").write_text("NAME = 'helper'\n")
    failed = server_process(str(tmp_path), env=packages()).wait_for("setup-failed")
    assert message in str(failed)
