"""Handwritten digits: a picture in, the digit and its probabilities out."""

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

from geartrain import BaseModel, BaseRunner, Input, Path

Ink = npt.NDArray[np.float64]  # rows x columns, 0 is paper and 1 is ink

SIDE = 8  # the data set's pictures are 8 x 8
FAINT = 0.3  # what is fainter is paper: shadows, the noise of a JPEG
LARGEST = 50_000_000  # pixels


class Answer(BaseModel):
    digit: int
    probabilities: list[float]


class Runner(BaseRunner):
    def setup(self) -> None:
        pictures, digits = load_digits(return_X_y=True)
        inputs = np.array([as_input(enlarge(picture.reshape(SIDE, SIDE) / 16)) for picture in pictures])
        train, held_out, train_digits, held_out_digits = train_test_split(
            inputs, digits, test_size=0.2, random_state=0, stratify=digits
        )
        self.classifier = CalibratedClassifierCV(SVC(C=10, gamma=0.3), ensemble=False).fit(train, train_digits)
        accuracy = self.classifier.score(held_out, held_out_digits)
        print(f"trained on {len(train)} pictures, right on {accuracy:.1%} of {len(held_out)} others")

    def run(self, image: Path = Input(description="A picture of one digit, dark on light or light on dark")) -> Answer:
        with Image.open(image) as picture:
            if picture.width * picture.height > LARGEST:
                raise ValueError(f"the picture has more than {LARGEST:,} pixels")
            ink = find_ink(picture)
        probabilities = self.classifier.predict_proba([as_input(ink)])[0]
        return Answer(digit=int(probabilities.argmax()), probabilities=[round(float(p), 4) for p in probabilities])


def find_ink(picture: Image.Image) -> Ink:
    """Tell ink from paper, whichever of the two is the darker one."""
    if picture.mode.startswith("I"):  # 16 bits of grey, which pillow would clip
        picture = picture.convert("F").point(lambda value: value * (1 / 256) + 0)
    picture = ImageOps.exif_transpose(picture).convert("LA")
    picture.thumbnail((256, 256))
    grey, alpha = np.moveaxis(np.asarray(picture, dtype=np.float64) / 255, 2, 0)
    if alpha.min() < 1:  # on a transparent page: lay paper under it that the ink stands out from
        drawn = grey[alpha > 0.5]
        paper = 0.0 if drawn.size and drawn.mean() > 0.5 else 1.0
        grey = grey * alpha + paper * (1 - alpha)
    edge = np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
    ink = np.abs(grey - np.median(edge))
    if ink.max() < 0.1:
        raise ValueError("the picture is all of one colour: there is no digit in it")
    strength: Ink = ink / ink.max()
    return strength


def as_input(ink: Ink) -> Ink:
    """Crop to the ink, centre it in a square, and scale that to the data set's size: SIDE * SIDE numbers."""
    rows, columns = np.flatnonzero((ink > FAINT).any(axis=1)), np.flatnonzero((ink > FAINT).any(axis=0))
    ink = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    height, width = ink.shape
    side = max(height, width)
    top, left = (side - height) // 2, (side - width) // 2
    square = np.zeros((side, side))
    square[top : top + height, left : left + width] = ink
    return scale(square, SIDE, Image.Resampling.BOX).ravel()


def enlarge(ink: Ink) -> Ink:
    """Bring a picture of the data set to the size of a small photograph, so that both go the same way."""
    return scale(ink, 20 * SIDE, Image.Resampling.BICUBIC)


def scale(square: Ink, side: int, how: Image.Resampling) -> Ink:
    picture = Image.fromarray((square * 255).astype(np.uint8)).resize((side, side), how)
    return np.asarray(picture, dtype=np.float64) / 255
