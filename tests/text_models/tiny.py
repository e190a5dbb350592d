"""A tiny language model: a byte-level BPE, a chat template and two layers, made in some seconds."""

from __future__ import annotations

import json
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


RATE = 16_000
TONES = {"good morning": 400, "auf wiedersehen": 2000}  # a text, and the sound that is it, in Hertz
TRANSLATED = {"good morning": "good morning", "auf wiedersehen": "good bye"}


def tone(hertz: float, seconds: float, rate: int = RATE) -> Any:
    """Return the samples of a second of a tone, and of silence behind it."""
    import numpy as np

    times = np.arange(int(seconds * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * hertz * times) * (times < 1)).astype(np.float32)


def make_whisper(folder: Path, steps: int = 150) -> Path:
    """Write a Whisper that knows `TONES` by heart, and hears two seconds at a time, into a folder."""
    import torch
    from tokenizers import AddedToken, pre_tokenizers
    from torch.nn.functional import cross_entropy
    from transformers import (
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
        WhisperProcessor,
        WhisperTokenizer,
    )

    torch.manual_seed(0)
    letters = {letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = WhisperTokenizer(vocab=letters, merges=[])
    marks = ["startoftranscript", "en", "de", "translate", "transcribe", "startofprev", "nospeech", "notimestamps"]
    times = [f"{at / 50:.2f}" for at in range(101)]
    tokenizer.add_tokens([AddedToken(f"<|{name}|>", special=True) for name in (*marks, *times)])
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in (*marks, "0.00", "1.00")}
    extractor = WhisperFeatureExtractor(chunk_length=2)
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=100,
        max_target_positions=64,
        decoder_start_token_id=ids["startoftranscript"],
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        dropout=0.0,
    )
    model = WhisperForConditionalGeneration(config)
    sounds, rows = [], []
    for text, hertz in {**TONES, "": 0}.items():
        for language in ("de", "en"):
            for task in ("transcribe", "translate"):
                said = tokenizer.encode(
                    text if task == "transcribe" else TRANSLATED.get(text, ""), add_special_tokens=False
                )
                body = [*said, ids["1.00"]] if said else []
                head = [ids[each] for each in ("startoftranscript", language, task, "0.00")]
                rows.append([*head, *body, tokenizer.eos_token_id])
                sounds.append(tone(hertz, 2))
    features = extractor(sounds, sampling_rate=RATE, return_tensors="pt").input_features
    longest = max(map(len, rows))
    targets = torch.tensor([row + [-100] * (longest - len(row)) for row in rows])
    spoken = {0: "en", 1: "en", 2: "en", 3: "en", 4: "de", 5: "de", 6: "de", 7: "de"}  # the rest is silence
    wanted = targets[:, 1:].clone()
    for at, language in enumerate(spoken.get(at, "en") for at in range(len(rows))):
        wanted[at, 0] = ids[language]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        found = model(input_features=features, decoder_input_ids=targets[:, :-1].clamp(min=0)).logits
        loss = cross_entropy(found.flatten(0, 1), wanted.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    settings: dict[str, Any] = {
        "is_multilingual": True,
        "lang_to_id": {"<|en|>": ids["en"], "<|de|>": ids["de"]},
        "task_to_id": {name: ids[name] for name in ("transcribe", "translate")},
        "no_timestamps_token_id": ids["notimestamps"],
        "prev_sot_token_id": ids["startofprev"],
        "max_initial_timestamp_index": 50,
    }
    model.save_pretrained(folder)
    file = folder / "generation_config.json"
    saved = json.loads(file.read_text())
    saved.pop("_from_model_config", None)  # with it, nothing of Whisper's own is read again
    file.write_text(json.dumps({**saved, **settings}))
    WhisperProcessor(extractor, tokenizer).save_pretrained(folder)
    return folder
