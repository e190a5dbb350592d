"""Classes of other servers in the playground: their forms, their examples, and the answers to their runs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import PHONE, Page
from tests.support.servers import ServerProcess

if TYPE_CHECKING:
    from selenium import webdriver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # of which a few seconds, where nobody else is

WHOLE = """
    import litserve as ls

    class API(ls.LitAPI):
        def setup(self, device):
            pass

        def decode_request(self, request):
            return request["x"]

        def predict(self, x):
            return x * 2

        def encode_response(self, output):
            return {"y": output}

    if __name__ == "__main__":
        ls.LitServer(API()).run()
"""
TENSORS = """
    import numpy as np
    from pytriton.decorators import batch
    from pytriton.model_config import Tensor
    from pytriton.triton import Triton

    @batch
    def add(a, b):
        return {"sum": a + b}

    with Triton() as triton:
        triton.bind(
            model_name="add",
            infer_func=add,
            inputs=[Tensor(name="a", dtype=np.float32, shape=(2,)), Tensor(name="b", dtype=np.float32, shape=(-1,))],
            outputs=[Tensor(name="sum", dtype=np.float32, shape=(-1,))],
        )
        triton.serve()
"""


TRUSS = {
    "config.yaml": "model_metadata: {example_model_input: {text: over the hills}}",
    "examples.yaml": "- {name: short, input: {text: and}}\n- {name: wrong, input: {words: 1}}\n",
    "model/model.py": "class Model:\n    def predict(self, inputs):\n        return inputs['text'].upper()\n",
}


def serve(files: dict[str, str], folder: Path, driver: webdriver.Chrome) -> Iterator[Page]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))
    place = folder / name if len(files) == 1 else folder
    process = ServerProcess(str(place), grpc=("--grpc-port", "off"))
    url = process.wait_for("listening")["url"]
    process.wait_for("ready")
    shown = Page(driver, f"{url}/")
    shown.hosts()
    shown.complaints()
    yield shown
    assert shown.complaints() == []
    process.end()


@pytest.fixture
def whole(driver: webdriver.Chrome, tmp_path: Path) -> Iterator[Page]:
    """The page of a model of LitServe, which takes requests as they come."""
    yield from serve({"server.py": WHOLE}, tmp_path, driver)


@pytest.fixture
def tensors(driver: webdriver.Chrome, tmp_path: Path) -> Iterator[Page]:
    """The page of a model of PyTriton, which takes tensors of the names that it declares."""
    yield from serve({"server.py": TENSORS}, tmp_path, driver)


@pytest.fixture
def exampled(driver: webdriver.Chrome, tmp_path: Path) -> Iterator[Page]:
    """The page of a Truss whose files have examples."""
    yield from serve(TRUSS, tmp_path / "shouts", driver)


def names_of_fields(page: Page) -> list[str]:
    return [str(each.get_attribute("data-field")) for each in page.all("[data-field]")]


def test_model_that_takes_requests_whole(whole: Page) -> None:
    whole.open_model("server")
    assert names_of_fields(whole)[:3] == ["body", "file", "content_type"]
    whole.write("body", '{"x": 21}')
    whole.run()
    assert whole.answer() == {"y": 42}
    whole.write("body", '{"z": 21}')
    whole.run("Failed")
    assert "KeyError" in whole.text(".failure-text")
    assert whole.faults() == []
    whole.resize(PHONE)
    assert not whole.is_too_wide()


def test_model_that_takes_tensors(tensors: Page) -> None:
    tensors.open_model("add")
    assert names_of_fields(tensors)[:2] == ["tensors", "parameters"]
    tensors.click('[aria-label="Fill Tensors with an example"]')
    box = tensors.find(f"{tensors.field('tensors')} textarea")
    assert json.loads(str(box.get_attribute("value"))) == {"a": [[0, 0]], "b": [[0]]}
    tensors.run()
    assert tensors.answer() == {"sum": {"datatype": "FP32", "shape": [1, 2], "data": [[0, 0]]}}
    tensors.write("tensors", '{"a": [[1, 2], [3, 4]], "b": [[10], [20.5]]}')
    tensors.run()
    assert tensors.answer()["sum"]["data"] == [[11, 12], [23.5, 24.5]]
    tensors.write("tensors", '{"a": [["one", "two"]], "b": [[10]]}')
    tensors.run("Failed")
    assert "tensors.a: it is no tensor: its elements are no FP32" in tensors.text(".failure-text")
    assert tensors.faults() == []


def test_examples_in_the_files_of_a_model(exampled: Page) -> None:
    exampled.open_model("shouts")
    buttons = exampled.all(".example")
    assert len(buttons) == 3
    assert "over the hills" in buttons[0].text
    buttons[0].click()
    exampled.run()
    assert exampled.text(".result-body").startswith("OVER THE HILLS")
    exampled.all(".example")[2].click()
    exampled.run("Failed")
    assert "KeyError" in exampled.text(".failure-text")
    exampled.all(".example")[1].click()
    exampled.run()
    assert exampled.answer() == "AND"
    assert exampled.faults() == []
