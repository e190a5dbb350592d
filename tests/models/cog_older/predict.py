"""The older style: `BasePredictor`, `predict()`, and the capitalised names of `typing`."""

import os
import tempfile
from typing import Dict, List, Optional

from cog import BasePredictor, File, Input, Path


class Predictor(BasePredictor):
    def setup(self) -> None:
        """Load what every prediction needs."""
        self.greeting = os.environ["GREETING"]
        self.upper = {"loud": str.upper, "quiet": str.lower, "plain": str}

    def predict(
        self,
        text: str = Input(description="What to say", min_length=1, max_length=100),
        voice: str = Input(description="How to say it", choices=["loud", "quiet", "plain"], default="plain"),
        times: int = Input(description="How often", ge=1, le=5, default=1),
        weights: List[float] = Input(description="Numbers to add up", default=[]),
        options: Dict = Input(description="Anything", default={}),
        attachment: Optional[Path] = Input(description="A file to count the bytes of", default=None),
        notes: Optional[File] = Input(description="A file to read the first line of", default=None),
    ) -> List[Path]:
        """Write each repetition into a file of its own."""
        lines = [self.upper[voice](f"{self.greeting}, {text}")] * times
        if weights:
            lines.append(f"sum {sum(weights)}")
        if options:
            lines.append(f"options {sorted(options)}")
        if attachment is not None:
            with open(attachment, "rb") as opened:
                lines.append(f"{len(opened.read())} bytes")
        if notes is not None:
            lines.append(notes.read().decode().splitlines()[0])
        folder = tempfile.mkdtemp()
        paths = []
        for index, line in enumerate(lines):
            path = os.path.join(folder, f"line-{index}.txt")
            with open(path, "w") as opened:
                opened.write(line)
            paths.append(Path(path))
        print(f"wrote {len(paths)} files")
        return paths
