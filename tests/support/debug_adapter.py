"""An editor's side of the Debug Adapter Protocol: https://microsoft.github.io/debug-adapter-protocol/."""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

LIMIT = 40.0  # seconds that an answer, an event or a server may take

Message = dict[str, Any]


class Editor:
    """One session with a debugger that listens on a port of this machine."""

    def __init__(self, port: int) -> None:
        self._socket = _connect(port)
        self._file = self._socket.makefile("rb")
        self._numbers = itertools.count(1)
        self._seen: list[Message] = []  # that nobody has waited for yet

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()
        self._socket.close()

    def attach(self, path: str, *lines: int) -> None:
        """Attach, with breakpoints at these lines of a file."""
        self.ask("initialize", adapterID="test", pathFormat="path", linesStartAt1=True, columnsStartAt1=True)
        attaching = self._send("attach", justMyCode=True)
        self.event("initialized")
        reply = self.ask("setBreakpoints", source={"path": path}, breakpoints=[{"line": line} for line in lines])
        assert all(each["verified"] for each in reply["body"]["breakpoints"]), reply
        self.ask("configurationDone")
        self._answer(attaching)

    def ask(self, command: str, **arguments: Any) -> Message:
        """Send a request; return its answer, which has to be a success."""
        return self._answer(self._send(command, **arguments))

    def event(self, name: str) -> Message:
        """Wait for an event."""
        return self._wait(lambda message: message["type"] == "event" and message["event"] == name)

    def stopped(self) -> tuple[int, int, dict[str, str]]:
        """Wait until a thread stops; return the thread, the line, and the local variables as they are shown."""
        thread = self.event("stopped")["body"]["threadId"]
        frame = self.ask("stackTrace", threadId=thread)["body"]["stackFrames"][0]
        scope = self.ask("scopes", frameId=frame["id"])["body"]["scopes"][0]
        shown = self.ask("variables", variablesReference=scope["variablesReference"])["body"]["variables"]
        return thread, frame["line"], {each["name"]: each["value"] for each in shown}

    def _send(self, command: str, **arguments: Any) -> int:
        number = next(self._numbers)
        request = {"seq": number, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(request).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return number

    def _answer(self, number: int) -> Message:
        reply = self._wait(lambda message: message["type"] == "response" and message["request_seq"] == number)
        assert reply["success"], reply
        return reply

    def _wait(self, is_wanted: Callable[[Message], bool]) -> Message:
        for message in self._seen:
            if is_wanted(message):
                self._seen.remove(message)
                return message
        while True:
            message = self._read()
            if is_wanted(message):
                return message
            self._seen.append(message)

    def _read(self) -> Message:
        size = 0
        while (line := self._file.readline()) != b"\r\n":
            assert line, f"the debugger has closed the connection: {self._seen}"
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        message: Message = json.loads(self._file.read(size))
        return message


def _connect(port: int) -> socket.socket:
    """Connect as soon as somebody listens."""
    until = time.monotonic() + LIMIT
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
        except ConnectionRefusedError:
            assert time.monotonic() < until, f"nobody listens on port {port}"
            time.sleep(0.02)
