"""The model of examples/together in closed batches: one `generate()` for all, as long as the longest takes."""

import torch

from geartrain import Input, batched
from steps import Runner as Steps


class Runner(Steps):
    def setup(self) -> None:
        super().setup()
        self.tokenizer.padding_side = "left"
        self.model.generation_config.eos_token_id = None

    @batched(max_size=32)
    @torch.inference_mode()
    def run(self, prompt: list[str], max_tokens: list[int] = Input(default=64, ge=1)) -> list[str]:
        inputs = self.tokenizer(prompt, return_tensors="pt", padding=True)
        made = self.model.generate(**inputs, max_new_tokens=max(max_tokens), do_sample=False)
        begin = inputs.input_ids.shape[1]
        return [self.tokenizer.decode(ids[begin : begin + most]) for ids, most in zip(made, max_tokens, strict=True)]
