"""A server that ends does not wait for clients of HTTP/2 that ask nothing."""

from __future__ import annotations

import signal
import socket
import ssl
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from h2.errors import ErrorCodes

from tests.support.certificates import make_party
from tests.support.http2 import LARGEST_WINDOW, PREFACE, Kind, frame, settings
from tests.support.servers import PATIENCE, ServerProcess, write_model

MODEL: Final = """
from geartrain import BaseRunner

class Runner(BaseRunner):
    def run(self, text: str = "") -> str:
        return text
"""
AT_ONCE: Final = (
    3.0  # seconds for the end of a whole server and its worker; a client that is waited for takes twice that
)


class Frames:
    """A connection that answers nothing and reads only when it is told to."""

    def __init__(self, url: str, authority: Path | None) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.socket = socket.create_connection((parts.hostname, parts.port), PATIENCE)
        if authority is not None:
            context = ssl.create_default_context(cafile=str(authority))
            context.set_alpn_protocols(["h2"])
            self.socket = context.wrap_socket(self.socket, server_hostname=parts.hostname)
        self._reader = self.socket.makefile("rb")

    def next(self) -> tuple[int, int, bytes] | None:
        """Return the kind, the flags and the payload of the next frame; None at the end."""
        head = self._reader.read(9)
        return (head[3], head[4], self._reader.read(int.from_bytes(head[:3]))) if head else None

    def close(self) -> None:
        self._reader.close()
        self.socket.close()


@pytest.mark.parametrize("secured", [False, True], ids=["clear", "tls"])
def test_an_idle_client_that_reads_nothing_is_told_and_not_waited_for(tmp_path: Path, *, secured: bool) -> None:
    authority: Path | None = None
    arguments: tuple[str, ...] = ()
    if secured:
        signing = make_party("authority")
        authority, _ = signing.write(tmp_path, "authority")
        cert, private = make_party("server", signing).write(tmp_path, "server")
        arguments = ("--tls-cert", str(cert), "--tls-key", str(private))
    process = ServerProcess(str(write_model(tmp_path / "model", MODEL)), *arguments)
    try:
        url = process.wait_for("listening")["url"]
        process.wait_for("ready")
        client = Frames(url, authority)
        client.socket.sendall(PREFACE + settings() + frame(Kind.SETTINGS, flags=1) + frame(Kind.PING, b"are here"))
        while client.next() != (Kind.PING, 1, b"are here"):
            pass
        process.popen.send_signal(signal.SIGTERM)
        began = time.monotonic()
        process.popen.wait(PATIENCE)
        assert time.monotonic() - began < AT_ONCE
        goaways = [payload for kind, _, payload in iter(client.next, None) if kind == Kind.GOAWAY]
        assert int.from_bytes(goaways[-1][:4]) & LARGEST_WINDOW == 0  # the client knows that no request was taken
        assert int.from_bytes(goaways[-1][4:8]) == ErrorCodes.NO_ERROR
        client.close()
    finally:
        process.end()


def test_an_idle_channel_of_grpc_is_not_waited_for(tmp_path: Path) -> None:
    process = ServerProcess(str(write_model(tmp_path / "model", MODEL)))
    try:
        address = process.wait_for("listening")["url"].partition("://")[2]
        process.wait_for("ready")
        with grpc.insecure_channel(address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
            process.popen.send_signal(signal.SIGTERM)
            began = time.monotonic()
            process.popen.wait(PATIENCE)
            assert time.monotonic() - began < AT_ONCE
    finally:
        process.end()
