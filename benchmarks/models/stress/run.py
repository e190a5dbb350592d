"""Does what a prediction can do: says, gives, takes its time, makes a file, fails. One slot."""

import tempfile
import time
from typing import Any

from geartrain import BaseRunner, Path, streaming


class Runner(BaseRunner):
    @streaming
    def run(self, text: str, steps: int = 1, pause: float = 0.0, end: str = "text") -> Any:
        for step in range(steps):
            print(text, step)
            time.sleep(pause)
        self.record_metric("steps", steps)
        if end == "failure":
            raise ValueError(text)
        if end == "file":
            with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
                file.write(text)
            return Path(file.name)
        return text
