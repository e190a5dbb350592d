"""Tests of the model beside this file: `pytest`."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from geartrain.testing import runner
from geartrain.testing.runs import Run

MODEL = Path(__file__).parent


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with runner(MODEL) as run:  # setup() runs once
        yield run


def png(shape: str) -> bytes:
    """Draw a shape with edges that the training did not draw."""
    picture = Image.new("RGB", (300, 200), "white")
    pen = ImageDraw.Draw(picture)
    if shape == "circle":
        pen.ellipse((80, 30, 220, 170), fill="navy")
    else:
        pen.regular_polygon((150, 100, 80), {"triangle": 3, "square": 4}[shape], fill="navy")
    data = io.BytesIO()
    picture.save(data, "PNG")
    return data.getvalue()


@pytest.mark.parametrize("shape", ["circle", "square", "triangle"])
def test_tells_shapes_apart(run: Run, shape: str) -> None:
    answer = run(image=png(shape))
    assert answer.label == shape
    assert sum(answer.probabilities.values()) == pytest.approx(1, abs=1e-3)


def test_file_that_is_no_picture_fails_alone(run: Run) -> None:
    square, broken, circle = run.batch([{"image": data} for data in (png("square"), b"text", png("circle"))])
    assert (square.label, circle.label) == ("square", "circle")
    assert isinstance(broken, OSError)
    assert "cannot identify image file" in str(broken)
