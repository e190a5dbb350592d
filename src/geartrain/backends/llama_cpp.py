"""Language models of llama.cpp: a `*.gguf` file, by llama-cpp-python.

The library has one context, so one text is made after the other.
"""

from __future__ import annotations

import asyncio
import codecs
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

import numpy as np

from geartrain.backends.cpus import usable_cpus
from geartrain.backends.interface import BackendError
from geartrain.backends.libraries import note, require
from geartrain.backends.options import whole_number
from geartrain.backends.sampling import Token
from geartrain.backends.text import Piece, PromptError, Sampling, TextBackend

_EXTRA: Final = "llama-cpp"
_USUAL_CONTEXT: Final = 8192  # tokens; what a model was trained for may take more memory than there is
_ALL: Final = -1  # layers
_ANY_SEED: Final = 0xFFFFFFFF  # the library's own mark for a seed that it draws
_DEFAULTS: Final = {"temperature": 0.8, "top_p": 0.95, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.0}


class LlamaCppBackend(TextBackend):
    """A GGUF file, with its tokenizer and its chat template in it."""

    platform = "llama_cpp"
    options = frozenset({"threads", "gpu_layers", "max_context"})
    slots = 1

    def load(self) -> None:
        threads = whole_number(self.given, "threads") or usable_cpus()
        layers = whole_number(self.given, "gpu_layers", least=_ALL)
        context = whole_number(self.given, "max_context") or _USUAL_CONTEXT
        self._library = library = require("llama_cpp", extra=_EXTRA)
        try:
            self._model = model = library.Llama(
                str(self.path),
                n_ctx=context,
                n_threads=threads,
                n_threads_batch=threads,
                n_gpu_layers=_ALL if layers is None else layers,
                last_n_tokens_size=context,
                verbose=False,
            )
        except Exception as error:
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise BackendError(f"llama.cpp cannot load it: {type(error).__name__}: {first}") from error
        self._vocabulary = library.llama_model_get_vocab(model.model)
        self.chat_template = model.metadata.get("tokenizer.chat_template")
        self.special_tokens_map = {
            name: self._text_of(token)
            for name, token in (("bos_token", model.token_bos()), ("eos_token", model.token_eos()))
            if token >= 0
        }
        trained = model.metadata.get(f"{model.metadata.get('general.architecture')}.context_length", "")
        self._longest = min(int(model.n_ctx()), int(trained) if trained.isdecimal() else context)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="geartrain-llama")
        name = model.metadata.get("general.name", self.path.stem)
        self.description = f"A language model ({name}) for up to {self._longest} tokens."
        note(f"{self.path.name}: llama-cpp-python {library.__version__}, {threads} threads")

    def _text_of(self, token: int) -> str:
        text: bytes = self._library.llama_vocab_get_text(self._vocabulary, token)
        return text.decode(errors="replace")

    def _read(self, prompt: str) -> list[int]:
        """Return the tokens of a prompt. Raises `PromptError`."""
        ids: list[int] = self._model.tokenize(prompt.encode(), add_bos=True, special=True)
        if ids[:2] == [self._model.token_bos()] * 2:  # that of the chat template, and that of the tokenizer
            del ids[0]
        if not ids:
            raise PromptError("The prompt has no tokens: it is empty.")
        if len(ids) >= self._longest:
            limit = f"the model takes {self._longest}, those of its answer included"
            raise PromptError(f"The prompt has {len(ids)} tokens, and {limit}.")
        return ids

    async def generate(self, prompt: str, sampling: Sampling) -> AsyncGenerator[Piece]:
        ids = self._read(prompt)
        loop = asyncio.get_running_loop()
        made: asyncio.Queue[Token | Exception] = asyncio.Queue()
        is_canceled = threading.Event()

        def give(token: Token | Exception) -> None:
            with suppress(RuntimeError):  # the loop is closed: the worker ends
                loop.call_soon_threadsafe(made.put_nowait, token)

        def work() -> None:
            try:
                for token in self._tokens(ids, sampling):
                    if is_canceled.is_set():
                        return
                    give(token)
            except Exception as error:  # noqa: BLE001 - it is the client's answer
                give(error)

        self._threads.submit(work)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            count, reason = 0, ""
            while not reason:
                token = await made.get()
                if isinstance(token, Exception):
                    raise token
                count += 1
                reason = token.finish_reason
                given = b"" if reason == "stop" else self._model.detokenize([token.id])
                yield Piece(decoder.decode(given, bool(reason)), len(ids), count, self._logprobs(token), reason)
        finally:
            is_canceled.set()

    def _tokens(self, ids: list[int], sampling: Sampling) -> Iterator[Token]:
        """Yield the tokens of a text, on the thread of the library."""

        def value(name: str) -> Any:
            given = getattr(sampling, name)
            return _DEFAULTS[name] if given is None else given

        self._model.set_seed(_ANY_SEED if sampling.seed is None else sampling.seed % _ANY_SEED)
        tokens = self._model.generate(
            ids,
            temp=value("temperature"),
            top_p=value("top_p"),
            top_k=max(value("top_k"), 0),
            min_p=value("min_p"),
            repeat_penalty=value("repetition_penalty"),
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
        )
        room = self._longest - len(ids)
        most = min(room, sampling.max_tokens or room)
        for count, token in enumerate(tokens, 1):
            reason = "length" if count >= most else ""
            if not sampling.ignore_eos and self._library.llama_vocab_is_eog(self._vocabulary, token):
                reason = "stop"
            yield self._measured(token, sampling.logprobs)._replace(finish_reason=reason)
            if reason:
                return

    def _measured(self, token: int, most: int | None) -> Token:
        """Return a token with its probability, if that is asked for, and those of the likeliest ones."""
        if most is None:
            return Token(int(token))
        pointer = self._library.llama_get_logits_ith(self._model.ctx, -1)
        logits = np.ctypeslib.as_array(pointer, (self._model.n_vocab(),)).astype(np.float64)
        logits -= logits.max()
        logprobs = logits - np.log(np.exp(logits).sum())
        likeliest = np.argsort(-logprobs, kind="stable")[:most]
        return Token(int(token), float(logprobs[token]), tuple((int(one), float(logprobs[one])) for one in likeliest))

    def _logprobs(self, token: Token) -> tuple[Any, ...]:
        if token.logprob is None:
            return ()
        top = [{"token": self._shown(each), "logprob": logprob} for each, logprob in token.top]
        return ({"token": self._shown(token.id), "logprob": token.logprob, "top": top},)

    def _shown(self, token: int) -> str:
        text: bytes = self._model.detokenize([token], special=True)
        return text.decode(errors="replace")

    def close(self) -> None:
        """End the thread, and give back the memory of the model."""
        if hasattr(self, "_threads"):
            self._threads.shutdown()
            self._model.close()
