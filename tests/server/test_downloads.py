"""Inputs by http: and https: URL, against a real web server."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import httpcore
import pytest

from geartrain.domain.signature.types import InputField, OutputSpec, RecordField, Signature, TypeSpec
from geartrain.outbound import downloads
from geartrain.outbound.files import DownloadError
from geartrain.outbound.inputs import InputFiles
from geartrain.outbound.network import GuardedBackend
from geartrain.outbound.policy import AddressRefusedError, UrlPolicy
from tests.support.web_server import Exchange, Server, running_server, unused_port

PATH = TypeSpec("path")
SIGNATURE = Signature(
    (
        InputField("f", TypeSpec("path", nullable=True)),
        InputField("l", TypeSpec("array", items=PATH)),
        InputField("r", TypeSpec("record", fields=(RecordField("a", TypeSpec("file")),))),
    ),
    OutputSpec(TypeSpec("string")),
)
LIMIT = 1 << 20


@pytest.fixture
def server() -> Iterator[Server]:
    with running_server() as server:
        yield server


def input_files(
    *, allow_private: bool = True, max_bytes: int = LIMIT, timeout: float = 30, user_agent: str | None = None
) -> InputFiles:
    policy = UrlPolicy(allow_private)
    return InputFiles(SIGNATURE, policy=policy, max_bytes=max_bytes, timeout=timeout, user_agent=user_agent)


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def content(path: str) -> bytes:
    return Path(path).read_bytes()


async def failure(files: InputFiles, values: dict[str, Any], folder: Path) -> str:
    """The sentence that a fetch fails with; it has left no file (D12)."""
    with pytest.raises(DownloadError) as caught:
        await files.fetch(values, lambda: folder)
    assert listed(folder) == []
    return str(caught.value)


# what is fetched


async def test_url_becomes_a_file(server: Server, tmp_path: Path) -> None:
    url = server.serve("/dir/im%20g.png", b"\x89PNG") + "?q=1"
    fetched = await input_files().fetch({"f": url, "other": url}, lambda: tmp_path)
    assert content(fetched["f"]) == b"\x89PNG"
    assert PurePath(fetched["f"]).parent == tmp_path
    assert PurePath(fetched["f"]).name.startswith("tmp")
    assert fetched["f"].endswith("im g.png")
    assert fetched["other"] == url
    assert server.paths() == ["/dir/im%20g.png?q=1"]


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_whoever_watches_is_told_how_far_it_has_come(server: Server, tmp_path: Path, encoding: str) -> None:
    body = b"x" * 300_000
    url = server.serve("/x", gzip.compress(body, mtime=0) if encoding == "gzip" else body, Content_Encoding=encoding)
    told: list[tuple[str, int, int | None]] = []
    files = InputFiles(
        SIGNATURE,
        policy=UrlPolicy(allow_private=True),
        max_bytes=LIMIT,
        timeout=30,
        on_bytes=lambda *it: told.append(it),
    )
    await files.fetch({"l": [url, "data:,x"]}, lambda: tmp_path)
    assert {place for place, _, _ in told} == {"l/0"}
    sizes = [size for _, size, _ in told]
    assert sizes == sorted(sizes)
    assert {total for _, _, total in told[:-1]} == {None if encoding == "gzip" else 300_000}
    assert told[-1] == ("l/0", 300_000, 300_000)


async def test_scheme_may_be_in_any_case(server: Server, tmp_path: Path) -> None:
    server.serve("/x.txt", b"x")
    fetched = await input_files().fetch({"f": f"HTTP://127.0.0.1:{server.port}/x.txt"}, lambda: tmp_path)
    assert content(fetched["f"]) == b"x"


async def test_d12_urls_of_every_kind_mix(server: Server, tmp_path: Path) -> None:
    one, two = server.serve("/1", b"1"), server.serve("/2", b"2")
    values = {"l": [one, "data:,3", two], "r": {"a": one}}
    fetched = await input_files().fetch(values, lambda: tmp_path)
    assert [content(path) for path in fetched["l"]] == [b"1", b"3", b"2"]
    assert content(fetched["r"]["a"]) == b"1"
    assert len(listed(tmp_path)) == 4


async def test_downloads_run_in_parallel(server: Server, tmp_path: Path) -> None:
    def last(exchange: Exchange) -> None:
        assert server.held.acquire(timeout=40)  # released by the other one
        exchange.reply(b"last")

    def first(exchange: Exchange) -> None:
        server.held.release()
        exchange.reply(b"first")

    server.routes.update({"/last": last, "/first": first})
    fetched = await input_files().fetch({"l": [server.url("/last"), server.url("/first")]}, lambda: tmp_path)
    assert [content(path) for path in fetched["l"]] == [b"last", b"first"]


async def test_many_files(server: Server, tmp_path: Path) -> None:
    urls = [server.serve(f"/{number}", str(number).encode()) for number in range(30)]
    fetched = await input_files().fetch({"l": urls}, lambda: tmp_path)
    assert [content(path) for path in fetched["l"]] == [str(number).encode() for number in range(30)]


async def test_large_file_arrives_whole(server: Server, tmp_path: Path) -> None:
    large = bytes(range(256)) * 40_000
    url = server.serve("/large", large)
    fetched = await input_files(max_bytes=len(large)).fetch({"f": url}, lambda: tmp_path)
    assert content(fetched["f"]) == large


async def test_body_in_chunks(server: Server, tmp_path: Path) -> None:
    def chunked(exchange: Exchange) -> None:
        exchange.send_response(200)
        exchange.send_header("Transfer-Encoding", "chunked")
        exchange.end_headers()
        exchange.wfile.write(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")

    server.routes["/chunked"] = chunked
    fetched = await input_files().fetch({"f": server.url("/chunked")}, lambda: tmp_path)
    assert content(fetched["f"]) == b"abcde"


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(b"hello", mtime=0)),
        ("x-gzip", gzip.compress(b"hello", mtime=0)),
        ("GZIP", gzip.compress(b"hel", mtime=0) + gzip.compress(b"lo", mtime=0)),
        ("gzip", gzip.compress(b"hello", mtime=0) + b"\0" * 100),
        ("deflate", zlib.compress(b"hello")),
        ("identity", b"hello"),
    ],
)
async def test_compression_is_undone(server: Server, tmp_path: Path, encoding: str, body: bytes) -> None:
    url = server.serve("/x", body, Content_Encoding=encoding)
    fetched = await input_files().fetch({"f": url}, lambda: tmp_path)
    assert content(fetched["f"]) == b"hello"
    assert server.received[0].headers["accept-encoding"] == "gzip"


async def test_large_compressed_file_arrives_whole(server: Server, tmp_path: Path) -> None:
    large = b"".join(number.to_bytes(4, "big") for number in range(200_000)) + bytes(5_000_000)
    url = server.serve("/x", gzip.compress(large, mtime=0), Content_Encoding="gzip")
    fetched = await input_files(max_bytes=len(large)).fetch({"f": url}, lambda: tmp_path)
    assert content(fetched["f"]) == large


@pytest.mark.parametrize(("given", "sent"), [(None, "geartrain"), ("mine/1.0", "mine/1.0")])
async def test_user_agent(server: Server, tmp_path: Path, given: str | None, sent: str) -> None:
    await input_files(user_agent=given).fetch({"f": server.serve("/x")}, lambda: tmp_path)
    assert server.received[0].headers["user-agent"] == sent


async def test_environment_proxy_and_netrc_are_not_used(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login operator password hunter2")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{unused_port()}")
    folder = tmp_path / "folder"
    folder.mkdir()
    await input_files().fetch({"f": server.serve("/x")}, lambda: folder)
    assert "authorization" not in server.received[0].headers


async def test_password_in_the_url_is_sent(server: Server, tmp_path: Path) -> None:
    server.serve("/x")
    await input_files().fetch({"f": server.url("/x", host="user:pass@127.0.0.1")}, lambda: tmp_path)
    assert server.received[0].headers["authorization"] == "Basic dXNlcjpwYXNz"


async def test_cookies_do_not_outlive_a_prediction(server: Server, tmp_path: Path) -> None:
    url = server.serve("/x", Set_Cookie="session=secret; Path=/")
    files = input_files()
    await files.fetch({"f": url}, lambda: tmp_path)
    await files.fetch({"f": url}, lambda: tmp_path)
    assert ["cookie" in received.headers for received in server.received] == [False, False]


# redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_followed(server: Server, tmp_path: Path, status: int) -> None:
    url = server.serve("/from.png", status=status, Location="/to?x")
    server.serve("/to", b"there")
    fetched = await input_files().fetch({"f": url}, lambda: tmp_path)
    assert content(fetched["f"]) == b"there"
    assert fetched["f"].endswith("from.png")


async def test_ten_redirects_are_followed_and_eleven_are_not(server: Server, tmp_path: Path) -> None:
    for number in range(1, 12):
        server.serve(f"/{number}", status=302, Location=f"/{number - 1}")
    server.serve("/0", b"there")
    folder = tmp_path / "folder"
    folder.mkdir()
    await input_files().fetch({"f": server.url("/10")}, lambda: tmp_path)
    assert "there are more than 10 redirects" in await failure(input_files(), {"f": server.url("/11")}, folder)


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/x"])
async def test_redirect_to_another_scheme_is_refused(server: Server, tmp_path: Path, location: str) -> None:
    url = server.serve("/x", status=302, Location=location)
    assert "neither http: nor https:" in await failure(input_files(), {"f": url}, tmp_path)


async def test_endless_body_of_a_redirect_is_not_read(server: Server, tmp_path: Path) -> None:
    def endless(exchange: Exchange) -> None:
        exchange.send_response(302)
        exchange.send_header("Location", "/to")
        exchange.send_header("Content-Length", str(1 << 40))
        exchange.end_headers()
        exchange.wfile.write(b"x" * 1000)
        exchange.hold()

    server.routes["/x"] = endless
    server.serve("/to", b"there")
    fetched = await input_files().fetch({"f": server.url("/x")}, lambda: tmp_path)
    assert content(fetched["f"]) == b"there"


# addresses


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0.0.0.0", "[::ffff:127.0.0.1]", "[::1]", "[::]"],  # noqa: S104
)
async def test_d11_internal_addresses_are_refused_however_written(server: Server, tmp_path: Path, host: str) -> None:
    server.serve("/x")
    files = input_files(allow_private=False)
    sentence = await failure(files, {"f": server.url("/x", host=host)}, tmp_path)
    assert sentence.startswith(f'Cannot fetch http://{host}:{server.port}/x for the input "f": ')
    assert "--allow-private-urls" in sentence
    assert server.received == []


async def test_redirect_hop_is_judged_as_well(server: Server, tmp_path: Path) -> None:
    url = server.serve("/x", status=302, Location="http://169.254.169.254/latest/meta-data/")
    assert "may never lead to" in await failure(input_files(), {"f": url}, tmp_path)


async def test_metadata_service_is_refused_even_with_the_flag(tmp_path: Path) -> None:
    for host in ("169.254.169.254", "[fe80::1]", "[fd00:ec2::254]", "[::ffff:169.254.169.254]", "2852039166"):
        assert "may never lead to" in await failure(input_files(), {"f": f"http://{host}/x"}, tmp_path)


async def test_name_is_resolved_once_and_the_checked_address_connected_to(server: Server) -> None:
    answers = iter([["10.0.0.1", "127.0.0.1"]])  # a second question would fail

    async def resolver(host: str, port: int) -> list[str]:
        assert (host, port) == ("rebinding.test", server.port)
        return next(answers)

    class OnlyTheServer(UrlPolicy, frozen=True):
        def refusal(self, address: str) -> str | None:
            return None if address == "127.0.0.1" else "elsewhere"

    stream = await GuardedBackend(OnlyTheServer(), resolver).connect_tcp("rebinding.test", server.port, 5)
    assert stream.get_extra_info("server_addr") == ("127.0.0.1", server.port)
    await stream.aclose()


async def test_next_address_is_tried_when_one_does_not_answer(server: Server) -> None:
    async def resolver(host: str, port: int) -> list[str]:
        return ["127.0.0.2", "127.0.0.1"]  # the server listens on the second alone

    backend = GuardedBackend(UrlPolicy(allow_private=True), resolver)
    stream = await backend.connect_tcp("two.test", server.port, 5)
    assert stream.get_extra_info("server_addr")[0] == "127.0.0.1"
    await stream.aclose()


async def test_refused_name_is_not_connected_to(server: Server) -> None:
    async def resolver(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    with pytest.raises(AddressRefusedError, match=r"^inside\.test is a loopback"):
        await GuardedBackend(UrlPolicy(), resolver).connect_tcp("inside.test", server.port, 5)


async def test_slow_resolver_does_not_hold_a_download() -> None:
    async def resolver(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        raise AssertionError("never")

    with pytest.raises(httpcore.ConnectTimeout, match="not resolved in time"):
        await GuardedBackend(UrlPolicy(), resolver).connect_tcp("slow.test", 80, 0.05)


# what goes wrong


@pytest.mark.parametrize(
    ("status", "text"),
    [(404, "404 Not Found"), (500, "500 Internal Server Error"), (304, "304 Not Modified"), (299 + 300, "599")],
)
async def test_answer_that_is_no_success(server: Server, tmp_path: Path, status: int, text: str) -> None:
    url = server.serve("/a.png", status=status)
    sentence = await failure(input_files(), {"f": url + "?signature=secret"}, tmp_path)
    assert sentence == f'Cannot fetch {url} for the input "f": the server answered {text}'


async def test_server_that_is_not_there(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{unused_port()}/x"
    assert "the connection failed: Connection refused" in await failure(input_files(), {"f": url}, tmp_path)


@pytest.mark.parametrize("host", ["nobody.invalid", "x" * 70 + ".test", "a..b"])
async def test_name_that_is_unknown_or_none(tmp_path: Path, host: str) -> None:
    sentence = await failure(input_files(), {"f": f"http://{host}/x"}, tmp_path)
    assert "cannot be resolved" in sentence or "the URL is malformed" in sentence


async def test_silent_server(server: Server, tmp_path: Path) -> None:
    server.routes["/x"] = Exchange.hold
    files = input_files(timeout=0.2)
    assert "the server was silent for 0.2 s" in await failure(files, {"f": server.url("/x")}, tmp_path)


async def test_server_that_falls_silent(server: Server, tmp_path: Path) -> None:
    def half(exchange: Exchange) -> None:
        exchange.reply(b"half", Content_Length="8")
        exchange.hold()

    server.routes["/x"] = half
    files = input_files(timeout=0.2)
    assert "the server was silent for 0.2 s" in await failure(files, {"f": server.url("/x")}, tmp_path)


async def test_server_that_trickles_for_ever(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trickle(exchange: Exchange) -> None:
        exchange.reply(Content_Length="1000000000")
        while True:  # until the client disconnects
            exchange.wfile.write(b"x")

    monkeypatch.setattr(downloads, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(downloads, "_SLOWEST", 1 << 40)
    server.routes["/x"] = trickle
    files = input_files(max_bytes=1 << 40)
    assert "the download took too long" in await failure(files, {"f": server.url("/x")}, tmp_path)


async def test_server_that_breaks_off(server: Server, tmp_path: Path) -> None:
    def half(exchange: Exchange) -> None:
        exchange.reply(b"half", Content_Length="8")
        exchange.close_connection = True

    server.routes["/x"] = half
    assert "the server broke off" in await failure(input_files(), {"f": server.url("/x")}, tmp_path)


async def test_server_that_speaks_no_http(server: Server, tmp_path: Path) -> None:
    def nonsense(exchange: Exchange) -> None:
        exchange.wfile.write(b"nonsense\r\n\r\n")
        exchange.close_connection = True

    server.routes["/x"] = nonsense
    assert "broke the protocol" in await failure(input_files(), {"f": server.url("/x")}, tmp_path)


async def test_file_that_announces_too_much(server: Server, tmp_path: Path) -> None:
    def large(exchange: Exchange) -> None:
        exchange.reply(Content_Length=str(LIMIT + 1))
        exchange.hold()  # the refusal does not wait for the body

    server.routes["/x"] = large
    assert "larger than the limit of 1 MiB" in await failure(input_files(), {"f": server.url("/x")}, tmp_path)


async def test_file_that_turns_out_too_large(server: Server, tmp_path: Path) -> None:
    def endless(exchange: Exchange) -> None:
        exchange.send_response(200)
        exchange.send_header("Transfer-Encoding", "chunked")
        exchange.end_headers()
        while True:  # until the client disconnects
            exchange.wfile.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")

    server.routes["/x"] = endless
    assert "larger than the limit of 1 MiB" in await failure(input_files(), {"f": server.url("/x")}, tmp_path)


async def test_file_of_exactly_the_limit_is_taken(server: Server, tmp_path: Path) -> None:
    url = server.serve("/x", bytes(LIMIT))
    fetched = await input_files().fetch({"f": url}, lambda: tmp_path)
    assert len(content(fetched["f"])) == LIMIT


async def test_decoded_size_counts_and_a_bomb_takes_no_memory(server: Server, tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(40 << 20))
    url = server.serve("/x", bomb, Content_Encoding="gzip")
    files = input_files(max_bytes=4 << 20)
    assert len(bomb) < 1 << 16  # it arrives in one piece
    tracemalloc.start()
    try:
        sentence = await failure(files, {"f": url}, tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "larger than the limit of 4 MiB" in sentence
    assert peak < 8 << 20


@pytest.mark.parametrize(
    ("encoding", "body", "text"),
    [
        ("gzip", b"not gzip at all", "its compressed content is damaged"),
        ("gzip", gzip.compress(b"hello" * 100, mtime=0)[:-4], "its compressed content is damaged"),
        ("br", b"x", "the content encoding 'br', which is not supported"),
        ("gzip, gzip", b"x", "the content encoding 'gzip, gzip', which is not supported"),
    ],
)
async def test_content_that_cannot_be_decoded(
    server: Server, tmp_path: Path, *, encoding: str, body: bytes, text: str
) -> None:
    url = server.serve("/x", body, Content_Encoding=encoding)
    assert text in await failure(input_files(), {"f": url}, tmp_path)


async def test_first_failure_ends_the_other_downloads(server: Server, tmp_path: Path) -> None:
    def missing(exchange: Exchange) -> None:
        assert server.held.acquire(timeout=40)  # the other download is under way
        exchange.reply(status=404)

    def half(exchange: Exchange) -> None:
        exchange.reply(b"half", Content_Length="8")
        exchange.hold()

    server.routes.update({"/missing": missing, "/half": half})
    values = {"l": [server.url("/half"), server.url("/missing")]}
    assert '/missing for the input "l/1": the server answered 404' in await failure(input_files(), values, tmp_path)
    assert await asyncio.to_thread(server.hung_up.acquire, timeout=40)


@pytest.mark.parametrize("begun", [False, True], ids=["before the answer", "in mid-body"])
async def test_d12_cancel_stops_the_downloads_and_leaves_nothing(server: Server, tmp_path: Path, begun: bool) -> None:
    def half(exchange: Exchange) -> None:
        if begun:
            exchange.reply(b"half", Content_Length="8")
        exchange.hold()

    server.routes["/half"] = half
    values = {"l": ["data:,x", server.url("/half"), server.url("/half")]}
    fetching = asyncio.create_task(input_files().fetch(values, lambda: tmp_path))
    for _ in range(2):
        assert await asyncio.to_thread(server.held.acquire, timeout=40)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    assert listed(tmp_path) == []
    for _ in range(2):
        assert await asyncio.to_thread(server.hung_up.acquire, timeout=40)


async def test_url_is_not_logged(server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = server.serve("/x") + "?signature=secret"
    caplog.set_level("DEBUG")
    await input_files().fetch({"f": url}, lambda: tmp_path)
    assert "secret" not in caplog.text


# the cost


def test_httpx_is_not_imported_before_the_first_url() -> None:
    script = (
        "import asyncio, pathlib, sys, tempfile\n"
        "from geartrain.domain.signature.types import InputField, OutputSpec, Signature, TypeSpec\n"
        "from geartrain.outbound import inputs, outputs, webhooks, workspace\n"
        "from geartrain.outbound.policy import UrlPolicy\n"
        "signature = Signature((InputField('f', TypeSpec('path')),), OutputSpec(TypeSpec('string')))\n"
        "files = inputs.InputFiles(signature, policy=UrlPolicy(), max_bytes=9, timeout=9)\n"
        "async def main():\n"
        "    space = workspace.Workspace()\n"
        "    await files.fetch({'f': 'data:,x'}, space.folder().path)\n"
        "    await space.close()\n"
        "    print({'httpx', 'httpcore'} & set(sys.modules))\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for the name `localhost`, and its key, in one file."""
    path = tmp_path_factory.mktemp("tls") / "localhost.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    command += [
        "-addext",
        "keyUsage=digitalSignature,keyCertSign",
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
        "-keyout",
        "-",
        "-out",
        "-",
    ]
    try:
        path.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("no openssl program to make a certificate with")
    return path


@pytest.fixture
def tls_server(certificate: Path) -> Iterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with running_server(context) as server:
        yield server


async def test_https_is_checked_against_the_name_and_ssl_cert_file(
    tls_server: Server, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls_server.serve("/x", b"secure")
    good = tls_server.url("/x", host="localhost", scheme="https")
    wrong = tls_server.url("/x", scheme="https")
    assert "CERTIFICATE_VERIFY_FAILED" in await failure(input_files(), {"f": good}, tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    files = input_files()
    assert "IP address mismatch" in await failure(files, {"f": wrong}, tmp_path)
    fetched = await files.fetch({"f": good}, lambda: tmp_path)
    assert content(fetched["f"]) == b"secure"
