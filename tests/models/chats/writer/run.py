"""Writes in capitals what it is told to."""

from geartrain import BaseRunner, ConcatenateIterator, Input


class Runner(BaseRunner):
    def run(self, prompt: str, max_new_tokens: int = Input(default=9, ge=1)) -> ConcatenateIterator[str]:
        for word in prompt.upper().split()[:max_new_tokens]:
            yield word + " "
