"""The server as the clients see it, and the chats that it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import time
import urllib.request
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from tests.support.text_apis import play

_COUNT = re.compile(r'^geartrain_requests_total\{.*protocol="openai".*\} ([0-9.e+]+)$', re.MULTILINE)
_LOOP = asyncio.new_event_loop()
T = TypeVar("T")
_SETTLED = 0.15  # seconds after which all requests that have ended are counted


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop of all tests: some clients keep connections for those that come later."""
    return _LOOP.run_until_complete(coroutine)


@dataclasses.dataclass
class Counted:
    """The number of requests that came."""

    requests: int = 0


@dataclasses.dataclass(frozen=True)
class Server:
    """A server of the models in `tests/clients/models.py`.

    `key` is for everything, `reading` may not run models; `never` is the path of a gate that stays closed.
    """

    url: str
    key: str
    reading: str
    never: str

    @property
    def base(self) -> str:
        """The base URL of OpenAI's clients."""
        return f"{self.url}/v1"

    @contextlib.contextmanager
    def counted(self) -> Iterator[Counted]:
        """Count the requests of OpenAI's and Anthropic's APIs that end in a block."""
        counted = Counted()
        before = self._count()
        yield counted
        counted.requests = self._count() - before

    def _count(self) -> int:
        time.sleep(_SETTLED)
        request = urllib.request.Request(f"{self.url}/metrics", headers={"authorization": f"Bearer {self.key}"})  # noqa: S310 - the tests' own server
        with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310 - as above
            return sum(int(float(each)) for each in _COUNT.findall(response.read().decode()))


@dataclasses.dataclass(frozen=True)
class Fault:
    """A chat that is refused: a part of the message, and how often the clients of OpenAI and Anthropic send it."""

    name: str
    status: int
    said: str
    requests: int = 1
    model: str = "player"
    text: str = "hi"
    key: str = ""
    temperature: float = 1.0

    def key_of(self, server: Server) -> str:
        """Return the key that the client sends."""
        return server.reading if self.key == "reading" else self.key or server.key

    def text_of(self, server: Server) -> str:
        """Return the text of the only message."""
        return self.text.replace("NEVER", server.never)


FAULTS = (
    Fault("invalid input", 400, "temperature: 5", temperature=5),
    Fault("no such key", 401, "key", key="gt_wrong"),
    Fault("key for something else", 403, "predict", key="reading"),
    Fault("unknown model", 404, "does not exist", model="nobody"),
    Fault("large body", 413, "bytes", text="x" * 1_200_000),
    Fault("full queue", 429, "", 3, model="busy"),
    Fault("failed run", 500, "it went wrong", text=play({"fail": "it went wrong"})),
    Fault("not ready", 503, "", 3, model="late"),
    Fault("time is up", 504, "", model="slow", text=play({"wait": "NEVER"})),
)
EACH_FAULT = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)


def told(error: BaseException | None) -> str:
    """Return the texts of an error and of those that it comes from."""
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__ or error.__context__
    return "\n".join(texts)
