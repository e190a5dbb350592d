"""`openai:` in a `geartrain.yaml`: what is read, and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain.domain.signature.types import OpenAISettings
from geartrain.project.errors import ProjectError
from geartrain.project.settings import read_settings


def settings_of(folder: Path, text: str) -> OpenAISettings:
    (folder / "geartrain.yaml").write_text(text)
    return read_settings(folder).openai


def test_all_keys(tmp_path: Path) -> None:
    text = "openai:\n  serve: [chat]\n  fields: {max_tokens: limit}\n  aliases: [a, a, b]\n  unsupported: refuse\n"
    assert settings_of(tmp_path, text) == OpenAISettings(
        serve=frozenset({"chat"}), fields={"max_tokens": "limit"}, aliases=("a", "b"), refuses=True
    )
    assert settings_of(tmp_path, "openai: {unsupported: ignore}\n") == OpenAISettings()
    assert settings_of(tmp_path, "openai: {serve: []}\n").serve == frozenset()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("openai: chat", "`openai` has to have keys such as `serve: [chat]`"),
        (
            "openai: {served: [chat]}",
            "there is no key `openai.served`; there are serve, fields, aliases, unsupported, chat_template, matryoshka",
        ),
        ("openai: {chat_template: ../x}", "`openai.chat_template` is '../x'; write the name of a file in the model's"),
        ("openai: {chat_template: 5}", "`openai.chat_template` is 5; write the name of a file"),
        ("openai: {matryoshka: 2}", "`openai.matryoshka` is 2; write `true`, or `false`"),
        ("openai: {serve: chat}", "`openai.serve` is 'chat'; write a list of endpoints, of chat"),
        ("openai: {serve: [chats]}", "`openai.serve` is ['chats']; write a list"),
        ("openai: {serve: [[1]]}", "`openai.serve` is [[1]]; write a list"),
        ("openai: {fields: [a]}", "`openai.fields` is ['a']; write parameters"),
        ("openai: {fields: {max_tokens: 5}}", "`openai.fields` is {'max_tokens': 5}; write parameters"),
        ("openai: {fields: {a: x, b: x}}", "`openai.fields` has an input twice"),
        ("openai: {fields: {stream: x}}", "`openai.fields.stream` cannot be"),
        ("openai: {aliases: gpt}", "`openai.aliases` is 'gpt'; write a list of names"),
        ("openai: {unsupported: maybe}", "`openai.unsupported` is 'maybe'; write `ignore`, or `refuse`"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ProjectError, match=r"geartrain\.yaml") as caught:
        settings_of(tmp_path, text)
    assert said in str(caught.value.message)
