"""The smallest model: text in, text out."""

from geartrain import BaseRunner, Input


class Runner(BaseRunner):
    def run(self, name: str = Input(description="Whom to greet", default="world")) -> str:
        return f"Hello, {name}!"
