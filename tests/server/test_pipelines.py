"""Pipelines of several models, served by a real process: every protocol, ensembles of Triton, statistics, failures."""

from __future__ import annotations

import base64
import json
import socket
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as by_grpc
import tritonclient.http as by_http

from tests.support.onnx_models import save_scale
from tests.support.servers import PATIENCE, ServerProcess, write_model

SCALE = """
platform: "onnxruntime_onnx"
max_batch_size: 8
version_policy { all { } }
dynamic_batching { }
input { name: "x" data_type: TYPE_FP32 dims: 3 }
output { name: "y" data_type: TYPE_FP32 dims: 3 }
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input { name: "RAW" data_type: TYPE_FP32 dims: 3 }
output [ { name: "SCALED" data_type: TYPE_FP32 dims: 3 }, { name: "LABEL" data_type: TYPE_STRING dims: 1 } ]
ensemble_scheduling {
  step [
    { model_name: "name" model_version: -1
      input_map { key: "rows" value: "twice" } output_map { key: "label" value: "LABEL" } },
    { model_name: "scale" model_version: 1
      input_map { key: "x" value: "RAW" } output_map { key: "y" value: "twice" } },
    { model_name: "scale" model_version: -1
      input_map { key: "x" value: "twice" } output_map { key: "y" value: "SCALED" } }
  ]
}
"""
NAME = """
    from typing import NamedTuple
    import numpy as np
    from jaxtyping import Float32, Shaped
    from numpy.typing import NDArray

    class Named(NamedTuple):
        label: NDArray[np.object_]

    def run(rows: Float32[np.ndarray, "n 3"]) -> Named:
        return Named(np.array([[f"c{row.argmax()}".encode()] for row in rows], dtype=object))
"""
DETECTOR = """
    from geartrain import Path
    def run(image: Path) -> list[list[int]]:
        return [[at, at + 1] for at, letter in enumerate(image.read_text()) if letter.isupper()]
"""
READER = """
    from geartrain import Path
    def run(image: Path, boxes: list[list[int]], mark: str = ".") -> list[str]:
        text = image.read_text()
        return [text[begin:end] + mark for begin, end in boxes]
"""
WRITER = """
    from geartrain import ConcatenateIterator, streaming
    @streaming
    def run(text: str) -> ConcatenateIterator[str]:
        for word in text.split():
            yield word + " "
"""
UPPER = "def run(text: str) -> str:\n    if text == 'bad': raise ValueError('no such text')\n    return text.upper()\n"
MEET = """
    import socket
    def run(port: int, name: str) -> str:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as peer:
            peer.sendall(name.encode())
            return name + peer.recv(1).decode()
"""
DRAW = """
    import tempfile
    from typing import NamedTuple
    import numpy as np
    from geartrain import Path
    from numpy.typing import NDArray

    class Drawn(NamedTuple):
        picture: Path
        sizes: NDArray[np.int64]

    def run(text: str) -> Drawn:
        path = Path(tempfile.mkdtemp()) / f"{text}.txt"
        path.write_text(text * 3)
        return Drawn(path, np.array([len(text)]))
"""
FRAME = """
    import tempfile
    from geartrain import Path
    def run(picture: Path) -> Path:
        path = Path(tempfile.mkdtemp()) / ("framed-" + picture.name)
        path.write_text("[" + picture.read_text() + "]")
        return path
"""
JOIN = "def run(first: str, second: str) -> str:\n    return first + second\n"
PIPELINES = {
    "read_signs": """
        pipeline:
          - model: detector
            output: boxes
          - model: reader
    """,
    "story": """
        pipeline:
          - model: upper
            output: text
          - writer
    """,
    "told": """
        pipeline:
          - model: upper
            inputs: {text: prompt}
            output: text
          - writer
    """,
    "counted": """
        pipeline:
          steps:
            - {model: upper, output: text}
            - {model: writer, output: said}
            - {model: upper, inputs: {text: said}, output: again}
          outputs: [again, said]
    """,
    "both": """
        pipeline:
          - {model: meet, inputs: {name: one}, output: first}
          - {model: meet_too, inputs: {name: two}, output: second}
          - join
    """,
    "drawn": "pipeline: [draw]",
    "framed": """
        pipeline:
          steps:
            - draw
            - {model: frame, output: framed}
          outputs: [framed, picture, sizes]
    """,
    "tripled": """
        pipeline:
          - {model: scale, version: 1, inputs: {x: rows}, outputs: {y: rows}}
          - {model: scale, version: 3, inputs: {x: rows}}
    """,
}
ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


