"""Vectors of the groups of letters in a text: texts with the same words lie close to each other."""

import zlib

from geartrain import BaseRunner, Input

SIZE = 256


class Runner(BaseRunner):
    """Counts the groups of letters of a text."""

    def run(
        self,
        texts: list[str],
        letters: int = Input(default=3, ge=1, le=6, description="Letters of a group"),
    ) -> list[list[float]]:
        """Return a vector for each text."""
        return [self.count(text.lower(), letters) for text in texts]

    def count(self, text: str, letters: int) -> list[float]:
        """Return how often each group is in a text."""
        vector = [0.0] * SIZE
        for begin in range(max(1, len(text) - letters + 1)):
            vector[zlib.crc32(text[begin : begin + letters].encode()) % SIZE] += 1.0
        return vector
