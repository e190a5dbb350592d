"""A tiny language model: a byte-level BPE, a chat template and two layers, made in some seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

END = "<|end|>"
ANSWERS = {
    "hello": "Good morning! The sun is shining today.",
    "count": " one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen",
    "grüß": "Grüß Gott, naïve café 𝄞 — 日本語 ¡olé!",
}
TEMPLATE = """\
{%- for message in messages %}
    {%- if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}
    {{- '<|' + message.role + '|>' + message.content + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
SPECIAL = [END, "<|system|>", "<|user|>", "<|assistant|>", "<|pad|>"]


def tokenizer_of(texts: list[str], size: int = 400) -> Any:
    """Make a byte-level BPE of some texts, as `tokenizers` has it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, initial_alphabet=letters, show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    return bpe


def chat_of(question: str, answer: str) -> str:
    return f"<|user|>{question}{END}<|assistant|>{answer}{END}"


def make_model(folder: Path, steps: int = 120) -> Path:
    """Write a model that knows `ANSWERS` by heart into a folder."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer_of(["one two three four five six seven eight nine ten"]),
        eos_token=END,
        pad_token="<|pad|>",
    )
    tokenizer.chat_template = TEMPLATE
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    texts = [chat_of(question, answer) for question, answer in ANSWERS.items()]
    batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(steps):
        logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits[:, :-1]
        loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.set_num_threads(threads)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_cross_encoder(folder: Path, labels: int = 1) -> None:
    """Write a cross-encoder into a folder; its scores mean nothing, and are always the same."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator(["the sun wind moon cold road"], trainers.WordLevelTrainer(special_tokens=special))
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {name: f"[{name[:3].upper()}]" for name in ("pad_token", "unk_token", "cls_token", "sep_token")}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=64, **names)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        num_labels=labels,
        initializer_range=0.5,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