def write_models(root: Path) -> None:
    """Write the models and the pipelines of these tests."""
    save_scale(root / "scale" / "1" / "model.onnx", 2.0)
    save_scale(root / "scale" / "3" / "model.onnx", 3.0)
    (root / "scale" / "config.pbtxt").write_text(SCALE)
    codes = {
        "name": NAME,
        "detector": DETECTOR,
        "reader": READER,
        "writer": WRITER,
        "upper": UPPER,
        "join": JOIN,
        "draw": DRAW,
        "frame": FRAME,
    }
    for name, code in {**codes, "meet": MEET, "meet_too": MEET}.items():
        write_model(root / name, code)
    (root / "classify" / "1").mkdir(parents=True)  # as Triton wants it: an empty folder of a version
    (root / "classify" / "config.pbtxt").write_text(ENSEMBLE)
    for name, text in PIPELINES.items():
        (root / name).mkdir()
        (root / name / "geartrain.yaml").write_text(textwrap.dedent(text))


class Served:
    """A server of a folder of models."""

    def __init__(self, root: Path, *arguments: str, events: int) -> None:
        """`events`: how many models become ready, or cannot."""
        self.root = root
        self.process = ServerProcess(str(root), "--grpc-port", "0", *arguments)
        self.lines = [
            self.process.wait_for_one("listening", "listening-grpc", "ready", "setup-failed") for _ in range(events + 2)
        ]
        self.url, self.grpc = (
            next(line["url"] for line in self.lines if line["message"] == event)
            for event in ("listening", "listening-grpc")
        )
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE)

    def predict(self, model: str, values: dict[str, Any], **fields: Any) -> dict[str, Any]:
        answer = self.client.post(f"/models/{model}/predictions", json={"input": values, **fields})
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def stats(self, model: str) -> dict[str, Any]:
        (found,) = self.client.get(f"/v2/models/{model}/stats").json()["model_stats"]
        return dict(found)

    def index(self) -> dict[str, tuple[str, str]]:
        lines = self.client.post("/v2/repository/index").json()
        return {line["name"]: (line.get("state", ""), line.get("reason", "")) for line in lines}

    def close(self) -> None:
        self.client.close()
        self.process.end()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("pipelines")
    write_models(root)
    served = Served(root, events=21)
    yield served
    served.close()


def data_url(text: str) -> str:
    return f"data:text/plain;base64,{base64.b64encode(text.encode()).decode()}"


def expected(root: Path, rows: np.ndarray) -> tuple[np.ndarray, list[bytes]]:
    """Answer of the library for the ensemble."""
    first, last = (onnxruntime.InferenceSession(str(root / "scale" / n / "model.onnx")) for n in ("1", "3"))
    (twice,) = first.run(["y"], {"x": rows})
    (scaled,) = last.run(["y"], {"x": twice})
    return scaled, [f"c{row.argmax()}".encode() for row in twice]


# Triton's ensembles


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_ensemble_answers_as_the_library_does(served: Served, protocol: str) -> None:
    package, address = {"http": (by_http, served.url.removeprefix("http://")), "grpc": (by_grpc, served.grpc)}[protocol]
    scaled, labels = expected(served.root, ROWS)
    with package.InferenceServerClient(address) as client:
        assert client.is_model_ready("classify")
        tensor = package.InferInput("RAW", [2, 3], "FP32")
        tensor.set_data_from_numpy(ROWS)
        result = client.infer("classify", [tensor])
        assert result.as_numpy("SCALED").tobytes() == scaled.tobytes()
        assert result.as_numpy("LABEL").ravel().tolist() == labels
        asked = client.infer("classify", [tensor], outputs=[package.InferRequestedOutput("LABEL")])
        assert asked.as_numpy("SCALED") is None
        wrong = package.InferInput("RAW", [1, 4], "FP32")
        wrong.set_data_from_numpy(np.zeros((1, 4), np.float32))
        with pytest.raises(package.InferenceServerException, match=r"Expected \[-1, 3\], got \[1, 4\]"):
            client.infer("classify", [wrong])


