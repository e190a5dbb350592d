"""Language models of transformers: a folder with `config.json`, safetensors and a tokenizer.

The texts that are made at the same time share each step of the model (continuous batching): a text joins between two
steps, and leaves when it ends or is canceled.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any, Final

from geartrain.backends.guides import Guide, Guides, is_installed
from geartrain.backends.interface import BackendError
from geartrain.backends.libraries import note, require
from geartrain.backends.options import text, whole_number
from geartrain.backends.sampling import Sampler, Token
from geartrain.backends.text import Piece, PromptError, Sampling, TextBackend
from geartrain.backends.torch_device import choose_device, set_threads
from geartrain.openai import Detokenizer

_EXTRA: Final = "transformers"
_DTYPES: Final = ("auto", "float32", "bfloat16", "float16")
_LENGTHS: Final = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
_UNKNOWN_LENGTH: Final = 4096  # tokens, of a model whose configuration has no limit
_TOGETHER: Final = 32  # texts


class TransformersBackend(TextBackend):
    """A folder that `save_pretrained()` of a model for causal language has written, and its tokenizer too.

    Nothing is downloaded, and no code in the folder is run.
    """

    platform = "transformers"
    options = frozenset({"device", "dtype", "threads", "max_context", "slots"})

    def load(self) -> None:
        dtype = text(self.given, "dtype", choices=_DTYPES) or "auto"
        limit = whole_number(self.given, "max_context")
        self.slots = whole_number(self.given, "slots") or _TOGETHER
        if not any(self.path.glob("*.safetensors")):
            raise BackendError("there are no weights in it, *.safetensors; write them with save_pretrained()")
        # The library would look on the internet for what is not in the folder, and draw bars into the log.
        os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", TOKENIZERS_PARALLELISM="false")
        library = require("transformers", extra=_EXTRA)
        library.utils.logging.disable_progress_bar()
        torch = require("torch", extra=_EXTRA)
        device = choose_device(torch, self.given)
        threads = set_threads(torch, self.given)
        safe = {"local_files_only": True, "trust_remote_code": False}
        try:
            self.tokenizer = library.AutoTokenizer.from_pretrained(self.path, **safe)
            model = library.AutoModelForCausalLM.from_pretrained(self.path, dtype=dtype, use_safetensors=True, **safe)
        except Exception as error:
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise BackendError(f"transformers cannot load it: {type(error).__name__}: {first}") from error
        self.model = model = model.to(device).eval()
        self._take_templates()
        known = (getattr(model.config, name, None) for name in _LENGTHS)
        longest = next((length for length in known if isinstance(length, int)), _UNKNOWN_LENGTH)
        self._longest = min(longest, limit or longest)
        ends = self._ends(model)
        self._steps = Steps(torch, library, model, ends=ends, slots=self.slots)
        self.constrains = bool(ends) and is_installed() and getattr(self.tokenizer, "is_fast", False)
        self._guides = Guides(self.tokenizer, vocabulary=model.config.get_text_config().vocab_size, ends=sorted(ends))
        self.description = f"A language model ({type(model).__name__}) for up to {self._longest} tokens."
        note(f"{self.path.name}: transformers {library.__version__} on {device}, {model.dtype}, {threads} threads")

    def _take_templates(self) -> None:
        template = getattr(self.tokenizer, "chat_template", None)
        if isinstance(template, dict):
            template = template.get("default")
        self.chat_template = template
        tokens = getattr(self.tokenizer, "special_tokens_map", {})
        self.special_tokens_map = {name: token for name, token in tokens.items() if isinstance(token, str)}

    def _ends(self, model: Any) -> frozenset[int]:
        given = getattr(model.generation_config, "eos_token_id", None)
        ends = given if isinstance(given, list) else [given, self.tokenizer.eos_token_id]
        return frozenset(end for end in ends if end is not None)

    def _read(self, prompt: str) -> list[int]:
        """Return the tokens of a prompt. Raises `PromptError`."""
        ids: list[int] = self.tokenizer(prompt)["input_ids"]
        begin = self.tokenizer.bos_token_id
        if begin is not None and ids[:2] == [begin, begin]:  # that of the chat template, and that of the tokenizer
            del ids[0]
        if not ids:
            if begin is None:
                raise PromptError("The prompt has no tokens: it is empty.")
            ids = [begin]
        if len(ids) >= self._longest:
            limit = f"the model takes {self._longest}, those of its answer included"
            raise PromptError(f"The prompt has {len(ids)} tokens, and {limit}.")
        return ids

    async def generate(self, prompt: str, sampling: Sampling) -> AsyncGenerator[Piece]:
        ids = self._read(prompt)
        room = self._longest - len(ids)
        most = min(room, sampling.max_tokens or room)
        loop = asyncio.get_running_loop()
        made: asyncio.Queue[Token | Exception] = asyncio.Queue()

        def give(token: Token | Exception) -> None:
            with suppress(RuntimeError):  # the loop is closed: the worker ends
                loop.call_soon_threadsafe(made.put_nowait, token)

        guide = await asyncio.to_thread(self._guides.make, sampling.schema) if sampling.schema else None
        sequence = Sequence(ids, sampling, most=most, give=give, guide=guide)
        detokenizer = Detokenizer(self.tokenizer, after=ids)
        self._steps.add(sequence)
        try:
            count, reason = 0, ""
            while not reason:
                token = await made.get()
                if isinstance(token, Exception):
                    raise token
                count += 1
                reason = token.finish_reason
                piece = "" if reason == "stop" else detokenizer.add(token.id)
                if reason:
                    piece += detokenizer.end()
                yield Piece(piece, len(ids), count, self._logprobs(token), reason)
        finally:
            sequence.is_canceled = True

    def _logprobs(self, token: Token) -> tuple[Any, ...]:
        if token.logprob is None:
            return ()
        decode = self.tokenizer.decode
        top = [{"token": decode([each]), "logprob": logprob} for each, logprob in token.top]
        return ({"token": decode([token.id]), "logprob": token.logprob, "top": top},)

    def close(self) -> None:
        """End the thread of the steps."""
        if hasattr(self, "_steps"):
            self._steps.close()


class Sequence:
    """One text that is made."""

    def __init__(
        self,
        ids: list[int],
        sampling: Sampling,
        *,
        most: int,
        give: Callable[[Token | Exception], None],
        guide: Guide | None = None,
    ) -> None:
        """`ids` are the tokens of the prompt, `most` the most tokens to make; `give` gets each, or an error."""
        self.prompt = ids
        self.guide = guide
        self.sampling = sampling
        self.most = most
        self.give = give
        self.made: list[int] = []
        self.is_canceled = False
        self.sampler: Sampler | None = None

    @property
    def length(self) -> int:
        """The tokens so far, those of the prompt included."""
        return len(self.prompt) + len(self.made)


class _Batch:
    """Sequences that share the steps of a model, and what it remembers of them, padded on the left."""

    def __init__(self, sequences: list[Sequence], cache: Any, mask: Any) -> None:
        self.sequences = sequences
        self.cache = cache
        self.mask = mask  # of the tokens in the cache, a row for each sequence


class Steps:
    """The thread that makes tokens: a step of the model after the other, as long as there are sequences."""

    def __init__(self, torch: Any, library: Any, model: Any, *, ends: frozenset[int], slots: int) -> None:
        self._torch = torch
        self._model = model
        self._ends = ends
        self._slots = slots
        self._config = model.generation_config
        self._takes = frozenset(inspect.signature(model.forward).parameters)
        self._memory = "cache" if "cache" in self._takes else "past_key_values"  # by the version of transformers
        self._mergeable = library.cache_utils.DynamicLayer
        self._waiting: deque[Sequence] = deque()
        self._batches: list[_Batch] = []
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="geartrain-steps", daemon=True)
        self._thread.start()

    def add(self, sequence: Sequence) -> None:
        """Have a sequence join, as soon as there is place."""
        with self._changed:
            self._waiting.append(sequence)
            self._changed.notify()

    def close(self) -> None:
        """End after the current step."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(5)

    def _work(self) -> None:
        with self._torch.inference_mode():
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self._batches or self._is_closed)
                    if self._is_closed:
                        return
                    free = self._slots - sum(len(batch.sequences) for batch in self._batches)
                    joining = [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
                for sequence in joining:
                    if not sequence.is_canceled:
                        self._join(sequence)
                for batch in [*self._batches]:
                    try:
                        self._step(batch)
                    except Exception as error:  # noqa: BLE001 - it is the answer of their clients
                        self._fail(batch, error)

    def _join(self, sequence: Sequence) -> None:
        """Read the prompt of a sequence, make its first token, and put it to the others."""
        torch = self._torch
        try:
            sequence.sampler = Sampler(
                torch, sequence.sampling, self._config, prompt=sequence.prompt, guide=sequence.guide
            )
            ids = torch.tensor([sequence.prompt], device=self._model.device)
            mask = torch.ones_like(ids)
            options = {"logits_to_keep": 1} if "logits_to_keep" in self._takes else {}
            found = self._model(input_ids=ids, attention_mask=mask, use_cache=True, **options)
            batch = _Batch([sequence], found[self._memory], mask)
            self._take(batch, found.logits[:, -1])
        except Exception as error:  # noqa: BLE001 - it is the answer of this one's client
            sequence.give(error)
            return
        if not batch.sequences:
            return
        try:
            self._merge(batch)
        except Exception as error:  # noqa: BLE001 - such as a lack of memory
            for each in (batch, *self._batches[:1]):
                self._fail(each, error)

    def _merge(self, new: _Batch) -> None:
        """Put a batch to another one. What models with other kinds of memory remember stays by itself."""
        if not all(type(layer) is self._mergeable for layer in new.cache.layers):
            self._batches.append(new)
            return
        if not self._batches:
            self._batches.append(new)
            return
        pad, cat = self._torch.nn.functional.pad, self._torch.cat
        old = self._batches[0]
        size = max(old.mask.shape[1], new.mask.shape[1])
        for layer, other in zip(old.cache.layers, new.cache.layers, strict=True):
            for name in ("keys", "values"):
                parts = [getattr(each, name) for each in (layer, other)]
                setattr(layer, name, cat([pad(part, (0, 0, size - part.shape[2], 0)) for part in parts]))
        old.mask = cat([pad(part, (size - part.shape[1], 0)) for part in (old.mask, new.mask)])
        old.sequences += new.sequences

    def _step(self, batch: _Batch) -> None:
        """Make the next token of each sequence of a batch."""
        torch = self._torch
        self._keep(batch, [not sequence.is_canceled for sequence in batch.sequences])
        if not batch.sequences:
            return
        last = [[sequence.made[-1]] for sequence in batch.sequences]
        places = [[sequence.length - 1] for sequence in batch.sequences]
        device = self._model.device
        batch.mask = torch.nn.functional.pad(batch.mask, (0, 1), value=1)
        options = {"position_ids": torch.tensor(places, device=device)} if "position_ids" in self._takes else {}
        found = self._model(
            input_ids=torch.tensor(last, device=device),
            attention_mask=batch.mask,
            use_cache=True,
            **{self._memory: batch.cache},
            **options,
        )
        self._take(batch, found.logits[:, -1])

    def _fail(self, batch: _Batch, error: Exception) -> None:
        """End the sequences of a batch whose memory may be half changed."""
        if batch in self._batches:
            self._batches.remove(batch)
        for sequence in batch.sequences:
            sequence.give(error)

    def _take(self, batch: _Batch, logits: Any) -> None:
        """Choose the token of each sequence and give it; those that have ended leave."""
        goes_on = []
        for sequence, row in zip(batch.sequences, logits.float(), strict=True):
            assert sequence.sampler is not None  # noqa: S101 - for mypy
            token = sequence.sampler.choose(row, sequence.made)
            sequence.made.append(token.id)
            if token.id in self._ends and not (sequence.sampling.ignore_eos and sequence.guide is None):
                token = token._replace(finish_reason="stop")
            elif len(sequence.made) >= sequence.most:
                token = token._replace(finish_reason="length")
            goes_on.append(not token.finish_reason)
            sequence.give(token)
        self._keep(batch, goes_on)

    def _keep(self, batch: _Batch, keeps: list[bool]) -> None:
        """Let the other sequences of a batch go, and the padding that only they needed."""
        if all(keeps):
            return
        batch.sequences = [each for each, is_kept in zip(batch.sequences, keeps, strict=True) if is_kept]
        if not batch.sequences:
            if batch in self._batches:
                self._batches.remove(batch)
            return
        rows = self._torch.tensor([at for at, is_kept in enumerate(keeps) if is_kept], device=self._model.device)
        mask = batch.mask[rows]
        begin = int(mask.any(0).int().argmax())
        batch.mask = mask[:, begin:]
        for layer in batch.cache.layers:
            layer.keys, layer.values = layer.keys[rows, :, begin:], layer.values[rows, :, begin:]
