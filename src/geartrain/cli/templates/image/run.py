"""A picture in, a picture out: files of the request are paths in `run()`."""

import tempfile

from PIL import Image, ImageFilter

from geartrain import BaseRunner, Input, Path


class Runner(BaseRunner):
    # Clients send the picture as an upload or as a URL; `run()` gets a local file.
    def run(
        self,
        image: Path = Input(description="A picture", accept="image/*"),
        radius: float = Input(description="How much to blur it, in pixels", ge=0, le=100, default=4),
    ) -> Path:
        # A file in the folder for temporary files is deleted when the client has it.
        blurred = Path(tempfile.mkdtemp(), "blurred.png")
        with Image.open(image) as picture:
            print(f"blurring {picture.width} x {picture.height} pixels")
            picture.convert("RGB").filter(ImageFilter.GaussianBlur(radius)).save(blurred)
        return blurred
