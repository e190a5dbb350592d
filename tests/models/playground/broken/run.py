"""Fails."""

from geartrain import BaseRunner


class Runner(BaseRunner):
    def run(self, teeth: int = 0) -> float:
        print("dividing")
        return 360 / teeth
