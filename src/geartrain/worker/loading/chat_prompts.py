"""Chats as prompts: the chat template of a model whose `run()` takes a text."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from geartrain.domain.signature.openai_view import may_have_prompt, plain_prompt
from geartrain.domain.signature.types import Signature
from geartrain.worker.errors import ClientError, ReportedError
from geartrain.worker.loading import chat_renderer
from geartrain.worker.loading.signature import Parameter

if TYPE_CHECKING:
    import subprocess

_Messages = list[dict[str, Any]]
_Prompter = Callable[[_Messages], str]

_CONFIG: Final = "tokenizer_config.json"
_FILE: Final = "chat_template.jinja"
_OLD_FILE: Final = "chat_template.json"
_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_MOST_CONFIG: Final = 32 * 1024**2  # bytes of such a file: those of some tokenizers list many tokens
_encode = msgspec.json.Encoder().encode


class ChatTemplateError(ReportedError):
    """A chat template that gives no prompt, through no fault of the client."""


class ChatTemplate(msgspec.Struct, frozen=True):
    """The text of a template, and the special tokens by the names that it has for them."""

    text: str
    tokens: dict[str, str] = {}


class TemplateProcess:
    """Renders one template in another process, which begins with the first chat (`chat_renderer`)."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, messages: _Messages) -> str:
        """Return the prompt. Raises `ClientError` if the template refuses the chat, `ChatTemplateError` otherwise."""
        try:
            if self._process is None:
                self._start()
            values = {**self._template.tokens, "messages": messages, "tools": None, "add_generation_prompt": True}
            return self._ask(values)
        except (ClientError, ChatTemplateError):
            raise
        except BaseException:  # e.g. a cancel while an answer is awaited, which the next chat must not get
            self.close()
            raise

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]

    def _start(self) -> None:
        import subprocess  # late: of the models with a prompt few are sent chats

        command = [sys.executable, "-P", chat_renderer.__file__]
        self._process = subprocess.Popen(  # noqa: S603 - our own file
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", close_fds=True
        )
        try:
            self._ask({"template": self._template.text})
        except BaseException:
            self.close()
            raise

    def _ask(self, request: dict[str, Any]) -> str:
        process = self._process
        assert process is not None  # noqa: S101 - for mypy
        assert process.stdin is not None  # noqa: S101 - likewise
        assert process.stdout is not None  # noqa: S101 - likewise
        with contextlib.suppress(BrokenPipeError):
            chat_renderer.write_frame(process.stdin, _encode(request))
        frame = chat_renderer.read_frame(process.stdout)
        if frame is None:
            self.close()
            raise ChatTemplateError(f"the chat template takes longer than {chat_renderer.MOST_SECONDS:g} s")
        answer: dict[str, str] = msgspec.json.decode(frame)
        if "refused" in answer:
            raise ClientError(answer["refused"])
        if "error" in answer:
            raise ChatTemplateError(f"the chat template gives no prompt: {answer['error']}")
        return answer["text"]


def with_chats(
    parameters: Sequence[Parameter], signature: Signature, *, instance: object, folders: Sequence[Path]
) -> tuple[Parameter, ...]:
    """Return the parameters of a model with those of texts taking chats, too. Call it after `setup()`.

    The parent has checked the messages, and knows which text is the prompt. `folders` are searched for a template if
    `instance` has none.
    Raises `ChatTemplateError` for one that cannot be read.
    """
    if not may_have_prompt(signature):
        return tuple(parameters)
    prompter = prompter_of(instance, folders)
    return tuple(_with_chats(each, prompter) if each.field.type.kind == "string" else each for each in parameters)


def _with_chats(parameter: Parameter, prompter: _Prompter) -> Parameter:
    convert = parameter.convert

    def convert_chat(value: Any) -> Any:
        if type(value) is list:
            value = prompter(value)
        return value if convert is None else convert(value)

    return parameter._replace(convert=convert_chat)


def prompter_of(instance: object, folders: Sequence[Path]) -> _Prompter:
    """Return the function that makes a prompt of messages: the author's own, that of a template, or the plain one."""
    own = getattr(instance, "chat_prompt", None)
    if callable(own):
        return _checked(own)
    template = _of_instance(instance)
    if template is None:
        found = (_of_folder(folder) for folder in folders)
        template = next((each for each in found if each is not None), None)
    return plain_prompt if template is None else TemplateProcess(template).render


def _checked(own: Callable[[_Messages], Any]) -> _Prompter:
    def prompt(messages: _Messages) -> str:
        text = own(messages)
        if not isinstance(text, str):
            raise ChatTemplateError(f"chat_prompt() has to return a str, not {type(text).__name__}")
        return text

    return prompt


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