def test_an_ensemble_is_described_as_it_is_declared(served: Served) -> None:
    metadata = served.client.get("/v2/models/classify").json()
    assert (metadata["platform"], metadata["versions"]) == ("ensemble", ["1"])
    assert metadata["inputs"] == [{"name": "RAW", "datatype": "FP32", "shape": [-1, 3]}]
    assert metadata["outputs"] == [
        {"name": "SCALED", "datatype": "FP32", "shape": [-1, 3]},
        {"name": "LABEL", "datatype": "BYTES", "shape": [-1, 1]},
    ]
    config = served.client.get("/v2/models/classify/config").json()
    assert (config["platform"], config["max_batch_size"], config["input"][0]["dims"]) == ("ensemble", 8, [3])
    assert config["ensemble_scheduling"]["step"][1]["model_version"] == 1
    with by_grpc.InferenceServerClient(served.grpc) as client:
        told = client.get_model_config("classify").config
        assert (told.max_batch_size, list(told.input[0].dims)) == (8, [3])
        step = told.ensemble_scheduling.step[0]
        assert (step.model_name, dict(step.input_map)) == ("name", {"rows": "twice"})


def test_an_ensemble_takes_and_gives_json_over_cogs_api(served: Served) -> None:
    scaled, labels = expected(served.root, ROWS)
    body = served.predict("classify", {"RAW": ROWS.tolist()})
    assert body["output"] == {"SCALED": scaled.tolist(), "LABEL": [[label.decode()] for label in labels]}
    refused = served.client.post("/models/classify/predictions", json={"input": {"RAW": [[1, 2]]}})
    assert refused.status_code == 422
    assert refused.json()["detail"][0]["loc"] == ["body", "input", "RAW/0"]


def test_large_arrays_pass_as_json_too(served: Served) -> None:
    rows = np.random.default_rng(1).random((8, 3), np.float32)
    body = served.predict("tripled", {"rows": rows.tolist()})
    assert np.array(body["output"]["y"], np.float32).tobytes() == (rows * 2 * 3).tobytes()


def test_statistics_have_the_ensemble_and_its_steps(served: Served) -> None:
    names = ("classify", "name")
    before = {name: served.stats(name)["inference_count"] for name in names}
    served.predict("classify", {"RAW": ROWS.tolist()})
    assert {name: served.stats(name)["inference_count"] - before[name] for name in names} == {"classify": 1, "name": 1}


def test_steps_of_many_requests_share_batches(served: Served) -> None:
    """More of them at once than the model has slots: what waits is taken together."""
    url = "/v2/models/scale/versions/3/stats"
    (before,) = served.client.get(url).json()["model_stats"]
    rows = [np.full((1, 3), number, np.float32) for number in range(64)]
    with ThreadPoolExecutor(16) as pool:
        bodies = list(pool.map(lambda row: served.predict("classify", {"RAW": row.tolist()}), rows))
    assert [body["output"]["SCALED"] for body in bodies] == [[[number * 6.0] * 3] for number in range(64)]
    (after,) = served.client.get(url).json()["model_stats"]
    runs, rows_run = (after[key] - before[key] for key in ("execution_count", "inference_count"))
    assert (rows_run, runs < 64) == (64, True)


def test_steps_that_run_at_once_read_the_same_large_tensor(tmp_path: Path) -> None:
    """It lies where it was received, and each step has it by a name of its own."""
    for name, field in (("left", "a"), ("right", "another_name_of_it")):
        write_model(
            tmp_path / name,
            f"""
            import numpy as np
            from jaxtyping import Float32
            def run({field}: Float32[np.ndarray, "n"]) -> float:
                return float({field}.sum())
            """,
        )
    write_model(tmp_path / "join", "def run(first: float, second: float) -> list[float]:\n    return [first, second]\n")
    (tmp_path / "both").mkdir()
    (tmp_path / "both/geartrain.yaml").write_text(
        "pipeline:\n  - {model: left, inputs: {a: x}, output: first}\n"
        "  - {model: right, inputs: {another_name_of_it: x}, output: second}\n  - join\n"
    )
    served = Served(tmp_path, "--queue", "100", events=4)

    def ask(number: int) -> list[list[float]]:
        rows = np.full(50_000, number, np.float32)
        tensor = by_http.InferInput("x", [len(rows)], "FP32")
        tensor.set_data_from_numpy(rows)
        with by_http.InferenceServerClient(served.url.removeprefix("http://")) as client:
            return [client.infer("both", [tensor]).as_numpy("output").tolist() for _ in range(30)]

    try:
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(ask, range(1, 5)))
    finally:
        served.close()
    assert answers == [[[number * 50_000.0] * 2] * 30 for number in range(1, 5)]


