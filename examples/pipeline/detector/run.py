"""A picture of a page in; the boxes of the digits on it out, and each of them as 64 pixels, in the order of reading."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int64
from PIL import Image

from geartrain import BaseRunner, Input, Path

SIDE = 8  # pixels of a digit, as the reader takes them
INK = 16.0  # of a black pixel
FAINT = 0.3  # part of the darkest pixel; fainter ones are paper


class Found(NamedTuple):
    boxes: Int64[np.ndarray, "n 4"]  # left, top, right, bottom
    pixels: Float32[np.ndarray, "n 64"]


class Runner(BaseRunner):
    def run(self, image: Path = Input(description="A page with digits, dark on light", accept="image/*")) -> Found:
        with Image.open(image) as picture:
            ink = 1 - np.asarray(picture.convert("L"), np.float32) / 255
        dark = ink > FAINT * ink.max()
        boxes, tiles = [], []
        for top, bottom in runs(dark.any(axis=1)):  # the lines of the page
            for left, right in runs(dark[top:bottom].any(axis=0)):
                rows = np.flatnonzero(dark[top:bottom, left:right].any(axis=1))
                box = (left, top + rows[0], right, top + rows[-1] + 1)
                boxes.append(box)
                tiles.append(tile(ink[box[1] : box[3], left:right]))
        return Found(np.array(boxes, np.int64).reshape(-1, 4), np.array(tiles, np.float32).reshape(-1, SIDE * SIDE))


def runs(flags: Bool[np.ndarray, " n"]) -> list[tuple[int, int]]:
    """Return the begin and the end of each row of flags that are set."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def tile(ink: Float32[np.ndarray, "height width"]) -> Float32[np.ndarray, "64"]:
    """Scale a digit to the height of a tile, and centre it."""
    height, width = ink.shape
    wide = min(SIDE, max(1, round(width * SIDE / height)))
    scaled = Image.fromarray((ink * 255).astype(np.uint8)).resize((wide, SIDE), Image.Resampling.BOX)
    square = np.zeros((SIDE, SIDE), np.float32)
    left = (SIDE - wide) // 2
    square[:, left : left + wide] = np.asarray(scaled, np.float32) / 255 * INK
    return square.ravel()
