"""Makes digits.onnx: train on scikit-learn's handwritten digits, export with skl2onnx. Run again, it gives the same."""

from pathlib import Path

from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

FILE = Path(__file__).with_name("digits.onnx")
PIXELS = 64  # 8 x 8, row by row, from 0 for paper to 16 for ink


def main() -> None:
    pictures, digits = load_digits(return_X_y=True)
    train, held_out, train_digits, held_out_digits = train_test_split(
        pictures, digits, test_size=0.2, random_state=0, stratify=digits
    )
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=200)).fit(train, train_digits)
    exported = to_onnx(
        model,
        name="digits",
        initial_types=[("pixels", FloatTensorType([None, PIXELS]))],
        options={"zipmap": False},  # the probabilities as a tensor, and not as a list of dicts
        target_opset=17,
    )
    exported.doc_string = "Handwritten digits: 64 pixels from 0 to 16 in, the digit and its probabilities out."
    FILE.write_bytes(exported.SerializeToString())
    print(f"right on {model.score(held_out, held_out_digits):.1%} of {len(held_out)} other pictures: {FILE.name}")


if __name__ == "__main__":
    main()