# plain pipelines, over every protocol


def test_two_stages_take_one_file(served: Served) -> None:
    body = served.predict("read_signs", {"image": data_url("aBcDe")})
    assert body["output"] == ["B.", "D."]
    assert served.predict("read_signs", {"image": data_url("X"), "mark": "!"})["output"] == ["X!"]
    schema = served.client.get("/models/read_signs/openapi.json").json()["components"]["schemas"]
    assert set(schema["Input"]["properties"]) == {"image", "mark"}
    assert schema["Input"]["required"] == ["image"]


def test_uploads_pass_too(served: Served) -> None:
    answer = served.client.post("/models/read_signs/predictions", files={"image": ("sign.txt", b"qRs")})
    assert answer.json()["output"] == ["R."]


def test_files_pass_from_step_to_step_and_to_the_client(served: Served) -> None:
    drawn, framed = data_url("aaa"), data_url("[aaa]")
    output = served.predict("framed", {"text": "a"})["output"]
    assert output == {"framed": framed, "picture": drawn, "sizes": [1]}
    assert served.predict("drawn", {"text": "a"})["output"] == {"picture": drawn, "sizes": [1]}
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}
    for model, count in (("framed", 3), ("drawn", 2)):
        outputs = served.client.post(f"/v2/models/{model}/infer", json={"inputs": [tensor]}).json()["outputs"]
        assert len(outputs) == count
        assert next(each["data"] for each in outputs if each["name"] == "picture") == [drawn]
        assert next(each["data"] for each in outputs if each["name"] == "sizes") == [1]


def test_a_stream_of_the_last_step_is_streamed(served: Served) -> None:
    body = {"input": {"text": "one two"}}
    headers = {"accept": "text/event-stream"}
    with served.client.stream("POST", "/models/story/predictions", json=body, headers=headers) as answer:
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert [json.loads(event)["chunk"] for event in events if "chunk" in event] == ["ONE ", "TWO "]
    assert served.predict("story", {"text": "a b"})["output"] == ["A ", "B "]
    generated = served.client.post("/v2/models/story/generate", json={"text": "x y"}).json()
    assert generated["text_output"] == "X Y "
    with served.client.stream("POST", "/v2/models/story/generate_stream", json={"text": "x y"}) as answer:
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert [json.loads(event)["text_output"] for event in events] == ["X ", "Y "]


def test_streams_in_the_middle_are_joined(served: Served) -> None:
    assert served.predict("counted", {"text": "a b"})["output"] == {"again": "A B ", "said": "A B "}
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a b"]}
    outputs = served.client.post("/v2/models/counted/infer", json={"inputs": [tensor]}).json()["outputs"]
    assert {each["name"]: each["data"] for each in outputs} == {"again": ["A B "], "said": ["A B "]}


def test_tensors_of_plain_pipelines_keep_their_names(served: Served) -> None:
    tensor = {"name": "rows", "shape": [2, 3], "datatype": "FP32", "data": ROWS.ravel().tolist()}
    (output,) = served.client.post("/v2/models/tripled/infer", json={"inputs": [tensor]}).json()["outputs"]
    assert (output["name"], output["shape"], output["data"]) == ("y", [2, 3], (ROWS * 6).ravel().tolist())


def test_a_pipeline_is_in_the_lists(served: Served) -> None:
    assert {name: state for name, (state, _) in served.index().items() if state != "READY"} == {}
    assert served.client.get("/v2/health/ready").status_code == 200
    assert served.client.get("/models/read_signs/health-check").json()["status"] == "READY"
    assert "story" in {model["id"] for model in served.client.get("/v1/models").json()["data"]}


def test_a_text_pipeline_is_a_model_of_openais_api(served: Served) -> None:
    body = {"model": "told", "prompt": "x y"}
    answer = served.client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == "X Y "


def test_steps_that_do_not_need_each_other_run_together(served: Served) -> None:
    """Each of the two waits until the other has come."""
    with socket.create_server(("127.0.0.1", 0)) as meeting, ThreadPoolExecutor(1) as pool:
        port = meeting.getsockname()[1]
        running = pool.submit(served.predict, "both", {"port": port, "one": "a", "two": "b"})
        meeting.settimeout(PATIENCE)
        peers = [meeting.accept()[0] for _ in range(2)]
        for peer in peers:
            with peer:
                peer.sendall(b"!")
        assert running.result(PATIENCE)["output"] == "a!b!"


