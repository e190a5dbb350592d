"""TLS on real sockets, with each event loop that a server may have."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from geartrain.transport.wire.limits import WireLimits
from geartrain.transport.wire.server import WireServer
from geartrain.transport.wire.tls import TlsContext, TlsFiles
from tests.support.certificates import Party, make_party
from tests.support.servers import PATIENCE
from tests.unit.transport.wire.parts import NotingHandler, get

LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
NewLoop = Callable[[], asyncio.AbstractEventLoop]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(scope="module")
def ca() -> Party:
    return make_party("ca")


@pytest.fixture
def files(tmp_path: Path, ca: Party) -> TlsFiles:
    cert, key = make_party("first", ca).write(tmp_path, "server")
    return TlsFiles(cert=cert, key=key)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


@asynccontextmanager
async def listening(tls: TlsContext) -> AsyncIterator[int]:
    """A server that sends back what it gets; its port."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=tls.context, ssl_handshake_timeout=5)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def connected(port: int, ca: Party) -> Streams:
    context = ssl.create_default_context(cadata=ca.cert.decode())
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


def shown(streams: Streams) -> str:
    """The name in the server's certificate."""
    return str(streams[1].get_extra_info("peercert")["subject"][0][0][1])


async def echoed(streams: Streams, text: bytes) -> bytes:
    streams[1].write(text)
    return await streams[0].readexactly(len(text))


async def closed(*all_streams: Streams) -> None:
    for _, writer in all_streams:
        writer.close()
        await writer.wait_closed()


def run(new_loop: NewLoop, main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(40):
            await main()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(bounded())


@LOOPS
def test_renewed_certificate_is_for_new_connections_and_old_ones_live_on(
    new_loop: NewLoop, files: TlsFiles, tmp_path: Path, ca: Party
) -> None:
    async def main() -> None:
        tls = TlsContext(files)
        async with listening(tls) as port:
            old = await connected(port, ca)
            make_party("second", ca).write(tmp_path, "server")
            assert [tls.refresh(), tls.refresh()] == [False, True]
            new = await connected(port, ca)
            assert (shown(old), shown(new)) == ("first", "second")
            assert (await echoed(old, b"still here"), await echoed(new, b"new here")) == (b"still here", b"new here")
            await closed(old, new)

    run(new_loop, main)


@LOOPS
def test_client_that_speaks_no_tls_is_dropped_without_a_line_in_the_log(
    new_loop: NewLoop, files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with listening(TlsContext(files)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.read()  # an alert, if anything; then the end
            await closed((reader, writer))

    run(new_loop, main)
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@LOOPS
def test_end_does_not_wait_for_an_idle_client(new_loop: NewLoop, files: TlsFiles, ca: Party) -> None:
    def ask(port: int) -> ssl.SSLSocket:
        context = ssl.create_default_context(cadata=ca.cert.decode())
        plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        client = context.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False)
        client.sendall(get("/"))
        assert client.recv(12) == b"HTTP/1.1 200"
        return client

    async def main() -> None:
        server = WireServer(NotingHandler(), WireLimits(head_timeout=3600))  # which TLS gives clients to say goodbye
        listener = socket.create_server(("127.0.0.1", 0))
        server.listen(listener, TlsContext(files).context)
        client = await asyncio.to_thread(ask, listener.getsockname()[1])
        server.close()
        await server.drained()
        server.stop()
        with client:
            while client.recv(1024):  # up to the alert that tells of the end; without it this raises an error
                pass

    run(new_loop, main)
