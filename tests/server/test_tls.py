"""TLS on real sockets, with each event loop that a server may have."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
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
from tests.support.tls_records import key_updates
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


@asynccontextmanager
async def serving(files: TlsFiles, *, head_timeout: float = 5) -> AsyncIterator[int]:
    """A server of HTTP; its port."""
    server = WireServer(NotingHandler(), WireLimits(head_timeout=head_timeout))
    listener = socket.create_server(("127.0.0.1", 0))
    server.listen(listener, TlsContext(files).context)
    try:
        yield listener.getsockname()[1]
    finally:
        server.close()
        await server.drained()
        server.stop()


def ask(port: int, context: ssl.SSLContext) -> bytes:
    """The status line of an answer, empty if the server ends the connection instead."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as client,
        ):
            client.sendall(get("/"))
            return client.recv(12)
    except (ssl.SSLError, ConnectionError):
        return b""


@LOOPS
def test_flood_of_key_updates_is_cut_off_while_others_are_served(
    new_loop: NewLoop, files: TlsFiles, ca: Party, caplog: pytest.LogCaptureFixture
) -> None:
    context = ssl.create_default_context(cadata=ca.cert.decode())
    seconds: list[float] = []

    def flood(port: int) -> bool:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain:
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    plain.sendall(outgoing.read())
                    incoming.write(plain.recv(65_536))
            plain.sendall(outgoing.read() + key_updates(client, outgoing, 1))
            updates = key_updates(client, outgoing, 40_000)
            try:
                plain.sendall(updates)
                began = time.monotonic()
                while plain.recv(65_536):
                    pass
                seconds.append(time.monotonic() - began)
            except ConnectionError:
                return True
        return True

    async def main() -> None:
        async with serving(files) as port:
            flooding = asyncio.to_thread(flood, port)
            answers = [asyncio.to_thread(ask, port, context) for _ in range(20)]
            is_cut_off, *answered = await asyncio.gather(flooding, *answers)
            assert is_cut_off
            assert answered == [b"HTTP/1.1 200"] * 20

    run(new_loop, main)
    assert all(each < 5 for each in seconds)  # the head timeout has not ended it
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@LOOPS
def test_clients_with_hostile_certificates_are_refused_and_others_served(
    new_loop: NewLoop, files: TlsFiles, tmp_path: Path, ca: Party, caplog: pytest.LogCaptureFixture
) -> None:
    authority = make_party("clients")
    other = make_party("others")
    chain, heavy = [authority], [authority]
    for number in range(100):
        chain.append(make_party(f"between {number}", chain[-1], is_authority=True))
        heavy.append(make_party(f"heavy {number}", heavy[-1], is_authority=True, padding=1000))
    parties = {
        "expired": make_party("expired", authority, is_expired=True),
        "of another authority": make_party("stranger", other),
        "signed by itself": other,
        "huge": make_party("huge", authority, padding=200_000),
    }
    mutual = TlsFiles(cert=files.cert, key=files.key, client_ca=authority.write(tmp_path, "clients")[0])

    def context(party: Party | None, *between: Party) -> ssl.SSLContext:
        made = ssl.create_default_context(cadata=ca.cert.decode())
        if party is not None:
            cert, key = party.write(tmp_path, "client")
            cert.write_bytes(party.cert + b"".join(each.cert for each in between))
            made.load_cert_chain(cert, key)
        return made

    contexts = {name: context(party) for name, party in parties.items()}
    contexts["behind 100 large ones"] = context(make_party("heavy", heavy[-1]), *heavy[:0:-1])
    contexts["none"] = context(None)
    far = context(make_party("far", chain[-1]), *chain[:0:-1])  # unusual, and right
    good = context(make_party("good", authority))

    async def main() -> None:
        async with serving(mutual) as port:
            for name, made in contexts.items():
                for version in (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2):
                    made.maximum_version = version
                    began = time.monotonic()
                    assert (name, await asyncio.to_thread(ask, port, made)) == (name, b"")
                    assert time.monotonic() - began < 4  # refused, and not timed out
            for made in (far, good):
                assert await asyncio.to_thread(ask, port, made) == b"HTTP/1.1 200"

    run(new_loop, main)
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@LOOPS
def test_odd_hellos_and_clients_that_speak_another_protocol_than_agreed_end_alone(
    new_loop: NewLoop, files: TlsFiles, ca: Party, caplog: pytest.LogCaptureFixture
) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))

    def speak(port: int, agreed: list[str], said: bytes) -> bytes:
        context = ssl.create_default_context(cadata=ca.cert.decode())
        context.set_alpn_protocols(agreed)
        with (
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as client,
        ):
            client.sendall(said)
            heard = b""
            while piece := client.recv(65_536):
                heard += piece
            return heard

    def greet(port: int, name: bytes, *, slowly: bool) -> None:
        """Send a hello with another name of the server, which may be none at all; wait for the end."""
        outgoing = ssl.MemoryBIO()
        client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        hello = outgoing.read().replace(b"localhost", name)
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in [bytes((byte,)) for byte in hello] if slowly else [hello]:
                plain.sendall(piece)
            plain.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while plain.recv(65_536):
                    pass

    async def main() -> None:
        async with serving(files, head_timeout=0.5) as port:
            get_and_end = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
            for agreed in (["http/1.1"], ["spdy/3"], ["x" * 255] * 10):
                heard = await asyncio.to_thread(speak, port, agreed, get_and_end)
                assert heard.startswith(b"HTTP/1.1 200"), agreed
            heard = await asyncio.to_thread(speak, port, ["h2"], get_and_end)
            assert b"\x00\x00\x00\x00\x01" in heard  # GOAWAY with PROTOCOL_ERROR
            assert b"HTTP/1.1 200" not in heard
            heard = await asyncio.to_thread(speak, port, ["http/1.1"], preface + bytes((0, 0, 0, 4, 1, 0, 0, 0, 9)))
            assert b"200" not in heard
            for name in (b"localhost", bytes(9), b"\xff" * 9, b".........", b"127.0.0.1", b"a\nb\r\n\r\nc"):
                for slowly in (False, True):
                    await asyncio.to_thread(greet, port, name, slowly=slowly)
            heard = await asyncio.to_thread(speak, port, ["http/1.1"], get_and_end)
            assert heard.startswith(b"HTTP/1.1 200")

    run(new_loop, main)
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
