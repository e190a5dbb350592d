import tempfile
from pathlib import Path as LocalPath
from typing import List

from cog import BasePredictor, Path


class Predictor(BasePredictor):
    def predict(self, count: int) -> List[Path]:
        folder = LocalPath(tempfile.mkdtemp())
        for number in range(count):
            path = folder / f"{number}.txt"
            path.write_text(f"file {number}")
            yield Path(path)
