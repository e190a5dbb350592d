"""ONNX files through a real server: the example over every protocol, and files that are wrong beside good ones."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as by_grpc
import tritonclient.http as by_http
from sklearn.datasets import load_digits

from tests.support.servers import ServerProcess

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx"
FILE = EXAMPLE / "digits.onnx"
README = (EXAMPLE / "README.md").read_text(encoding="utf-8")
PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
ROWS = load_digits().data[:20].astype(np.float32)

Start = Callable[..., ServerProcess]


@pytest.fixture(scope="module")
def urls() -> Iterator[tuple[str, str]]:
    """The addresses of a server of the example, HTTP and gRPC."""
    process = ServerProcess(str(FILE), "--grpc-port", "0")
    url = process.wait_for("listening")["url"]
    first, second = (process.wait_for_one("listening-grpc", "ready") for _ in range(2))
    yield url, first.get("url") or second["url"]
    process.end()


def directly(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    session = onnxruntime.InferenceSession(str(FILE), providers=["CPUExecutionProvider"])
    label, probabilities = session.run(["label", "probabilities"], {"pixels": rows})
    return label, probabilities


def infer(client: Any, package: Any, rows: np.ndarray) -> Any:
    tensor = package.InferInput("pixels", list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows)
    return client.infer("digits", [tensor])


@pytest.mark.parametrize("count", [1, 20])
def test_every_protocol_gives_the_librarys_answer_to_the_last_bit(urls: tuple[str, str], count: int) -> None:
    rows = ROWS[:count]
    label, probabilities = directly(rows)
    answer = httpx.post(f"{urls[0]}/predictions", json={"input": {"pixels": rows.tolist()}}, timeout=60).json()
    assert answer["status"] == "succeeded", answer
    assert answer["output"]["label"] == label.tolist()
    assert answer["output"]["probabilities"] == probabilities.tolist()
    with by_http.InferenceServerClient(urls[0].removeprefix("http://")) as client:
        results = [infer(client, by_http, rows)]
    with by_grpc.InferenceServerClient(urls[1]) as client:
        results.append(infer(client, by_grpc, rows))
    for result in results:
        assert result.as_numpy("label").tobytes() == label.tobytes()
        assert result.as_numpy("probabilities").tobytes() == probabilities.tobytes()


def rounded(value: Any) -> Any:
    """A JSON value without the digits that depend on the machine that a page was written on."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 5) if isinstance(value, float) else value


def test_what_is_shown_is_what_it_answers(urls: tuple[str, str]) -> None:
    asked = re.findall(r"-d '(.*?)'", README, re.DOTALL)
    shown = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", README, re.DOTALL)]
    headers = {"Content-Type": "application/json"}
    for path, body, expected in zip(("/predictions", "/v2/models/digits/infer"), asked, shown, strict=True):
        answer = httpx.post(f"{urls[0]}{path}", content=body, headers=headers, timeout=60).json()
        assert rounded({key: answer.get(key) for key in expected}) == rounded(expected)
    metadata = httpx.get(f"{urls[0]}/v2/models/digits").json()
    assert json.dumps(metadata, separators=(",", ":")) in PAGE


def test_what_is_no_digit_is_refused(urls: tuple[str, str]) -> None:
    short = {"inputs": [{"name": "pixels", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}
    answer = httpx.post(f"{urls[0]}/v2/models/digits/infer", json=short)
    assert answer.status_code == 400
    assert answer.json()["error"] == "unexpected shape for input 'pixels'. Expected [-1, 64], got [1, 3]"


def test_a_description_comes_from_the_file(urls: tuple[str, str]) -> None:
    assert "Handwritten digits: 64 pixels from 0 to 16 in" in httpx.get(f"{urls[0]}/openapi.json").text


def test_wrong_files_beside_good_ones(server_process: Start, tmp_path: Path) -> None:
    for name in ("good/1", "cut/1", "foreign", "unset"):
        (tmp_path / name).mkdir(parents=True)
        shutil.copy(FILE, tmp_path / name / "model.onnx")
    (tmp_path / "cut/1/model.onnx").write_bytes(FILE.read_bytes()[:1000])
    (tmp_path / "foreign/model.onnx").write_bytes(b"\x80\x04nothing of the kind")
    (tmp_path / "unset/geartrain.yaml").write_text("parameters: {providers: [NoneExecutionProvider], threads: 2}\n")
    process = server_process(str(tmp_path))
    url = process.wait_for("listening")["url"]
    ended = [process.wait_for_one("ready", "setup-failed") for _ in range(4)]
    said = {line["model"]: line.get("text", "") for line in ended}
    assert re.fullmatch(r"model.onnx: the file is cut: at least \d+ bytes are missing at its end", said["cut"])
    assert said["foreign"] == "model.onnx: this is a pickle of Python; an ONNX model is expected"
    assert "there is no parameter `threads` of the backend 'onnx'; " in said["unset"]
    body = {"inputs": [{"name": "pixels", "datatype": "FP32", "shape": [1, 64], "data": ROWS[0].tolist()}]}
    answer = httpx.post(f"{url}/v2/models/good/infer", json=body, timeout=60).json()
    assert answer["outputs"][0]["data"] == directly(ROWS[:1])[0].tolist()


def test_the_example_is_made_as_its_script_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("make_digits", EXAMPLE / "make_digits.py")
    assert spec is not None
    assert spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    made = [tmp_path / "first.onnx", tmp_path / "second.onnx"]
    for path in made:
        monkeypatch.setattr(script, "FILE", path)
        script.main()
    assert made[0].read_bytes() == made[1].read_bytes()
    session = onnxruntime.InferenceSession(str(made[0]))
    probabilities = session.run(["probabilities"], {"pixels": ROWS})[0]
    np.testing.assert_allclose(probabilities, directly(ROWS)[1], atol=1e-3)
