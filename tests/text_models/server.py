"""`geartrain serve` as a process, with nothing but what geartrain itself needs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

_ADDRESS = ("--host", "127.0.0.1", "--port", "0", "--grpc-port", "off")


class Server:
    """A server of one model, or why it did not begin."""

    def __init__(self, client: httpx.Client, model: str) -> None:
        self.client = client
        self.model = model

    def post(self, path: str, **body: Any) -> httpx.Response:
        """POST a body, with the model's name."""
        return self.client.post(path, json={"model": self.model, **body})

    def chat(self, content: str, **body: Any) -> httpx.Response:
        """POST a chat of one message; it takes the likeliest tokens, unless `body` says otherwise."""
        messages = [{"role": "user", "content": content}]
        return self.post("/v1/chat/completions", **{"messages": messages, "temperature": 0, **body})

    def events(self, path: str, **body: Any) -> Iterator[Any]:
        """Yield the data of a stream of events; `[DONE]` as it is."""
        given = {"model": self.model, "stream": True, **body}
        with self.client.stream("POST", path, json=given) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                if line:
                    data = line.removeprefix("data: ")
                    yield data if data == "[DONE]" else json.loads(data)


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[Server]:
    """Serve a model, once it is ready."""
    command = [sys.executable, "-m", "geartrain", "serve", str(folder), *_ADDRESS]
    environment = {**os.environ, "LOG_FORMAT": "json", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            log: list[str] = []
            url = ""
            for line in process.stderr:
                log.append(line)
                said = json.loads(line)
                url = said["url"] if said.get("message") == "listening" else url
                if said.get("message") == "ready":
                    break
                assert said.get("message") != "setup-failed", log
            else:
                raise AssertionError(log)
            with subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL) as reader:
                try:
                    with httpx.Client(base_url=url, timeout=60) as client:
                        yield Server(client, folder.name)
                finally:
                    process.terminate()
                    process.wait(30)
                    reader.wait(30)
        finally:
            process.kill()