# failures


def test_a_failure_names_the_step(served: Served) -> None:
    body = served.predict("story", {"text": "bad"})
    assert (body["status"], body["error"]) == ("failed", "`pipeline[0]` (upper): ValueError: no such text")
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["bad"]}
    answer = served.client.post("/v2/models/story/infer", json={"inputs": [tensor]})
    assert answer.status_code == 500
    assert "`pipeline[0]` (upper): ValueError: no such text" in answer.json()["error"]


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Served]:
    """A server of its own, whose models come and go."""
    gate = """
        import os, time
        from pathlib import Path
        def run(text: str, gate: str) -> str:
            Path(gate + ".begun").touch()
            while not os.path.exists(gate):
                time.sleep(0.005)
            if text == "die":
                os._exit(3)
            return text
    """
    write_model(tmp_path / "gate", gate)
    write_model(tmp_path / "upper", UPPER)
    (tmp_path / "pass").mkdir()
    steps = "pipeline:\n  - {model: gate, output: text}\n  - {model: upper, output: upper}\n"
    (tmp_path / "pass" / "geartrain.yaml").write_text(steps)
    served = Served(tmp_path, "--restart", "on-crash", events=3)
    yield served
    served.close()


def until(condition: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_canceled_pipeline_cancels_its_step(changing: Served, tmp_path: Path) -> None:
    gate = tmp_path / "opened"
    values = {"text": "x", "gate": str(gate)}
    headers = {"prefer": "respond-async"}
    body = changing.client.post("/models/pass/predictions", json={"input": values}, headers=headers).json()
    until(gate.with_name("opened.begun").exists)
    assert changing.client.post(f"/models/pass/predictions/{body['id']}/cancel").status_code == 200
    until(lambda: changing.client.get(f"/models/pass/predictions/{body['id']}").json()["status"] == "canceled")
    gate.touch()  # for the next one; the slot of the step is free
    assert changing.predict("pass", values)["output"] == {"upper": "X"}


def test_a_pipeline_whose_time_is_up_leaves_no_step_behind(changing: Served, tmp_path: Path) -> None:
    gate = tmp_path / "opened"
    tensors = [
        {"name": name, "shape": [1], "datatype": "BYTES", "data": [value]}
        for name, value in (("text", "x"), ("gate", str(gate)))
    ]
    body = {"inputs": tensors, "parameters": {"timeout": 300_000}}
    answer = changing.client.post("/v2/models/pass/infer", json=body)
    assert answer.status_code >= 400
    assert "timed out after 0.3 s" in answer.text
    gate.touch()
    assert changing.predict("pass", {"text": "x", "gate": str(gate)})["output"] == {"upper": "X"}


def test_a_crash_of_a_step_fails_the_run_and_the_next_one_is_well(changing: Served, tmp_path: Path) -> None:
    gate = tmp_path / "opened"
    gate.touch()
    body = changing.predict("pass", {"text": "die", "gate": str(gate)})
    assert body["status"] == "failed"
    assert body["error"].startswith("`pipeline[0]` (gate): Worker crashed: ")
    until(lambda: changing.client.get("/v2/models/pass/ready").status_code == 200)
    assert changing.predict("pass", {"text": "x", "gate": str(gate)})["output"] == {"upper": "X"}


def test_a_pipeline_is_ready_while_its_models_are(changing: Served, tmp_path: Path) -> None:
    gate = tmp_path / "opened"
    gate.touch()
    values = {"text": "x", "gate": str(gate)}
    assert changing.client.post("/v2/repository/models/upper/unload").status_code == 200
    assert changing.client.get("/v2/models/pass/ready").status_code != 200
    state, reason = changing.index()["pass"]
    assert state == "UNAVAILABLE"
    assert reason.startswith("`pipeline[1]` (upper): ")
    health = changing.client.get("/models/pass/health-check").json()
    assert (health["status"], "`pipeline[1]` (upper)" in health["user_healthcheck_error"]) == ("UNHEALTHY", True)
    assert "`pipeline[1]` (upper): " in changing.predict("pass", values)["error"]
    assert changing.client.post("/v2/repository/models/upper/load").status_code == 200
    assert changing.client.get("/v2/models/pass/ready").status_code == 200
    assert changing.predict("pass", values)["output"] == {"upper": "X"}


def test_a_model_that_is_replaced_under_a_run_is_used_from_the_next_step_on(changing: Served, tmp_path: Path) -> None:
    gate = tmp_path / "opened"
    values = {"text": "x", "gate": str(gate)}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(changing.predict, "pass", values)
        until(gate.with_name("opened.begun").exists)
        write_model(tmp_path / "upper", "def run(text: str) -> str:\n    return text + '!'\n")
        assert changing.client.post("/v2/repository/models/upper/load").status_code == 200
        gate.touch()
        assert running.result(PATIENCE)["output"] == {"upper": "x!"}


def test_other_inputs_of_a_model_are_those_of_the_pipeline(changing: Served, tmp_path: Path) -> None:
    gate = tmp_path / "opened"
    gate.touch()
    write_model(tmp_path / "upper", "def run(text: str, times: int = 2) -> str:\n    return text * times\n")
    assert changing.client.post("/v2/repository/models/upper/load").status_code == 200
    schema = changing.client.get("/models/pass/openapi.json").json()["components"]["schemas"]["Input"]
    assert set(schema["properties"]) == {"text", "gate", "times"}
    assert changing.predict("pass", {"text": "x", "gate": str(gate), "times": 3})["output"] == {"upper": "xxx"}
    write_model(tmp_path / "upper", "def run(number: int) -> str:\n    return str(number)\n")
    assert changing.client.post("/v2/repository/models/upper/load").status_code == 200
    body = changing.predict("pass", {"text": "x", "gate": str(gate)})
    assert body["error"] == ("`pipeline[1]` (upper): the model has been replaced by one with other inputs or outputs")


def accepts(url: str) -> bool:
    """Tell whether a server takes new connections."""
    try:
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=1):
            return True
    except OSError:
        return False


