"""Says what it hears."""

from geartrain import BaseRunner


class Runner(BaseRunner):
    def run(self, text: str = "hello") -> str:
        return f"v2: {text}"
