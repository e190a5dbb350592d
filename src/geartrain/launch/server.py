"""`geartrain serve` as a process of its own, for tests and for measurements."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlsplit

_STOP_WITHIN: Final = 60.0  # seconds; the server itself gives running predictions 30 s
_PULSE: Final = 0.02  # seconds from one look at a server that starts to the next
_QUIET: Final = 0.1  # seconds without a line
_LONGEST_NOISE: Final = 1.0  # seconds
_PATIENCE: Final = 10.0  # seconds for an answer
_SHOWN: Final = 40  # lines of the log of a server that did not become ready
_DEFAULTS: Final[Mapping[str, Any]] = {
    "host": "127.0.0.1",
    "port": 0,
    "grpc_port": "off",
    "log_format": "json",
    "log_level": "info",
}


class ServerError(Exception):
    """A server has not become ready; the message ends with its log."""


class Server:
    """A server that has become ready."""

    def __init__(
        self,
        command: list[str],
        environment: Mapping[str, str],
        *,
        kept_lines: int | None = None,
        process_group: int | None = None,
    ) -> None:
        """`kept_lines`: of its log, the last ones; None for all. `process_group`: as of `subprocess.Popen`."""
        self._process = subprocess.Popen(  # noqa: S603 - the interpreter's own module, and a test's arguments
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=process_group,
        )
        self._lines: deque[str] = deque(maxlen=kept_lines)
        self._addresses: dict[str, str] = {}
        self._changed = threading.Condition()
        self._failed = ""  # reason for which it will not become ready
        # A server stands still when the pipe of its log is full.
        self._reader = threading.Thread(target=self._read, name="geartrain-server-log", daemon=True)
        self._reader.start()

    @property
    def url(self) -> str:
        """Address, such as `http://127.0.0.1:41523`."""
        return self._addresses["listening"]

    @property
    def grpc_target(self) -> str:
        """Address for gRPC, such as `127.0.0.1:41524`, if `grpc_port` asks for one."""
        return self._addresses["listening-grpc"]

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        return self._process.pid

    @property
    def log(self) -> str:
        """Log of the server so far, one line of JSON for each record; also the printed text of its models."""
        with self._changed:
            return "".join(self._lines)

    def wait_until_quiet(self) -> None:
        """Wait until nothing more is logged; what a request causes is logged a moment after its answer."""
        until = time.monotonic() + _LONGEST_NOISE
        with self._changed:
            while self._changed.wait(_QUIET) and time.monotonic() < until:
                pass

    def wait_until_ready(self, seconds: float) -> None:
        """Wait for all models. Raises `ServerError`."""
        until = time.monotonic() + seconds
        while not self._is_ready():
            with self._changed:
                if self._failed or time.monotonic() > until:
                    what = self._failed or f"is not ready after {seconds:g} s"
                    raise ServerError(f"the server {what}; its log:\n{''.join(list(self._lines)[-_SHOWN:])}")
                self._changed.wait(_PULSE)

    def stop(self) -> None:
        """End it as SIGTERM does: what runs may end. It is killed if that takes longer than a minute."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_STOP_WITHIN)

    def _read(self) -> None:
        assert self._process.stderr is not None  # noqa: S101 - it is piped
        with self._process.stderr as lines:
            for line in lines:
                self._take(line)
        with self._changed:
            self._failed = self._failed or "has ended"
            self._changed.notify_all()

    def _is_ready(self) -> bool:
        """Ask the server whether all its models are ready."""
        with self._changed:
            address = urlsplit(self._addresses.get("listening", ""))
        if not address.hostname:
            return False
        connection: HTTPConnection
        if address.scheme == "https":
            unverified = ssl._create_unverified_context()  # noqa: S323, SLF001 - asked whether it is ready, no more
            connection = HTTPSConnection(address.hostname, address.port, timeout=_PATIENCE, context=unverified)
        else:
            connection = HTTPConnection(address.hostname, address.port, timeout=_PATIENCE)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == HTTPStatus.OK
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def _take(self, line: str) -> None:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        fields = record if isinstance(record, dict) and record.get("logger") == "geartrain.server" else {}
        message = fields.get("message")
        with self._changed:
            self._lines.append(line)
            if message in {"listening", "listening-grpc"}:
                self._addresses[message] = fields["url"]
            if message == "setup-failed":
                self._failed = "cannot set up a model"
            self._changed.notify_all()


def serve_command(target: str, options: Mapping[str, Any]) -> list[str]:
    """Return the command that serves a model on a free port, with logs as `Server` reads them."""
    return [sys.executable, "-m", "geartrain", "serve", target, *_flags({**_DEFAULTS, **options})]


def _flags(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        values = value if isinstance(value, list | tuple) else [value]
        for each in values:
            if each is True:
                yield flag
            elif each is not None and each is not False:
                yield from (flag, str(each))
