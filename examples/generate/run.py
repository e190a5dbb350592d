"""Text generation with `transformers`: tokens are sent as they are made, and a cancel stops the model."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import perf_counter

import torch
from make_weights import make_weights
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteria, TextIteratorStreamer

from geartrain import BaseRunner, ConcatenateIterator, Input, current_scope, streaming

WEIGHTS = Path("weights")


class Stop(StoppingCriteria):
    """Ends a generation once `event` is set. `transformers` asks after each token."""

    def __init__(self, event: Event) -> None:
        self.event = event

    def __call__(self, input_ids: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return torch.full((len(input_ids),), self.event.is_set(), device=input_ids.device)


class Runner(BaseRunner):
    def setup(self) -> None:
        if not WEIGHTS.exists():
            make_weights(WEIGHTS)  # a toy, made in seconds. Put the folder of your own model here instead
        self.device = current_scope().device  # cuda:0, or cpu where there is no GPU
        self.tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
        self.model = AutoModelForCausalLM.from_pretrained(WEIGHTS).to(self.device).eval()
        self.longest = self.model.config.max_position_embeddings
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="generate")

    @streaming
    def run(
        self,
        prompt: str = Input(description="The beginning of the text", min_length=1, max_length=10_000),
        max_tokens: int = Input(description="The most tokens to make", ge=1, le=4096, default=64),
        temperature: float = Input(description="0 takes the likeliest token each time", ge=0, le=2, default=0.0),
        seed: int = Input(description="The same seed and inputs give the same text", ge=0, default=0),
    ) -> ConcatenateIterator[str]:
        inputs = self.tokenizer(prompt, return_tensors="pt").to(self.device)
        prompt_tokens = inputs.input_ids.shape[1]
        if prompt_tokens >= self.longest:
            raise ValueError(f"the prompt has {prompt_tokens} tokens; this model takes fewer than {self.longest}")
        options = {
            "max_new_tokens": min(max_tokens, self.longest - prompt_tokens),
            "do_sample": temperature > 0,
            **({"temperature": temperature} if temperature > 0 else {}),
        }
        yield from self.generate(inputs, options, seed)

    def generate(self, inputs: dict[str, torch.Tensor], options: dict[str, object], seed: int) -> Iterator[str]:
        """Yield the text in pieces, and record how many tokens there were and how long they took."""
        stop = Event()
        pieces = TextIteratorStreamer(self.tokenizer, skip_prompt=True, skip_special_tokens=True)

        def work() -> torch.Tensor:
            try:
                torch.manual_seed(seed)
                return self.model.generate(**inputs, **options, streamer=pieces, stopping_criteria=[Stop(stop)])
            finally:
                pieces.end()  # also if it raised: the loop below would wait for ever

        begin, first = perf_counter(), None
        made = self.thread.submit(work)
        try:
            for piece in pieces:
                first = first or perf_counter()
                if piece:
                    yield piece
        finally:
            stop.set()  # a cancel comes here from the `yield`, or from the wait for the next piece
            tokens = made.result()  # ends with the token that is being made; raises what generate() raised
            report(inputs["input_ids"].shape[1], tokens.shape[1], begin, first or perf_counter())


def report(prompt_tokens: int, tokens: int, begin: float, first: float) -> None:
    """Record the metrics that clients see in the prediction: counts, and times in seconds."""
    end, generated = perf_counter(), tokens - prompt_tokens
    scope = current_scope()
    scope.record_metric("prompt_tokens", prompt_tokens)
    scope.record_metric("generated_tokens", generated)
    scope.record_metric("time_to_first_token", first - begin)
    scope.record_metric("tokens_per_second", generated / (end - begin))
