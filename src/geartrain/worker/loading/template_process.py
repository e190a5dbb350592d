"""The process that renders the chat template of a model, as the worker sees it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import Any

import msgspec

from geartrain.worker.errors import ChatTemplateError, ClientError
from geartrain.worker.loading import chat_renderer

_Messages = list[dict[str, Any]]
_encode = msgspec.json.Encoder().encode


class TemplateProcess:
    """Renders one template in another process, which begins with the first chat (`chat_renderer`)."""

    def __init__(self, template: str, tokens: dict[str, str]) -> None:
        """`tokens` are the special tokens by the names that the template has for them."""
        self._template = template
        self._tokens = tokens
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, messages: _Messages) -> str:
        """Return the prompt. Raises `ClientError` if the template refuses the chat, `ChatTemplateError` otherwise."""
        try:
            if self._process is None:
                self._start()
            values = {**self._tokens, "messages": messages, "tools": None, "add_generation_prompt": True}
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
        command = [sys.executable, "-P", chat_renderer.__file__]
        self._process = subprocess.Popen(  # noqa: S603 - our own file
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", close_fds=True
        )
        try:
            self._ask({"template": self._template})
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
