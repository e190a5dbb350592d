"""Tests of the models in this folder, as clients see them: `pytest examples/pipeline`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain import Client
from geartrain.testing import runner, serve

HERE = Path(__file__).parent
PAGE = HERE / "page.png"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serve(HERE) as server, Client(server.url) as client:
        yield client


def test_the_detector_finds_each_digit() -> None:
    with runner(HERE / "detector") as run:
        found = run(image=PAGE)
    assert (found.boxes.shape, found.pixels.shape) == ((10, 4), (10, 64))


def test_a_page_is_read_in_two_stages(client: Client) -> None:
    read = client.model("read_page").predict(image=PAGE)
    assert "".join(map(str, read["digits"])) == "3141592653"
    left, top, right, bottom = read["boxes"][0]
    assert 30 <= left < right <= 78
    assert 30 <= top < bottom <= 78


def test_each_stage_answers_by_itself(client: Client) -> None:
    found = client.model("detector").predict(image=PAGE)
    assert client.model("reader").predict(pixels=found["pixels"][:3])["label"] == [3, 1, 4]
