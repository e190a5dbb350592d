"""The least that a model of any tensors does, as a coroutine."""

from geartrain import BaseRunner, Tensors


class Runner(BaseRunner):
    async def run(self, tensors: Tensors) -> Tensors:
        return Tensors({"output": tensors["input"] + 1})
