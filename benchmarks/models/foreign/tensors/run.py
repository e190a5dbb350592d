"""The least that a model of any tensors does."""

from geartrain import BaseRunner, Tensors


class Runner(BaseRunner):
    def run(self, tensors: Tensors) -> Tensors:
        return Tensors({"output": tensors["input"] + 1})
