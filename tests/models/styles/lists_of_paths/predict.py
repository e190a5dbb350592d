import tempfile
from pathlib import Path as LocalPath
from typing import Iterator, List

from cog import BasePredictor, Path


class Predictor(BasePredictor):
    def predict(self, rounds: int = 2) -> Iterator[List[Path]]:
        folder = LocalPath(tempfile.mkdtemp())
        for number in range(rounds):
            paths = []
            for side in ("left", "right"):
                path = folder / f"{side}-{number}.txt"
                path.write_text(f"{side} {number}")
                paths.append(Path(path))
            yield paths
