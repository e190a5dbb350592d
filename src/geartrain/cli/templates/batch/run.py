"""Many requests in one call of `run()`, as models on a GPU want it."""

from geartrain import BaseRunner, ItemError, batched


class Runner(BaseRunner):
    # The server gathers requests that come at the same time. Each client sends one text, and gets one result.
    @batched(max_size=16, max_delay=0.01)
    def run(self, text: list[str]) -> list[dict[str, int]]:
        print(f"a batch of {len(text)}")
        for index, each in enumerate(text):
            if not each.strip():
                # This request alone fails; the others are run again without it.
                raise ItemError(index, "the text has no words")
        return [{"words": len(each.split()), "letters": sum(map(str.isalpha, each))} for each in text]
