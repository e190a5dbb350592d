"""Image classification with torch: a picture in, labels with their probabilities out."""

import pathlib

import numpy as np
import torch
from make_weights import make_weights
from network import LABELS, SIDE, Network
from PIL import Image, ImageOps

from geartrain import BaseModel, BaseRunner, Input, Path, batched, current_scope

WEIGHTS = pathlib.Path("weights/shapes.pt")
LARGEST = 50_000_000  # pixels


class Answer(BaseModel):
    label: str
    probabilities: dict[str, float]


class Runner(BaseRunner):
    def setup(self) -> None:
        if not WEIGHTS.exists():
            make_weights(WEIGHTS)  # shapes, learnt in seconds. Put the file and the network of your own here instead
        self.device = current_scope().device  # cuda:0, or cpu where there is no GPU
        self.network = Network()
        self.network.load_state_dict(torch.load(WEIGHTS, map_location=self.device, weights_only=True))
        self.network.to(self.device).eval()

    # A client sends one picture. `run()` gets the files of up to 32 requests, and answers each.
    @batched(max_size=32)
    def run(self, image: list[Path] = Input(description="A picture of a shape")) -> list[Answer | Exception]:
        read = [as_input(file) for file in image]
        good = [each for each in read if not isinstance(each, Exception)]
        answers = iter(self.classify(good) if good else [])
        return [each if isinstance(each, Exception) else next(answers) for each in read]

    def classify(self, pictures: list[torch.Tensor]) -> list[Answer]:
        with torch.inference_mode():
            rows = self.network(torch.stack(pictures).to(self.device)).softmax(dim=1).tolist()
        return [
            Answer(
                label=LABELS[row.index(max(row))],
                probabilities={label: round(share, 4) for label, share in zip(LABELS, row, strict=True)},
            )
            for row in rows
        ]


def as_input(file: Path) -> torch.Tensor | Exception:
    """Return a picture as the network takes it; an exception fails its own request, and none of the others."""
    try:
        with Image.open(file) as picture:
            if picture.width * picture.height > LARGEST:
                return ValueError(f"the picture has more than {LARGEST:,} pixels")
            grey = ImageOps.fit(ImageOps.exif_transpose(picture).convert("L"), (SIDE, SIDE))
    except (OSError, Image.DecompressionBombError) as error:
        return error
    return torch.from_numpy(np.asarray(grey, np.float32) / 255)[None]
