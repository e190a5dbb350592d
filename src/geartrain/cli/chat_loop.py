"""A chat at the terminal: messages in, answers out, and the commands between them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from geartrain.cli.chat_answers import ChatAnswer, LinesView, TerminalView
from geartrain.cli.failure import FAILURE, warn
from geartrain.client.chats import ChatClient, Message
from geartrain.client.errors import ClientError

_PROMPT: Final = "> "
_MORE: Final = "… "
_HELP: Final = """\
/reset          forget the conversation; the system prompt stays
/system TEXT    set the system prompt; alone it shows it, and /system - removes it
/retry          ask for the last answer again
/exit           end the chat, as Ctrl-D does
A line that ends with a backslash goes on in the next one. // at the beginning stands for a slash.
Ctrl-C stops an answer; what has come of it stays in the conversation."""


class Chat:
    """One conversation with a model."""

    def __init__(
        self,
        client: ChatClient,
        model: str,
        *,
        system: str,
        parameters: Mapping[str, Any],
        view: TerminalView | LinesView,
    ) -> None:
        self.system = system
        self._client = client
        self._model = model
        self._parameters = parameters
        self._view = view
        self._messages: list[Message] = []
        self._unanswered: Message | None = None  # the last message, if it has got no answer
        self._warned: set[str] = set()

    def ask(self, message: Message) -> bool:
        """Send a message and show the answer; return whether there was one. Ctrl-C stops it."""
        self._messages.append(message)
        if self._answer():
            return True
        self._unanswered = self._messages.pop()
        return False

    def add(self, message: Message) -> None:
        """Add a message that waits for no answer."""
        self._messages.append(message)

    def retry(self) -> None:
        """Ask for the last answer again."""
        if self._unanswered is not None:
            self.ask(self._unanswered)
            return
        if not self._messages:
            self._view.fail("there is no answer yet")
            return
        answer = self._messages.pop()
        if not self._answer():
            self._messages.append(answer)

    def reset(self) -> None:
        """Forget the conversation."""
        self._messages.clear()
        self._unanswered = None

    def _answer(self) -> bool:
        self._unanswered = None
        system = [{"role": "system", "content": self.system}] if self.system else []
        answer = ChatAnswer()
        try:
            try:
                with self._client.ask(self._model, [*system, *self._messages], self._parameters) as answering:
                    self._warn(answering.ignored)
                    for piece in answering.pieces():
                        answer.add(piece)
                        self._view.add(piece)
                answer.end()
            except KeyboardInterrupt:
                answer.end(is_stopped=True)
                if isinstance(self._view, LinesView):
                    raise
        except ClientError as error:
            self._view.fail(str(error))
            return False
        self._view.end(answer)
        if answer.is_empty and answer.is_stopped:
            return False
        self._messages.append(answer.message())
        return True

    def _warn(self, ignored: tuple[str, ...]) -> None:
        """Tell once of parameters that do nothing."""
        for name in ignored:
            if name in self._parameters and name not in self._warned:
                self._warned.add(name)
                warn(f"the model has no {name}: it is passed over")


def talk(chat: Chat, view: TerminalView | LinesView, model: str) -> int:
    """Chat with a person until the end of stdin; return the exit code."""
    if isinstance(view, TerminalView):
        view.tell(f"Chat with {model}. /help lists the commands; Ctrl-C stops an answer, Ctrl-D ends the chat.")
    for text in _typed():
        if not text.strip():
            continue
        try:
            if text.startswith("/") and not text.startswith("//"):
                if not _obey(chat, view, text):
                    return 0
            else:
                chat.ask({"role": "user", "content": text.removeprefix("/") if text.startswith("//") else text})
        except KeyboardInterrupt:  # a moment after the end of an answer
            continue
    return 0


def read_lines(chat: Chat) -> int:
    """Answer each line of stdin: a text, or a message as a JSON object; return the exit code."""
    code = 0
    for line in sys.stdin:
        text = line.rstrip("\r\n")
        if not text.strip():
            continue
        message = _message(text)
        if message.get("role", "user") in ("user", "tool"):
            if not chat.ask({"role": "user", **message}):
                code = FAILURE
        else:
            chat.add(message)
    return code


def _message(line: str) -> Message:
    try:
        found = json.loads(line)
    except ValueError:
        return {"content": line}
    return found if isinstance(found, dict) and "content" in found else {"content": line}


def _obey(chat: Chat, view: TerminalView | LinesView, text: str) -> bool:
    """Carry a command out; return False for the end of the chat."""
    name, _, rest = text.partition(" ")
    rest = rest.strip()
    commands: dict[str, Callable[[], None]] = {
        "/reset": lambda: _reset(chat, view),
        "/system": lambda: _system(chat, view, rest),
        "/retry": chat.retry,
        "/help": lambda: view.tell(_HELP),
    }
    if name in ("/exit", "/quit"):
        return False
    if name in commands:
        commands[name]()
    else:
        view.fail(f"there is no command {name}; there are {', '.join((*commands, '/exit'))}")
    return True


def _reset(chat: Chat, view: TerminalView | LinesView) -> None:
    chat.reset()
    view.tell("The conversation begins anew.")


def _system(chat: Chat, view: TerminalView | LinesView, text: str) -> None:
    if text:
        chat.system = "" if text == "-" else text
        view.tell("The system prompt is set." if chat.system else "There is no system prompt any more.")
    else:
        view.tell(chat.system or "There is no system prompt.")


def _typed() -> Iterator[str]:
    """Yield what a person types. Ctrl-C at the prompt begins a new line."""
    if sys.stdout.isatty():
        import readline  # noqa: F401 - it edits the lines of `input`, and keeps a history of them
    while True:
        try:
            text = _line(_PROMPT)
            while text.endswith("\\"):
                text = f"{text[:-1]}\n{_line(_MORE)}"
        except EOFError:
            print(file=sys.stderr)
            return
        except KeyboardInterrupt:
            print("\nCtrl-D or /exit ends the chat.", file=sys.stderr)
            continue
        yield text


def _line(prompt: str) -> str:
    """Read one line. Raises `EOFError` at the end of stdin."""
    if sys.stdout.isatty():
        return input(prompt)
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\r\n")
