"""Text generation for many at once: requests join a loop of steps, each with one token for all that are there."""

from collections.abc import Iterator
from pathlib import Path

import torch
from make_weights import make_weights
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from geartrain import BaseRunner, Batch, ConcatenateIterator, Input, LiveRequest, current_scope, joint, streaming
from geartrain.openai import Detokenizer

WEIGHTS = Path("weights")


class Prompt:
    prompt: str = Input(description="The beginning of the text", min_length=1, max_length=10_000)
    max_tokens: int = Input(description="The most tokens to make", ge=1, le=4096, default=64)


Live = LiveRequest[Prompt, Iterator[str]]


class Text:
    """A text under way."""

    def __init__(self, ids: list[int], pieces: Detokenizer) -> None:
        self.length = len(ids)  # tokens that the model has read
        self.last = 0  # the token that it reads next
        self.made = 0
        self.pieces = pieces


class Rows:
    """The keys and values of several texts, (texts, heads, tokens, size) in each layer, filled up on the left."""

    def __init__(self) -> None:
        self.past = DynamicCache()
        self.mask = torch.zeros(0, 0, dtype=torch.long)  # (texts, tokens)

    def add(self, read: DynamicCache, free: int | None) -> None:
        """Add a text: in a free place, or behind the others."""
        if not len(self.mask):
            self.past, self.mask = read, torch.ones(1, read.get_seq_length(), dtype=torch.long)
            return
        new = read.get_seq_length()
        more = max(0, new - self.mask.shape[1])
        self.mask = pad(self.mask, (more, 0))
        width = self.mask.shape[1]
        own = pad(torch.ones(1, new, dtype=torch.long), (width - new, 0))
        self.mask = _placed(self.mask, own, free)
        for layer, theirs in zip(self.past.layers, read.layers, strict=True):
            left = (0, 0, width - new, 0)
            layer.keys = _placed(pad(layer.keys, (0, 0, more, 0)), pad(theirs.keys, left), free)
            layer.values = _placed(pad(layer.values, (0, 0, more, 0)), pad(theirs.values, left), free)

    def keep(self, places: list[int]) -> None:
        """Drop all but these texts."""
        self.mask = self.mask[places]
        for layer in self.past.layers:
            layer.keys, layer.values = layer.keys[places], layer.values[places]

    def trim(self) -> None:
        """Drop the columns on the left that no text has."""
        first = int(self.mask.argmax(1).min())
        if first:
            self.mask = self.mask[:, first:]
            for layer in self.past.layers:
                layer.keys, layer.values = layer.keys[:, :, first:], layer.values[:, :, first:]


def _placed(rows: torch.Tensor, row: torch.Tensor, free: int | None) -> torch.Tensor:
    if free is None:
        return torch.cat([rows, row])
    rows[free] = row[0]
    return rows


class Runner(BaseRunner):
    def setup(self) -> None:
        if not WEIGHTS.exists():
            make_weights(WEIGHTS)  # a toy, made in seconds. Put the folder of your own model here instead
        self.device = current_scope().device  # cuda:0, or cpu where there is no GPU
        self.tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
        self.model = AutoModelForCausalLM.from_pretrained(WEIGHTS).to(self.device).eval()
        self.longest = self.model.config.max_position_embeddings

    @joint(max_size=32)
    @streaming
    @torch.inference_mode()
    def run(self, batch: Batch[Prompt, ConcatenateIterator[str]]) -> None:
        rows = Rows()
        members: list[Live] = []
        for live in batch:  # a step; who has come since is in it, and who has ended or left no longer is
            members = self.gather(rows, members, live)
            if members:
                self.step(rows, members)

    def gather(self, rows: Rows, members: list[Live], live: list[Live]) -> list[Live]:
        """Take out of the rows who has gone, and add who is new; return the requests of the rows in their order."""
        free = [place for place, request in enumerate(members) if not request.is_live]
        for request in live:
            if request.is_new and self.begin(rows, request, free[0] if free else None):
                if free:
                    members[free.pop(0)] = request
                else:
                    members.append(request)
        if free:
            stay = [place for place in range(len(members)) if place not in free]
            rows.keep(stay)
            members = [members[place] for place in stay]
        if members:
            rows.trim()
        return members

    def begin(self, rows: Rows, request: Live, free: int | None) -> bool:
        """Read a prompt, whose first token comes with it; return True if there is more to come."""
        ids = self.tokenizer(request.inputs.prompt).input_ids
        if len(ids) >= self.longest:
            request.fail(f"the prompt has {len(ids)} tokens; this model takes fewer than {self.longest}")
            return False
        request.state = Text(ids, Detokenizer(self.tokenizer, after=ids))
        read = self.model(torch.tensor([ids], device=self.device), use_cache=True)
        self.give(request, int(read.logits[0, -1].argmax()))
        if request.is_live:
            rows.add(read.past_key_values, free)
        return request.is_live

    def step(self, rows: Rows, members: list[Live]) -> None:
        """Make one token for each."""
        texts = [request.state for request in members]
        rows.mask = pad(rows.mask, (0, 1), value=1)
        made = self.model(
            torch.tensor([[text.last] for text in texts], device=self.device),
            attention_mask=rows.mask.to(self.device),
            position_ids=torch.tensor([[text.length] for text in texts], device=self.device),
            past_key_values=rows.past,
            use_cache=True,
        )
        for request, token in zip(members, made.logits[:, -1].argmax(-1).tolist(), strict=True):
            request.state.length += 1
            self.give(request, token)

    def give(self, request: Live, token: int) -> None:
        """Send what a token adds to the text; end the request if it is the last one."""
        text = request.state
        text.last = token
        text.made += 1
        is_end = token == self.tokenizer.eos_token_id
        piece = "" if is_end else text.pieces.add(token)
        is_last = is_end or text.made == request.inputs.max_tokens or text.length + 1 >= self.longest
        if is_last:
            piece += text.pieces.end()
        if piece:
            request.send(piece)
        if is_last:
            with request:
                current_scope().record_metric("generated_tokens", text.made)
            request.end()
