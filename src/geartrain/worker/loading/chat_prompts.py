"""Chats as prompts: the chat template of a model whose `run()` takes a text."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from geartrain.domain.signature.openai_view import plain_prompt
from geartrain.worker.errors import ChatTemplateError
from geartrain.worker.loading.signature import Parameter

Messages = list[dict[str, Any]]
_Prompter = Callable[[Messages], str]

_CONFIG: Final = "tokenizer_config.json"
_FILE: Final = "chat_template.jinja"
_OLD_FILE: Final = "chat_template.json"
_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_MOST_CONFIG: Final = 32 * 1024**2  # bytes of such a file: those of some tokenizers list many tokens


class ChatTemplate(msgspec.Struct, frozen=True):
    """The text of a template, and the special tokens by the names that it has for them."""

    text: str
    tokens: dict[str, str] = {}


def with_chats(
    parameters: Sequence[Parameter], name: str, *, instance: object, folders: Sequence[Path], own: Path | None = None
) -> tuple[Parameter, ...]:
    """Return the parameters of a model with that of its prompt, called `name`, taking chats, too.

    Call it after `setup()`. The parent has checked the messages. `own` is the file of the template, whatever else there
    is. Without it `folders` are searched for one if `instance` has none. Raises `ChatTemplateError` for one that
    cannot be read.
    """
    prompter = prompter_of(instance, folders, own)
    return tuple(_with_chats(each, prompter) if each.field.name == name else each for each in parameters)


def _with_chats(parameter: Parameter, prompter: _Prompter) -> Parameter:
    convert = parameter.convert

    def convert_chat(value: Any) -> Any:
        if type(value) is list and value and type(value[0]) is dict:  # a list of numbers is one of token ids
            value = prompter(value)
        return value if convert is None else convert(value)

    return parameter._replace(convert=convert_chat)


def prompter_of(instance: object, folders: Sequence[Path], own: Path | None = None) -> _Prompter:
    """Return the function that makes a prompt of messages: the author's own, that of a template, or the plain one."""
    method = getattr(instance, "chat_prompt", None)
    if own is None and callable(method):
        return _checked(method)
    template = _of_instance(instance) if own is None else ChatTemplate(_text_of(own), _tokens_of(instance, folders))
    if template is None:
        found = (_of_folder(folder) for folder in folders)
        template = next((each for each in found if each is not None), None)
    if template is None:
        return plain_prompt
    from geartrain.worker.loading.template_process import TemplateProcess  # late: few models have a template

    return TemplateProcess(template.text, template.tokens).render


def _checked(own: Callable[[Messages], Any]) -> _Prompter:
    def prompt(messages: Messages) -> str:
        text = own(messages)
        if not isinstance(text, str):
            raise ChatTemplateError(f"chat_prompt() has to return a str, not {type(text).__name__}")
        return text

    return prompt


def _tokens_of(instance: object, folders: Sequence[Path]) -> dict[str, str]:
    """Return the special tokens of a model's tokenizer, or of the first configuration that has some."""
    tokens = _tokens(getattr(getattr(instance, "tokenizer", None), "special_tokens_map", {}))
    return tokens or next(filter(None, (_tokens(_json_of(folder / _CONFIG)) for folder in folders)), {})


def _of_instance(instance: object) -> ChatTemplate | None:
    """Find the template that a model has after its `setup()`: its own, or that of its tokenizer."""
    tokenizer = getattr(instance, "tokenizer", None)
    tokens = _tokens(getattr(tokenizer, "special_tokens_map", {}))
    own = getattr(instance, "chat_template", None)
    if isinstance(own, os.PathLike):
        own = _text_of(Path(own))
    text = own if isinstance(own, str) else _chosen(getattr(tokenizer, "chat_template", None))
    return None if text is None else ChatTemplate(text, tokens)


def _of_folder(folder: Path) -> ChatTemplate | None:
    config = _json_of(folder / _CONFIG)
    if (folder / _FILE).is_file():
        text: str | None = _text_of(folder / _FILE)
    else:
        text = _chosen(_json_of(folder / _OLD_FILE).get("chat_template")) or _chosen(config.get("chat_template"))
    return None if text is None else ChatTemplate(text, _tokens(config))


def _chosen(written: Any) -> str | None:
    """Return the template for chats of several that a tokenizer may have, by their names."""
    if isinstance(written, list):
        written = {each["name"]: each["template"] for each in written if isinstance(each, dict) and "name" in each}
    if isinstance(written, Mapping):
        written = written.get("default")
    return written if isinstance(written, str) else None


def _tokens(config: Any) -> dict[str, str]:
    """Return the special tokens; some files have more of each than its text."""
    if not isinstance(config, Mapping):
        return {}
    given = {name: config.get(name) for name in _TOKENS}
    texts = {name: each.get("content") if isinstance(each, Mapping) else each for name, each in given.items()}
    return {name: text if isinstance(text, str) else str(text) for name, text in texts.items() if text is not None}


def _json_of(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = msgspec.json.decode(_text_of(path))
    except ValueError as error:
        raise ChatTemplateError(f"{path.name} is no JSON: {error}") from None
    return value if isinstance(value, dict) else {}


def _text_of(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_CONFIG:
            raise ChatTemplateError(f"{path.name} has more than {_MOST_CONFIG} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ChatTemplateError(f"{path.name} cannot be read: {error}") from None
