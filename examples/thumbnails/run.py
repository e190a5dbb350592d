"""A picture in, smaller ones out: files by URL in both directions."""

import tempfile

from PIL import Image

from geartrain import BaseRunner, Input, Path


class Runner(BaseRunner):
    def run(
        self,
        image: Path = Input(description="A picture", accept="image/*"),
        widths: list[int] = Input(description="Pixels, one picture for each", default=[64]),
    ) -> list[Path]:
        folder = Path(tempfile.mkdtemp())  # what a run gives from a temporary folder is deleted when it is over
        thumbnails = []
        with Image.open(image) as picture:
            for width in widths:
                height = max(1, round(picture.height * width / picture.width))
                thumbnails.append(folder / f"{width}.png")
                picture.convert("RGB").resize((width, height)).save(thumbnails[-1])
        return thumbnails
