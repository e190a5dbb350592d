"""Scripts for PyTriton, unchanged, with the modules that stand in for its package."""

from __future__ import annotations

import json
import queue
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.support.servers import PATIENCE, ServerProcess, listening_ports

PAIR = '''
    """Two models, one of them with every decorator."""

    import logging

    import numpy as np

    from pytriton.decorators import batch, fill_optionals, first_value, group_by_keys, group_by_values
    from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
    from pytriton.triton import Triton, TritonConfig

    logger = logging.getLogger("server")


    @batch
    def double(**inputs):
        (values,) = inputs.values()
        return [values * 2]


    class Scaler:
        def __init__(self, factor):
            self.factor = factor

        @fill_optionals(shift=np.array([1], np.float32))
        @group_by_keys
        @batch
        @group_by_values("times")
        @first_value("times")
        def __call__(self, values, times, shift, words=None):
            scaled = (values + shift) * times * self.factor
            rows = np.full((len(values), 1), len(values), np.int64)
            words = np.array([[b"none"]] * len(values)) if words is None else words.astype("S")
            texts = np.char.upper(np.char.decode(words, "utf-8"))
            return {"scaled": scaled, "rows": rows, "texts": texts}


    with Triton(config=TritonConfig(log_verbose=1, http_port=18000)) as triton:
        triton.bind(
            model_name="Double",
            infer_func=double,
            inputs=[Tensor(dtype=np.float32, shape=(-1,))],
            outputs=[Tensor(dtype=np.dtype("float32"), shape=(-1,))],
            config=ModelConfig(max_batch_size=8),
            strict=True,
        )
        triton.bind(
            "Scaler",
            Scaler(10),
            [
                Tensor(name="values", dtype=np.float32, shape=(-1,)),
                Tensor(name="times", dtype=np.float32, shape=(1,)),
                Tensor(name="shift", dtype=np.float32, shape=(1,), optional=True),
                Tensor(name="words", dtype=bytes, shape=(1,), optional=True),
            ],
            [
                Tensor(name="scaled", dtype=np.float32, shape=(-1,)),
                Tensor(name="rows", dtype=np.int64, shape=(1,)),
                Tensor(name="texts", dtype=bytes, shape=(1,)),
            ],
            config=ModelConfig(max_batch_size=16, batcher=DynamicBatcher(max_queue_delay_microseconds=2000)),
        )
        logger.info("Serving models")
        triton.serve()
'''
HEADERS = """
    import json

    import numpy as np
    from pytriton.model_config import ModelConfig, Tensor
    from pytriton.triton import Triton, TritonConfig

    def told(requests):
        return [{"seen": np.array([json.dumps(each.parameters, sort_keys=True).encode()])} for each in requests]

    config = TritonConfig(http_header_forward_pattern="own.*|auth", grpc_header_forward_pattern="^for-grpc")
    with Triton(config=config) as triton:
        triton.bind(
            model_name="told",
            infer_func=told,
            inputs=[Tensor(name="x", dtype=np.int32, shape=(1,))],
            outputs=[Tensor(name="seen", dtype=bytes, shape=(1,))],
            config=ModelConfig(batching=False),
        )
        triton.serve()
"""
STREAM = """
    import argparse

    import numpy as np
    from pytriton.model_config import ModelConfig, Tensor
    from pytriton.triton import Triton

    def count(requests):
        (request,) = requests
        for number in range(int(request["to"][0])):
            yield [{"number": np.array([number + int(request.parameters["from"])], np.int32)}]

    def main():
        parser = argparse.ArgumentParser()
        parser.add_argument("--model-name", default="counter")
        args = parser.parse_args()
        with Triton() as triton:
            triton.bind(
                model_name=args.model_name.lower(),
                infer_func=count,
                inputs=[Tensor(name="to", dtype=np.int32, shape=(1,))],
                outputs=[Tensor(name="number", dtype=np.int32, shape=(1,))],
                config=ModelConfig(batching=False, decoupled=True),
            )
            triton.serve()

    if __name__ == "__main__":
        main()
"""
PADDED = """
    import numpy as np
    from pytriton.decorators import batch, pad_batch, sample, triton_context
    from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
    from pytriton.triton import Triton

    class Alone:
        @sample
        @triton_context
        def name(self, x, triton_context):
            config = triton_context.model_configs[self.name]
            return [np.array([f"{config.model_name} {config.batching} {x[0]}"])]

    sizes = []

    @batch
    @pad_batch
    def padded(x):
        sizes.append(len(x))
        return {"x": x, "size": np.full((len(x), 1), sizes[-1], np.int32)}

    @batch
    def cut(x):
        return {"x": padded.__wrapped__(x=x)["size"][: len(x)]}

    number = Tensor(name="x", dtype=np.int32, shape=(1,))
    with Triton() as triton:
        triton.bind(
            "alone", Alone().name, [number], [Tensor(name="y", dtype=bytes, shape=(1,))],
            config=ModelConfig(batching=False),
        )
        triton.bind(
            "padded", cut, [number], [number],
            config=ModelConfig(max_batch_size=8, batcher=DynamicBatcher(preferred_batch_size=[2, 4])),
        )
        triton.serve()
"""

