"""A real web server on 127.0.0.1 for what geartrain fetches and sends."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Received:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Exchange(BaseHTTPRequestHandler):
    """One request being answered; a route gets this."""

    protocol_version = "HTTP/1.1"
    server: Server

    def reply(self, body: bytes = b"", status: int = 200, **headers: str) -> None:
        """Answer; an underscore in a header's name stands for a hyphen."""
        self.send_response(status)
        self.send_header("Content-Length", headers.pop("Content_Length", str(len(body))))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def hold(self) -> None:
        """Answer no further until the client has disconnected."""
        self.wfile.flush()
        self.server.held.release()
        with contextlib.suppress(OSError):
            self.connection.recv(1)
        self.close_connection = True
        self.server.hung_up.release()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        received = Received(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
        with self.server.lock:
            self.server.received.append(received)
        route = self.server.routes.get(self.path.partition("?")[0])
        if route is None:
            self.reply(b"no such page", 404)
        else:
            route(self)

    do_GET = do_PUT = do_POST = _answer  # noqa: N815 - the base class's names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


Route = Callable[[Exchange], None]


class Server(ThreadingHTTPServer):
    """Answers the routes that a test sets, and keeps what it received."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.routes: dict[str, Route] = {}
        self.received: list[Received] = []
        self.lock = threading.Lock()
        self.held = threading.Semaphore(0)
        self.hung_up = threading.Semaphore(0)

    @property
    def port(self) -> int:
        return self.server_port

    def url(self, path: str = "/", *, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    def serve(self, path: str, body: bytes = b"", status: int = 200, **headers: str) -> str:
        """Answer `path` with these; return its URL."""
        self.routes[path] = lambda exchange: exchange.reply(body, status, **headers)
        return self.url(path)

    def paths(self) -> list[str]:
        return [received.path for received in self.received]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that disconnected is no error here."""


@contextlib.contextmanager
def running_server(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """A server for the time of the `with` block."""
    with Server() as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def unused_port() -> int:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


__all__ = ["Exchange", "Received", "Server", "running_server", "unused_port"]
