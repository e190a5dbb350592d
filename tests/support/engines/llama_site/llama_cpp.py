"""A stand-in for llama-cpp-python with the part of its interface that the backend uses, for `sys.path`.

A file is `GGUF` and its metadata as JSON. Tokens are bytes, and two marks. The model goes on with a prompt by its words
in capitals, until its end.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__version__ = "0.3.36"
_BEGIN, _END = 256, 257
_COUNT = 258
_MARKS = {_BEGIN: b"<s>", _END: b"<|end|>"}
_SHARP = 20.0  # the logit of the token that comes; those of others are 0


class Llama:
    """A model, and its only context."""

    def __init__(self, model_path: str, *, n_ctx: int, n_threads: int, verbose: bool, **_: Any) -> None:
        file = Path(model_path).read_bytes()
        if not file.startswith(b"GGUF"):
            raise ValueError(f"Failed to load model from file: {model_path}")
        self.metadata: dict[str, str] = json.loads(file[4:])
        self.model = self.ctx = self
        self.seed = 0
        self.logits = (ctypes.c_float * _COUNT)()
        self.asked: dict[str, Any] = {}  # of the last text
        self.made = 0  # tokens of it
        self.is_closed = False
        self._size = n_ctx

    def n_ctx(self) -> int:
        """The tokens of the context."""
        return self._size

    def n_vocab(self) -> int:
        """The number of all tokens."""
        return _COUNT

    def token_bos(self) -> int:
        """The token before a text."""
        return _BEGIN

    def token_eos(self) -> int:
        """The token after a text."""
        return _END

    def set_seed(self, seed: int) -> None:
        """Set the seed of texts to come."""
        self.seed = seed

    def tokenize(self, text: bytes, *, add_bos: bool, special: bool) -> list[int]:
        """Return the tokens of a text, marks in it among them."""
        parts = text.split(_MARKS[_END]) if special else [text]
        ids = [*parts[0]]
        for part in parts[1:]:
            ids += [_END, *part]
        return [_BEGIN, *ids] if add_bos and self.metadata.get("tokenizer.ggml.add_bos_token") == "true" else ids

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> bytes:
        """Return the bytes of tokens."""
        return b"".join(bytes([one]) if one < _BEGIN else _MARKS[one] if special else b"" for one in tokens)

    def generate(self, tokens: Sequence[int], **sampling: Any) -> Iterator[int]:
        """Yield the tokens that follow."""
        self.asked, self.made = sampling, 0
        said = bytes(token for token in tokens if token < _BEGIN).decode(errors="replace").upper().encode()
        while True:
            for token in (*said, _END):
                self.logits = (ctypes.c_float * _COUNT)()
                self.logits[token] = _SHARP
                self.made += 1
                yield token

    def close(self) -> None:
        """Give the memory back."""
        self.is_closed = True


def llama_model_get_vocab(model: Llama) -> Llama:
    """The vocabulary of a model."""
    return model


def llama_vocab_is_eog(vocabulary: Llama, token: int) -> bool:
    """True for a token that ends a text."""
    return token == vocabulary.token_eos()


def llama_vocab_get_text(vocabulary: Llama, token: int) -> bytes:
    """The text of a token."""
    return vocabulary.detokenize([token], special=True)


def llama_get_logits_ith(context: Llama, index: int) -> Any:
    """The logits of the last token."""
    assert index == -1
    return ctypes.cast(context.logits, ctypes.POINTER(ctypes.c_float))
