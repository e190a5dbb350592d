"""A model: setup() runs once, run() for each prediction."""

from geartrain import BaseRunner, Input


class Runner(BaseRunner):
    def setup(self) -> None:
        # Load weights here. Predictions are served once this has returned.
        self.greeting = "Hello"

    # Each parameter is an input of the API, checked before run() is called. Its annotation says what it takes: str,
    # int, float, bool, list[...], dict, Literal["a", "b"], geartrain's Path for a file and its Secret for a password.
    def run(
        self,
        name: str = Input(description="Whom to greet", min_length=1, default="world"),
        times: int = Input(description="How often", ge=1, le=10, default=1),
    ) -> str:
        # Printed text becomes the prediction's log.
        print(f"greeting {name}")
        # The returned value becomes its output: also a list, a dict, or a Path for a file. To send an output as it is
        # made, annotate Iterator[str] from collections.abc, and yield.
        return " ".join([f"{self.greeting}, {name}!"] * times)
