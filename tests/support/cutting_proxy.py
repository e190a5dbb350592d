"""A proxy in front of a server that breaks connections when the server has answered, and the client not heard of it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit


class CuttingProxy:
    """Passes on one request a connection; `cuts`: how many answers are still to be lost."""

    def __init__(self, upstream: str) -> None:
        address = urlsplit(upstream)
        self._upstream = (address.hostname or "", address.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts = 0
        self.requests: list[bytes] = []  # their first lines

    def serve(self) -> None:
        """Take connections, one after the other, until the listener is closed."""
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client:
                    self._pass_on(client)

    def close(self) -> None:
        """Take no further connection."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _pass_on(self, client: socket.socket) -> None:
        request = _message(client)
        self.requests.append(request.partition(b"\r\n")[0])
        with socket.create_connection(self._upstream) as server:
            server.sendall(request)
            answer = _message(server)
        if self.cuts:
            self.cuts -= 1
            return
        head, blank, body = answer.partition(b"\r\n\r\n")
        client.sendall(head + b"\r\nconnection: close" + blank + body)


def _message(sock: socket.socket) -> bytes:
    """Read a head, and a body of a known length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _more(sock)
    head, _, body = data.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
    size = int(fields.get(b"content-length", b"0"))
    while len(body) < size:
        more = _more(sock)
        body += more
        data += more
    return data


def _more(sock: socket.socket) -> bytes:
    data = sock.recv(65536)
    if not data:
        raise ConnectionResetError("it was closed too early")
    return data


@contextlib.contextmanager
def cutting_proxy(upstream: str) -> Iterator[CuttingProxy]:
    """Have such a proxy for a `with` block."""
    proxy = CuttingProxy(upstream)
    thread = threading.Thread(target=proxy.serve)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