SCALED = """
    import numpy as np

    from pytriton.model_config import ModelConfig, Tensor
    from pytriton.triton import Triton, TritonConfig


    def scale(requests):
        def one(request):
            first, second = request.values()
            given = request.parameters
            total = (first + second) / float(given["header_divisor"])
            return {"scaled_add": total, "scaled_sub": (first - second) * float(given["parameter_multiplier"])}

        return [one(request) for request in requests]


    number = Tensor(dtype=np.float32, shape=(-1,))
    with Triton(config=TritonConfig(http_header_forward_pattern="header.*")) as triton:
        triton.bind(
            model_name="ParamsAndHeaders",
            infer_func=scale,
            inputs=[number, number],
            outputs=[Tensor(name=f"scaled_{name}", dtype=np.float32, shape=(-1,)) for name in ("add", "sub")],
            config=ModelConfig(max_batch_size=128),
            strict=True,
        )
        triton.serve()
"""

Start = Callable[..., tuple[httpx.Client, ServerProcess]]


@pytest.fixture
def start(tmp_path: Path, server_process: Callable[..., ServerProcess]) -> Iterator[Start]:
    """Serve a script by its path."""
    clients = []

    def serve(text: str, settings: str = "", *options: str) -> tuple[httpx.Client, ServerProcess]:
        folder = tmp_path / "bound"
        folder.mkdir()
        (folder / "server.py").write_text(textwrap.dedent(text))
        (folder / "geartrain.yaml").write_text(settings)
        process = server_process(str(folder / "server.py"), *options)
        clients.append(httpx.Client(base_url=process.wait_for("listening")["url"]))
        return clients[-1], process

    yield serve
    for client in clients:
        client.close()


def tensor(name: str, datatype: str, data: list[Any]) -> dict[str, Any]:
    """A tensor with a row for each element."""
    return {"name": name, "datatype": datatype, "shape": [len(data), 1], "data": data}


