"""`geartrain.openai.Detokenizer`, on real tokenizers."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from geartrain.openai import Detokenizer
from tests.text_models.tiny import END, tokenizer_of

TEXT = "Grüß Gott, naïve café: 𝄞 — 日本語 👩‍👩‍👧 ¡olé! he's here , now . don't\n\n\tx"
BROKEN = "\N{REPLACEMENT CHARACTER}"


@pytest.fixture(scope="module")
def bpe() -> Any:
    return tokenizer_of([TEXT, "the north wind and the sun"], 280)


def pieces_of(tokenizer: Any, ids: list[int], **options: Any) -> list[str]:
    detokenizer = Detokenizer(tokenizer, **options)
    return [*(detokenizer.add(token) for token in ids), detokenizer.end()]


@pytest.mark.parametrize("text", [TEXT, "", " ", "a", "𝄞", "𝄞𝄞𝄞", BROKEN, f"a{5 * BROKEN}b"])
def test_pieces_are_the_text(bpe: Any, text: str) -> None:
    pieces = pieces_of(bpe, bpe.encode(text).ids)
    assert "".join(pieces) == text


def test_incomplete_characters_are_held_back(bpe: Any) -> None:
    ids = bpe.encode("a𝄞b").ids
    assert len(ids) == 6  # four bytes of the clef
    assert pieces_of(bpe, ids) == ["a", "", "", "", "𝄞", "b", ""]
    assert pieces_of(bpe, ids[:3]) == ["a", "", "", BROKEN]


def test_text_before_an_incomplete_character_is_given(bpe: Any) -> None:
    detokenizer = Detokenizer(bpe)
    ids = bpe.encode("a𝄞").ids
    assert detokenizer.add(*ids[:3]) == "a"
    assert detokenizer.add(*ids[3:]) == "𝄞"
    assert detokenizer.end() == ""


def test_bytes_that_are_no_text_do_not_hold_it_up(bpe: Any) -> None:
    ids = [bpe.token_to_id(letter) for letter in "Ġð" + "ÿ" * 9] + bpe.encode("𝄞 ok").ids  # bytes F0, and FF nine times
    text = "".join(pieces_of(bpe, ids))
    assert text == f" {BROKEN * 10}𝄞 ok" == bpe.decode(ids)
    detokenizer = Detokenizer(bpe)
    given = [detokenizer.add(token) for token in ids]
    assert all(len(piece) <= 4 for piece in given)
    assert sum(map(len, given[:11])) >= 7  # no more than three tokens are held


def test_special_tokens(bpe: Any) -> None:
    end = bpe.token_to_id(END)
    ids = [end, *bpe.encode("a b").ids, end, *bpe.encode(" c").ids]
    assert "".join(pieces_of(bpe, ids)) == "a b c"
    assert "".join(pieces_of(bpe, ids, skip_special_tokens=False)) == f"{END}a b{END} c"


def test_tokenizer_of_transformers(bpe: Any) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, clean_up_tokenization_spaces=True)
    assert "".join(pieces_of(tokenizer, bpe.encode(TEXT).ids)) == TEXT


@pytest.fixture(scope="module")
def sentencepiece() -> Any:
    """A tokenizer as those of Llama 2: spaces are a letter, and other bytes fall back to tokens of their own."""
    words = ["<unk>", "▁the", "▁sun", "s", "▁", *(f"<0x{byte:02X}>" for byte in range(256))]
    merges: list[tuple[str, str]] = []
    model = models.BPE({word: at for at, word in enumerate(words)}, merges, unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def test_spaces_before_words_and_bytes_that_fall_back(sentencepiece: Any) -> None:
    ids = [sentencepiece.token_to_id(word) for word in ("▁the", "▁sun", "s", "▁the")]
    clef = [sentencepiece.token_to_id(f"<0x{byte:02X}>") for byte in "𝄞é".encode()]
    pieces = pieces_of(sentencepiece, [*ids, *clef, *ids])
    assert "".join(pieces) == "the suns the𝄞é the suns the"
    assert pieces[:5] == ["the", " sun", "s", " the", ""]
    first = Detokenizer(sentencepiece, after=ids)
    assert first.add(ids[0]) == " the"


def test_cost_of_a_token_does_not_grow(bpe: Any) -> None:
    longest = 0

    class Counted:
        def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
            nonlocal longest
            longest = max(longest, len(ids))
            return str(bpe.decode(ids, skip_special_tokens=skip_special_tokens))

    numbers = random.Random(1)  # noqa: S311 - the same each time
    ids = [numbers.randrange(bpe.get_vocab_size()) for _ in range(20_000)]
    text = "".join(pieces_of(Counted(), ids))
    assert len(text) > 10_000
    assert longest <= 20
    assert text == bpe.decode(ids)
