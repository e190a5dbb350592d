"""Requests to a server at a terminal, whose answers wait for the person there."""

from __future__ import annotations

import json
import threading
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from tests.support.person import Person
from tests.support.servers import PATIENCE


class Request:
    """A prediction that is asked for in a thread; a person answers a debugger before it ends."""

    def __init__(self, url: str, **values: Any) -> None:
        address = urlsplit(url)
        self._connection = HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE)
        body = json.dumps({"input": values})
        self._connection.request("POST", "/predictions", body, {"content-type": "application/json"})
        self._answers: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._connection.getresponse() as response:
            self._answers.append(json.loads(response.read()))

    def answer(self) -> dict[str, Any]:
        """Wait for the answer."""
        self._thread.join(PATIENCE)
        self._connection.close()
        return self._answers[0]


def url_of(person: Person) -> str:
    """The server's address, from what `geartrain dev` shows when the model is ready."""
    url = person.matches(r"POST (http://[\d.:]+)/predictions")[1]
    person.sees("Ctrl-C stops.")
    return url
