"""Text that comes word by word: what `run()` yields is sent at once."""

import time
from collections.abc import Iterator

from geartrain import BaseRunner, ConcatenateIterator, Input, streaming


class Runner(BaseRunner):
    # ConcatenateIterator says that the pieces are one text. `@streaming` lets clients read them as server-sent events.
    @streaming
    def run(
        self,
        prompt: str = Input(description="What to say again, word by word", min_length=1),
        pause: float = Input(description="Seconds between two words", ge=0, le=10, default=0.1),
    ) -> ConcatenateIterator[str]:
        try:
            yield from spoken(prompt, pause)
        finally:
            # A client that leaves cancels its prediction: what was begun is ended here.
            print("done")


def spoken(prompt: str, pause: float) -> Iterator[str]:
    """Yield the words of a text."""
    for word in prompt.split():
        yield f"{word} "
        time.sleep(pause)
