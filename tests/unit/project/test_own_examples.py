"""Examples of inputs in the files of models of other servers; those that cannot be read are named, and passed over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from geartrain.project.source import ModelSource, find_model

MLMODEL = """
flavors:
  python_function: {loader_module: own}
saved_input_example_info:
  artifact_path: input_example.json
"""
SPLIT = {"columns": ["a", "b"], "data": [[1, 2.5]]}
CARD = """---
license: mit
widget:
- text: "one"
  example_title: first
- {text: two, context: about it}
- {src: https://example.com/a.png}
- text: "three"
---
# A model
"""
HANDLER = "class EndpointHandler:\n    def __init__(self, path=''): ...\n    def __call__(self, data): ...\n"
TRUSS_CLASS = "class Model:\n    def predict(self, inputs):\n        return inputs\n"


def write(folder: Path, **files: str) -> Path:
    """Write files into a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def found(path: Path) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the examples of a model, and the remarks."""
    source = find_model(str(path), environ={})
    assert isinstance(source, ModelSource)
    return [json.loads(each) for each in source.own_examples], source.remarks


MLFLOW: list[tuple[str, Any, Any]] = [
    ("  serving_input_path: given.json\n  type: dataframe\n", None, {"any": "body"}),
    ("  type: dataframe\n  pandas_orient: split\n", SPLIT, {"dataframe_split": SPLIT}),
    (
        "  type: dataframe\n  params: 'true'\n",
        {"inputs": SPLIT, "params": {"k": 1}},
        {"dataframe_split": SPLIT, "params": {"k": 1}},
    ),
    ("  type: ndarray\n", [[1, 2]], {"inputs": [[1, 2]]}),
    ("  type: ndarray\n  format: tf-serving\n", {"inputs": [[1, 2]]}, {"inputs": [[1, 2]]}),
    ("  type: json_object\n", "text", {"inputs": "text"}),
    ("  type: json_object\n", {"messages": []}, {"messages": []}),
]


@pytest.mark.parametrize(("info", "saved", "body"), MLFLOW)
def test_mlflow(tmp_path: Path, info: str, saved: Any, body: Any) -> None:
    files = {"MLmodel": MLMODEL + info, "input_example.json": json.dumps(saved), "given.json": '{"any": "body"}'}
    assert found(write(tmp_path, **files)) == ([{"body": body}], ())


def test_model_of_mlflow_without_an_example(tmp_path: Path) -> None:
    assert found(write(tmp_path, MLmodel=MLMODEL.partition("saved")[0])) == ([], ())


BAD = [
    ("  type: dataframe\n", '{"columns": [NaN', "input_example.json: the example cannot be read: "),
    ("  type: dataframe\n", "[" * 100_000, "input_example.json: the example cannot be read: "),
    ("  type: dataframe\n", " " * 2_000_000, "more than 1048576 bytes"),
    ("  type: dataframe\n", None, "input_example.json: the example cannot be read: No such file"),
    ("  type: sparse_matrix_csr\n", "{}", "an example of the type sparse_matrix_csr has no body"),
    ("  type: dataframe\n  params: 'true'\n", "[1]", "input_example.json: it has no `inputs` and `params`"),
    ("  type: [1]\n", "{}", "an example of the type [1] has no body"),
    ("  serving_input_path: [1]\n", "{}", "[1]: the example cannot be read: No such file"),
]


@pytest.mark.parametrize(("info", "saved", "remark"), BAD)
def test_example_that_cannot_be_read_is_named(tmp_path: Path, info: str, saved: str | None, remark: str) -> None:
    write(tmp_path, MLmodel=MLMODEL + info, **({} if saved is None else {"input_example.json": saved}))
    examples, remarks = found(tmp_path)
    assert examples == []
    assert len(remarks) == 1
    assert remark in remarks[0]
    assert remarks[0].endswith("; it is not shown")


@pytest.mark.parametrize("info", ["saved_input_example_info: [1]\n", "saved_input_example_info: {\n", "[]\n"])
def test_broken_mlmodel_is_left_to_the_worker(tmp_path: Path, info: str) -> None:
    assert found(write(tmp_path, MLmodel=f"flavors: {{python_function: {{}}}}\n{info}")) == ([], ())


def test_truss(tmp_path: Path) -> None:
    config = "model_name: own\nmodel_metadata:\n  example_model_input: {prompt: a, when: 2026-01-02}\n"
    examples = "- name: one\n  input: plain\n- {name: two, input: [1]}\n- {name: three}\n- {input: 4}\n"
    write(tmp_path, **{"config.yaml": config, "examples.yaml": examples, "model/model.py": TRUSS_CLASS})
    assert found(tmp_path) == (
        [
            {"body": {"prompt": "a", "when": "2026-01-02"}},
            {"body": '"plain"', "content_type": "application/json"},
            {"body": [1]},
        ],
        ("examples.yaml: example 3 has no `input`; it is not shown",),
    )
    (tmp_path / "examples.yaml").write_text("".join(f"- input: {number}\n" for number in range(100)))
    assert len(found(tmp_path)[0]) == 10
    (tmp_path / "examples.yaml").write_text("- {")
    assert "examples.yaml: it cannot be read: " in found(tmp_path)[1][0]
    (tmp_path / "geartrain.yaml").write_text("examples: [{body: own}]")
    assert found(tmp_path)[0] == []


def test_hugging_face(tmp_path: Path) -> None:
    write(tmp_path, **{"handler.py": HANDLER, "README.md": CARD})
    assert found(tmp_path) == ([{"body": {"inputs": "one"}}, {"body": {"inputs": "three"}}], ())
    for card in ("widget: [", "---\nwidget: [\n---\n", "---\nwidget: 7\n---\n", "---\nwidget", ""):
        (tmp_path / "README.md").write_text(card)
        assert found(tmp_path) == ([], ())
