"""Tells a story, word by word. It waits in the middle until there is a file GATES/story."""

import os
import pathlib
import time

from geartrain import BaseRunner, ConcatenateIterator, Input, current_scope, streaming

TEXT = (
    "In a workshop by the river two gears met on one shaft. The small one turned fast and talked all day; the large "
    "one turned slowly and moved the mill. Neither could have done it alone. **That is a gear train.**"
).split(" ")


class Runner(BaseRunner):
    @streaming
    def run(
        self, opening: str = Input(description="How the story begins.", default="Once upon a time.")
    ) -> ConcatenateIterator[str]:
        yield opening
        for number, word in enumerate(TEXT, 1):
            print(f"word {number} of {len(TEXT)}")
            current_scope().record_metric("words", number)
            yield " " + word
            while number == 24 and not pathlib.Path(os.environ["GATES"], "story").exists():
                time.sleep(0.01)
