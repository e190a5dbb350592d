"""A GGUF file with a tiny Llama whose weights are drawn. Needs the package gguf."""

from __future__ import annotations

from pathlib import Path

import numpy as np

TINY_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
_WIDTH, _HEADS, _SHARED, _INNER, _LAYERS = 32, 4, 2, 64, 2
_SPECIAL = ["<s>", "<|end|>"]


def _bytes() -> list[str]:
    """Return the signs that byte-level tokenizers have for the bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (one for one in range(256) if one not in plain)
    signs = {one: chr(one) for one in plain} | {one: chr(256 + at) for at, one in enumerate(others)}
    return [signs[one] for one in range(256)]


def write_gguf(path: Path) -> None:  # noqa: PLR0915 - a line for each part of the file
    """Write the file."""
    import gguf

    tokens = [*_bytes(), "th", *_SPECIAL]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_context_length(256)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_SHARED)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(tokens) - 2) + [gguf.TokenType.CONTROL] * 2)
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(len(tokens) - 2)
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TINY_TEMPLATE)
    drawn = np.random.default_rng(0)

    def put(name: str, *shape: int) -> None:
        values = np.ones(shape) if name.endswith("norm") else drawn.normal(size=shape) / 4
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    shared = _WIDTH // _HEADS * _SHARED
    put("token_embd", len(tokens), _WIDTH)
    put("output_norm", _WIDTH)
    put("output", len(tokens), _WIDTH)
    for layer in range(_LAYERS):
        put(f"blk.{layer}.attn_norm", _WIDTH)
        put(f"blk.{layer}.attn_q", _WIDTH, _WIDTH)
        put(f"blk.{layer}.attn_k", shared, _WIDTH)
        put(f"blk.{layer}.attn_v", shared, _WIDTH)
        put(f"blk.{layer}.attn_output", _WIDTH, _WIDTH)
        put(f"blk.{layer}.ffn_norm", _WIDTH)
        put(f"blk.{layer}.ffn_gate", _INNER, _WIDTH)
        put(f"blk.{layer}.ffn_up", _INNER, _WIDTH)
        put(f"blk.{layer}.ffn_down", _WIDTH, _INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