def outputs(client: httpx.Client, name: str, *inputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The contents of the outputs by name."""
    answer = client.post(f"/v2/models/{name}/infer", json={"inputs": inputs, **more})
    assert answer.status_code == 200, answer.text
    return {each["name"]: each["data"] for each in answer.json()["outputs"]}


def process_urls(process: ServerProcess) -> list[str]:
    """The addresses that a server says it listens on, gRPC's with a scheme."""
    urls = [line["url"] for line in process.lines if str(line.get("message")).startswith("listening")]
    return [url if "://" in url else f"http://{url}" for url in urls]


def test_several_models_of_a_script(start: Start) -> None:
    client, process = start(PAIR)
    for _ in range(2):
        process.wait_for("ready")

    assert listening_ports(process.popen.pid) == {httpx.URL(url).port for url in process_urls(process)}
    assert sorted(client.get("/v2/models").json()["models"]) == ["Double", "Scaler"]
    assert outputs(client, "Double", tensor("INPUT_1", "FP32", [1.5, 2])) == {"OUTPUT_1": [3.0, 4.0]}
    config = client.get("/v2/models/Scaler/config").json()
    assert config["max_batch_size"] == 16
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 2000
    given = [tensor("values", "FP32", [1, 2, 3]), tensor("times", "FP32", [1, 2, 1])]
    found = outputs(client, "Scaler", *given)
    assert found == {"scaled": [20.0, 60.0, 40.0], "rows": [2, 1, 2], "texts": ["NONE"] * 3}
    given += [tensor("shift", "FP32", [0, 0, 0]), tensor("words", "BYTES", ["a", "ö", ""])]
    assert outputs(client, "Scaler", *given) == {
        "scaled": [10.0, 40.0, 30.0],
        "rows": [2, 1, 2],
        "texts": ["A", "Ö", ""],
    }


def test_lists_have_the_datatypes_that_are_declared(start: Start) -> None:
    client, process = start(PADDED)
    for _ in range(2):
        process.wait_for("ready")

    def padded(tensors: Any) -> Any:
        return client.post("/models/padded/predictions", json={"input": {"tensors": tensors}}).json()

    assert padded({"x": [[0]]})["output"] == {"x": {"datatype": "INT32", "shape": [1, 1], "data": [[2]]}}
    assert "tensors.x: it is no tensor: its elements are no INT32" in padded({"x": [[0.5]]})["error"]
    assert "tensors.x: it is no tensor" in padded({"x": [[1], [2, 3]]})["error"]


def test_samples_and_padded_batches(start: Start) -> None:
    client, process = start(PADDED)
    for _ in range(2):
        process.wait_for("ready")

    alone = {"name": "x", "datatype": "INT32", "shape": [1], "data": [7]}
    assert outputs(client, "alone", alone) == {"y": ["alone False 7"]}
    for rows, size in ((1, 2), (3, 4), (5, 8)):
        assert outputs(client, "padded", tensor("x", "INT32", [0] * rows)) == {"x": [size] * rows}


def test_one_of_the_models_is_chosen(start: Start) -> None:
    client, process = start(PAIR, "parameters: {models: [Scaler]}")
    process.wait_for("ready")

    assert client.get("/v2/models").json()["models"] == ["Scaler"]


def test_header_fields_are_parameters(start: Start) -> None:
    """As the patterns of the file say; without credentials, and the client's own parameters come first."""
    client, process = start(HEADERS, "", "--grpc-port", "0")
    ready = [process.wait_for_one("listening-grpc", "ready") for _ in range(2)]
    asked = {"name": "x", "datatype": "INT32", "shape": [1], "data": [1]}
    headers = {"X-Own-A": "1", "own-b": "2", "for-grpc": "3", "authorization": "secret"}
    body = {"inputs": [asked], "parameters": {"own-b": "mine", "c": 4}}
    want = {"x-own-a": "1", "own-b": "mine", "c": 4}

    def seen(answer: httpx.Response) -> Any:
        assert answer.status_code == 200, answer.text
        return json.loads(answer.json()["outputs"][0]["data"][0])

    assert seen(client.post("/v2/models/told/infer", json=body, headers=headers)) == want
    assert seen(client.post("/v2/models/told/infer", json={"inputs": [asked]})) == {}
    large = {**body, "id": "x" * 300_000}  # read beside the loop
    assert seen(client.post("/v2/models/told/infer", json=large, headers=headers)) == want
    assert seen(client.post("/v2/models/told/generate", json=body, headers=headers)) == want
    url = next(each["url"] for each in ready if "url" in each)
    with grpcclient.InferenceServerClient(url) as remote:
        given = grpcclient.InferInput("x", [1], "INT32")
        given.set_data_from_numpy(np.array([1], np.int32))
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        fields = {"for-grpc": "3", "own-b": "2"}
        one = remote.infer("told", [given], parameters={"c": 4}, headers=fields)
        remote.start_stream(lambda result, error: answers.put(error or result), headers=fields)
        remote.async_stream_infer("told", [given], parameters={"c": 4})
        for answer in (one, answers.get(timeout=PATIENCE)):
            assert json.loads(answer.as_numpy("seen")[0]) == {"for-grpc": "3", "c": 4}


def test_header_fields_and_parameters_of_tritons_own_client(start: Start) -> None:
    """Rewritten from PyTriton's example `use_parameters_and_headers`, whose client sends the same."""
    client, process = start(SCALED)
    process.wait_for("ready")
    rows = np.ones((2, 1), np.float32)
    inputs = []
    for name, data in (("INPUT_1", 2 * rows), ("INPUT_2", rows)):
        inputs.append(httpclient.InferInput(name, data.shape, "FP32"))
        inputs[-1].set_data_from_numpy(data)
    with httpclient.InferenceServerClient(f"127.0.0.1:{client.base_url.port}", network_timeout=PATIENCE) as remote:

        def asked(headers: dict[str, str], **parameters: Any) -> list[Any]:
            found = remote.infer("ParamsAndHeaders", inputs, parameters=parameters, headers=headers)
            return [found.as_numpy(name).tolist() for name in ("scaled_add", "scaled_sub")]

        assert asked({"header_divisor": "3"}, parameter_multiplier=2) == [[[1], [1]], [[2], [2]]]
        assert asked({"Header_Divisor": "6"}, parameter_multiplier="4") == [[[0.5], [0.5]], [[4], [4]]]
        with pytest.raises(InferenceServerException, match="header_divisor"):
            asked({"divisor": "3"}, parameter_multiplier=2)


def test_a_stream_below_the_main_block(start: Start) -> None:
    client, process = start(STREAM, "parameters: {model-name: COUNTER}")
    process.wait_for("ready")

    body = {"to": 3, "parameters": {"from": 5}}
    with client.stream("POST", "/v2/models/server/generate_stream", json=body) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert [json.loads(line)["number"] for line in lines] == [5, 6, 7]


FAULTS = [
    (PAIR, "parameters: {models: [Other]}", "there is no model 'Other'; there are Double, Scaler"),
    (
        PAIR.replace('"Scaler",\n            Scaler', '"".join(["Sc"]),\n            Scaler'),
        "",
        "it has 2 models (Double, Sc)",
    ),
    (PAIR.replace("dtype=bytes", "dtype=np.complex64"), "", "has the type complex64, which no tensor of Triton has"),
    (PAIR.replace("first_value(", "first_values("), "", "'first_values'"),
    ("import pytriton\n\ndef later(triton):\n    triton.bind(None)", "", "it has bound no model"),
]


@pytest.mark.parametrize(("text", "settings", "message"), FAULTS)
def test_faults_are_named(start: Start, text: str, settings: str, message: str) -> None:
    _, process = start(text, settings)
    assert message in json.dumps(process.wait_for("setup-failed"))
