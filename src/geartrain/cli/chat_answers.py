"""Answers of a chat: what has come of one, and how it is shown, to a person or as lines of JSON."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from typing import Any, Final

from geartrain.client.chats import CallPart, ChatPiece, Message

_DIM, _CYAN, _RED, _PLAIN = "\x1b[2m", "\x1b[36m", "\x1b[31m", "\x1b[0m"
# A model may say what a terminal would obey; lines and tabs are harmless.
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class ChatAnswer:
    """An answer as it comes. Moments are those of `time.monotonic()`, 0 until they come."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.first = 0.0
        self.ended = 0.0
        self.pieces = 0
        self.finish_reason = ""
        self.is_stopped = False  # by the person
        self.usage: dict[str, Any] = {}
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: dict[int, CallPart] = {}

    def add(self, piece: ChatPiece) -> None:
        """Take a piece."""
        self.usage = dict(piece.usage) or self.usage
        self.finish_reason = piece.finish_reason or self.finish_reason
        if not (piece.text or piece.reasoning or piece.calls):
            return
        self.pieces += 1
        self.first = self.first or time.monotonic()
        self._texts.append(piece.text)
        self._thoughts.append(piece.reasoning)
        for part in piece.calls:
            before = self._calls.get(part.index, CallPart(part.index))
            self._calls[part.index] = CallPart(
                part.index, before.id or part.id, before.name + part.name, before.arguments + part.arguments
            )

    def end(self, *, is_stopped: bool = False) -> None:
        """Note the end."""
        self.ended = time.monotonic()
        self.is_stopped = is_stopped

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    @property
    def calls(self) -> list[CallPart]:
        """The calls of tools so far."""
        return list(self._calls.values())

    @property
    def is_empty(self) -> bool:
        """True if there is neither text nor a call of a tool."""
        return not (self.text or self._calls)

    def message(self) -> Message:
        """Return it as a message of the chat."""
        message: Message = {"role": "assistant", "content": self.text}
        if any(self._thoughts):
            message["reasoning_content"] = "".join(self._thoughts)
        if self._calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self._calls.values()
            ]
        return message

    @property
    def tokens(self) -> int:
        """The tokens of the answer, as the model has counted them; 0 where it has not."""
        count = self.usage.get("completion_tokens")
        return count if isinstance(count, int) else 0

    @property
    def rate(self) -> float:
        """Tokens a second after the first one, or pieces where tokens are not counted; 0 for one token."""
        count, seconds = (self.tokens or self.pieces) - 1, self.ended - self.first
        return count / seconds if self.first and count > 0 and seconds > 0 else 0.0

    def summary(self) -> str:
        """Return a line about how it went."""
        count = self.tokens or self.pieces
        unit = "token" if self.tokens else "piece"
        said = [f"{count} {unit}{'' if count == 1 else 's'}"]
        if self.rate:
            said.append(f"{self.rate:.3g} a second")
        if self.first:
            said.append(f"the first after {self.first - self.began:.2f} s")
        if self.is_stopped:
            said.append("stopped")
        elif self.finish_reason == "length":
            said.append("cut at the limit of its length")
        elif self.finish_reason == "content_filter":
            said.append("cut by a filter")
        return ", ".join(said)


class TerminalView:
    """Shows answers to a person at a terminal."""

    def __init__(self) -> None:
        self._has_colours = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._style = ""
        self._is_at_start = True

    def add(self, piece: ChatPiece) -> None:
        """Show a piece as it comes. Calls of tools are shown at the end, when they are whole."""
        if piece.reasoning:
            self._write(piece.reasoning, _DIM)
        if piece.text:
            if self._style == _DIM and not self._is_at_start:
                self._write("\n")
            self._write(piece.text)

    def end(self, answer: ChatAnswer) -> None:
        """Show the calls of tools, and how it went."""
        self._start_line()
        for call in answer.calls:
            self._write(f"→ {call.name}({call.arguments})\n", _CYAN)
        self.tell(answer.summary())

    def tell(self, text: str) -> None:
        """Show a line that is not of the model."""
        self._start_line()
        self._write(f"{text}\n", _DIM)

    def fail(self, message: str) -> None:
        """Show an error."""
        self._start_line()
        self._write(f"error: {message}\n", _RED)

    def _start_line(self) -> None:
        if not self._is_at_start:
            self._write("\n")

    def _write(self, text: str, style: str = "") -> None:
        safe = _CONTROLS.sub("", text)
        if safe:
            self._is_at_start = safe.endswith("\n")
        self._style = style
        sys.stdout.write(f"{style}{safe}{_PLAIN}" if style and self._has_colours else safe)
        sys.stdout.flush()


class LinesView:
    """Writes a JSON object for each answer, for a program."""

    def add(self, piece: ChatPiece) -> None:
        """Wait for the end."""

    def end(self, answer: ChatAnswer) -> None:
        """Write an answer."""
        line: dict[str, Any] = {
            **answer.message(),
            "finish_reason": answer.finish_reason or None,
            "usage": answer.usage or None,
            "seconds": round(answer.ended - answer.began, 6),
            "first_token_seconds": round(answer.first - answer.began, 6) if answer.first else None,
            "tokens_per_second": round(answer.rate, 3) or None,
        }
        self._write(line)

    def tell(self, text: str) -> None:
        """Tell a person of it, on stderr."""
        print(text, file=sys.stderr)

    def fail(self, message: str) -> None:
        """Write an error."""
        self._write({"error": {"message": message}})

    def _write(self, line: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
        sys.stdout.flush()
