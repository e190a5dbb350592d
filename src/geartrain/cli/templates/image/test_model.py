"""Tests of the model beside this file: `pytest`."""

from pathlib import Path

import pytest
from PIL import Image

from geartrain.testing import InvalidInputError, call

MODEL = Path(__file__).parent


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """A white square on black."""
    path = tmp_path / "square.png"
    square = Image.new("RGB", (40, 30))
    square.paste((255, 255, 255), (10, 10, 20, 20))
    square.save(path)
    return path


def test_blurs(picture: Path) -> None:
    with Image.open(call(MODEL, image=picture, radius=3)) as blurred:
        assert blurred.size == (40, 30)
        pixel = blurred.getpixel((9, 15))  # beside the square
        assert isinstance(pixel, tuple)
        assert 0 < pixel[0] < 255


def test_radius_has_a_limit(picture: Path) -> None:
    with pytest.raises(InvalidInputError, match="-1 is less than the minimum of 0"):
        call(MODEL, image=picture, radius=-1)
