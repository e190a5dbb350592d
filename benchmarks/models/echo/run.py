"""Gives back what it gets, after a while: one prediction at a time."""

import time

from geartrain import BaseRunner


class Runner(BaseRunner):
    def run(self, text: str, seconds: float = 0) -> str:
        time.sleep(seconds)
        return text
