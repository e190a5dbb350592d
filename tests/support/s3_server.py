"""A real S3 server on the loopback, moto's, and a line to it that can be held and cut."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from obstore.store import S3Store

BUCKET: Final = "bucket"
_PIECE: Final = 65536


class Line:
    """Passes bytes on between clients and a server, as many as it is allowed to."""

    def __init__(self, port: int) -> None:
        """`port` is the server's, on the loopback."""
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.received = 0  # bytes that clients have got
        self.cuts: list[int] = []  # each cuts one connection when so many bytes have come to the clients
        self.hold_at = 0  # bytes after which nothing more comes, until the line goes on
        self._moves = threading.Condition()
        self._is_closed = False
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def go_on(self) -> None:
        """Hold nothing any more."""
        with self._moves:
            self.hold_at = 0
            self._moves.notify_all()

    def close(self) -> None:
        """End the line, and all connections."""
        self._is_closed = True
        self.go_on()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(40)
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(40)
        for each in (self._listener, *self._sockets):
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it has been closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += (client, server)
                for source, sink, is_answer in ((client, server, False), (server, client, True)):
                    thread = threading.Thread(target=self._pass, args=(source, sink, is_answer), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _pass(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                if is_answer and not self._may_pass(len(piece)):
                    break
                sink.sendall(piece)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _may_pass(self, size: int) -> bool:
        """Wait until a piece may be passed on; return whether the connection goes on."""
        with self._moves:
            if self.cuts and self.received + size > self.cuts[0]:
                self.cuts.pop(0)
                return False
            self._moves.wait_for(lambda: not self.hold_at or self.received + size <= self.hold_at, 40)
            self.received += size
            return not self._is_closed


class S3Server:
    """The server: its address, its objects, and the environment of those who ask it."""

    def __init__(self, port: int) -> None:
        self._port = port

    def environ(self, port: int | None = None) -> dict[str, str]:
        """Return the variables of a client, over a line if its `port` is given."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self._port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "TOPSECRET",
            "AWS_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
        }

    def put(self, **files: bytes) -> None:
        """Store objects by their keys."""
        import obstore

        for key, content in files.items():
            obstore.put(self._store(), key, content)

    def _store(self) -> S3Store:
        from obstore.store import S3Store

        return S3Store(
            BUCKET,
            endpoint=self.environ()["AWS_ENDPOINT_URL"],
            access_key_id="key",
            secret_access_key="TOPSECRET",
            region="us-east-1",
            client_options={"allow_http": True},
        )

    @contextlib.contextmanager
    def line(self) -> Iterator[Line]:
        """Return a line to the server, until the end of the block."""
        with contextlib.closing(Line(self._port)) as line:
            yield line


@contextlib.contextmanager
def running_s3() -> Iterator[S3Server]:
    """Run the server with one empty bucket until the end of the block."""
    import httpx
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        port = server.get_host_and_port()[1]
        httpx.put(f"http://127.0.0.1:{port}/{BUCKET}", trust_env=False).raise_for_status()
        yield S3Server(port)
    finally:
        server.stop()
