"""Makes reader/digits.onnx and page.png from the handwritten digits that come with scikit-learn.

The reader learns from digits as the detector cuts them out, and the page has digits that it has not seen.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

HERE = Path(__file__).parent
LINES = ("31415", "92653")
SIDE, SPACE = 48, 30  # pixels of a digit on the page, and between two of them

sys.path.insert(0, str(HERE / "detector"))
from run import tile  # type: ignore[attr-defined]  # noqa: E402


def drawn(picture: np.ndarray) -> np.ndarray:
    """Enlarge a picture of the data set; 0 is paper, 1 is ink."""
    grey = Image.fromarray((picture.reshape(8, 8) * 15.9).astype(np.uint8))
    return np.asarray(grey.resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.float32) / 255


def cut(ink: np.ndarray) -> np.ndarray:
    """Cut a digit out as the detector does."""
    rows, columns = (np.flatnonzero((ink > 0.3).any(axis)) for axis in (1, 0))
    return tile(ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])


pictures, digits = load_digits(return_X_y=True)
known, others, known_digits, other_digits = train_test_split(pictures, digits, test_size=0.2, random_state=0)
model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
model.fit(np.array([cut(drawn(picture)) for picture in known], np.float32), known_digits)
right = model.score(np.array([cut(drawn(picture)) for picture in others], np.float32), other_digits)
print(f"right on {right:.1%} of {len(others)} digits that it has not seen")
exported = to_onnx(
    model,
    name="digits",
    initial_types=[("pixels", FloatTensorType([None, 64]))],
    options={"zipmap": False},  # the probabilities as a tensor, and not as a list of dicts
    target_opset=17,
)
(HERE / "reader" / "digits.onnx").write_bytes(exported.SerializeToString())

page = np.zeros((SPACE + (SIDE + SPACE) * len(LINES), SPACE + (SIDE + SPACE) * len(LINES[0])), np.float32)
used: dict[str, int] = {}
for row, line in enumerate(LINES):
    for column, digit in enumerate(line):
        used[digit] = used.get(digit, 0) + 1
        top, left = (SPACE + at * (SIDE + SPACE) for at in (row, column))
        page[top : top + SIDE, left : left + SIDE] = drawn(others[other_digits == int(digit)][used[digit]])
Image.fromarray(((1 - page) * 255).astype(np.uint8)).save(HERE / "page.png")
