"""Settings of other servers in scripts, and in their environment, that have no effect here."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain.project.source import ModelSource, find_model

LITSERVE = """
import litserve as ls

class Model(ls.LitAPI):
    def setup(self, device): ...
    def predict(self, x): return x

if __name__ == "__main__":
    server = ls.LitServer(
        Model(max_batch_size=4), accelerator="cpu", workers_per_device=1, timeout=False, loggers=[print])
    server.run(port=8000)
"""
KSERVE = """
from kserve import Model, ModelServer

class Own(Model): ...

ModelServer(workers=2, http_port=8081, **{}).start([Own("own")])
"""
PYTRITON = """
from pytriton.model_config import ModelConfig
from pytriton.triton import Triton, TritonConfig

config = TritonConfig(http_header_forward_pattern="x-(", grpc_header_forward_pattern="x-.*", exit_on_error=True)
with Triton(config=config) as triton:
    own = ModelConfig(batching=False, response_cache=False)
    triton.bind(model_name="a", infer_func=print, inputs=[], outputs=[], strict=True, config=own)
    triton.bind(model_name="b", infer_func=print, inputs=[], outputs=[], strict=True)
    triton.serve()
"""
SAGEMAKER = "def model_fn(model_dir):\n    return 1\n"


def remarks(path: Path, text: str, **environ: str) -> list[str]:
    path.write_text(text)
    source = find_model(str(path), environ=environ)
    assert isinstance(source, ModelSource)
    return [each.partition(" is passed over: ")[0] for each in source.remarks]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (LITSERVE, ["s.py:9: `accelerator` of LitServer()", "s.py:9: `loggers` of LitServer()"]),
        (KSERVE, ["s.py:6: `http_port` of ModelServer()", "s.py:6: `workers` of ModelServer()"]),
        (
            PYTRITON,
            [
                "s.py:5: `exit_on_error` of TritonConfig()",
                "s.py:5: `http_header_forward_pattern` of TritonConfig()",
                "s.py:8: `strict` of bind()",
            ],
        ),
    ],
)
def test_keywords_of_calls(tmp_path: Path, text: str, found: list[str]) -> None:
    assert remarks(tmp_path / "s.py", text) == found


def test_header_fields_that_a_file_forwards(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(PYTRITON)
    source = find_model(str(tmp_path / "s.py"))
    assert isinstance(source, ModelSource)
    assert source.forwarded is not None
    headers = [(b"x-a", b"1"), (b"max-x-b", b"2"), (b"other", b"3"), (b"x-api-key", b"4")]
    assert source.forwarded.of(headers, is_grpc=True) == (("x-a", "1"), ("max-x-b", "2"))
    assert source.forwarded.of(headers, is_grpc=False) == ()
    (tmp_path / "s.py").write_text(PYTRITON.replace('grpc_header_forward_pattern="x-.*", ', ""))
    without = find_model(str(tmp_path / "s.py"))
    assert isinstance(without, ModelSource)
    assert without.forwarded is None


def test_variables_of_sagemaker(tmp_path: Path) -> None:
    path = tmp_path / "inference.py"
    assert remarks(path, SAGEMAKER) == []
    found = remarks(path, SAGEMAKER, SAGEMAKER_MODEL_SERVER_WORKERS="2", SAGEMAKER_PROGRAM="inference.py")
    assert found == ["SAGEMAKER_MODEL_SERVER_WORKERS"]
    assert remarks(tmp_path / "s.py", KSERVE, SAGEMAKER_MODEL_SERVER_WORKERS="2")[0].startswith("s.py:6")


def test_a_file_that_is_no_python_is_left_to_the_worker(tmp_path: Path) -> None:
    assert remarks(tmp_path / "s.py", f"{LITSERVE}\n(") == []