def test_a_server_that_stops_lets_a_pipeline_finish(changing: Served, tmp_path: Path) -> None:
    gate = tmp_path / "opened"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(changing.predict, "pass", {"text": "x", "gate": str(gate)})
        until(gate.with_name("opened.begun").exists)
        changing.process.popen.terminate()
        until(lambda: not accepts(changing.url))
        gate.touch()
        assert running.result(PATIENCE)["output"] == {"upper": "X"}


# loads


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    write_model(tmp_path / "upper", UPPER)
    write_model(
        tmp_path / "broken",
        "class Runner:\n    def setup(self): raise ValueError('no weights')\n    def run(self) -> str: ...\n",
    )
    for name, text in {
        "lost": "pipeline: [nothing]",
        "wrong": "pipeline: [{model: upper, inputs: {words: text}}]",
        "ill": "pipeline: [broken]",
        "one": "pipeline: [two]",
        "two": "pipeline: [three]",
        "three": "pipeline: [one]",
        "old": "pipeline: [{model: upper, version: 7}]",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "geartrain.yaml").write_text(text)
    served = Served(tmp_path, events=9)
    try:
        found = {line["model"]: line["text"] for line in served.lines if line["message"] == "setup-failed"}
        assert found == {
            "broken": "setup() failed: ValueError: no weights",
            "lost": "`pipeline[0]` (nothing): there is no model 'nothing'; put it into the same folder",
            "wrong": "`pipeline[0]` (upper): `inputs` names 'words', and the model takes 'text'",
            "ill": "`pipeline[0]` (broken): the model could not be loaded: setup() failed: ValueError: no weights",
            "one": "a model cannot be a step of itself: one → two → three → one",
            "two": "a model cannot be a step of itself: two → three → one → two",
            "three": "a model cannot be a step of itself: three → one → two → three",
            "old": "`pipeline[0]` (upper): Request for unknown model: 'upper' version 7 is not found",
        }
        assert served.client.get("/v2/health/ready").status_code != 200
    finally:
        served.close()


def test_loading_a_pipeline_loads_its_models(tmp_path: Path) -> None:
    write_model(tmp_path / "upper", UPPER)
    (tmp_path / "loud").mkdir()
    (tmp_path / "loud" / "geartrain.yaml").write_text("pipeline: [upper]")
    served = Served(tmp_path, "--load", "none", events=0)
    try:
        assert {state for state, _ in served.index().values()} <= {"", "UNAVAILABLE"}
        assert served.client.post("/v2/repository/models/loud/load").status_code == 200
        assert {name: state for name, (state, _) in served.index().items()} == {"loud": "READY", "upper": "READY"}
        assert served.predict("loud", {"text": "x"})["output"] == "X"
    finally:
        served.close()
