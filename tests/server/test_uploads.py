"""Output files sent to `--upload-url`, against a real receiver."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from geartrain.domain.predictions.calls import FileRef
from geartrain.outbound import upload_client
from geartrain.outbound.files import OutputFileError
from geartrain.outbound.outputs import OutputDestinations
from geartrain.outbound.policy import UrlPolicy
from geartrain.outbound.retries import Retries
from tests.support.web_server import Exchange, Server, running_server, unused_port


@pytest.fixture
def server() -> Iterator[Server]:
    with running_server() as server:
        yield server


@pytest.fixture
async def uploader(server: Server) -> AsyncIterator[OutputDestinations]:
    uploader = an_uploader(server.url("/up"))
    yield uploader
    await uploader.close()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_client, "_RETRIES", Retries(tries=4, first_pause=0, jitter=0))


def an_uploader(url: str) -> OutputDestinations:
    return OutputDestinations(UrlPolicy(), upload_url=url)


def a_file(folder: Path, name: str, content: bytes = b"content") -> FileRef:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return FileRef(f"token-{path.stat().st_ino}", str(path), "image/png")


async def upload(uploader: OutputDestinations, *files: FileRef, prediction_id: str = "p1") -> list[str]:
    output = json.dumps([file.token for file in files]).encode()
    delivered: list[str] = json.loads(await uploader.of(prediction_id, None).deliver(output, files))
    return delivered


async def test_file_is_put_as_it_is(server: Server, uploader: OutputDestinations, tmp_path: Path) -> None:
    server.serve("/up/a.png")
    assert await upload(uploader, a_file(tmp_path, "a.png", b"raw \0 bytes")) == [server.url("/up/a.png")]
    (received,) = server.received
    assert (received.method, received.path, received.body) == ("PUT", "/up/a.png", b"raw \0 bytes")
    assert received.headers["content-type"] == "image/png"
    assert received.headers["content-length"] == "11"
    assert received.headers["x-prediction-id"] == "p1"
    assert received.headers["accept"] == "*/*"
    assert "transfer-encoding" not in received.headers


async def test_large_file_arrives_whole(server: Server, uploader: OutputDestinations, tmp_path: Path) -> None:
    server.serve("/up/large.bin")
    content = bytes(range(256)) * 20_000
    await upload(uploader, a_file(tmp_path, "large.bin", content))
    assert server.received[0].body == content


@pytest.mark.parametrize(
    ("base", "path"),
    [("/up/", "/up/a.png"), ("/up", "/up/a.png"), ("", "/a.png"), ("/", "/a.png"), ("/up?sig=x", "/up/a.png?sig=x")],
)
async def test_name_goes_under_the_path(server: Server, tmp_path: Path, base: str, path: str) -> None:
    server.serve(path.partition("?")[0])
    uploader = an_uploader(server.url(base))
    assert await upload(uploader, a_file(tmp_path, "a.png")) == [server.url(path.partition("?")[0])]
    assert server.paths() == [path]
    await uploader.close()


async def test_d16_names_are_escaped(server: Server, uploader: OutputDestinations, tmp_path: Path) -> None:
    server.serve("/up/a%20b%23%C3%A9%3F.png")
    assert await upload(uploader, a_file(tmp_path, "a b#é?.png")) == [server.url("/up/a%20b%23%C3%A9%3F.png")]


async def test_d16_equal_names_do_not_overwrite_each_other(
    server: Server, uploader: OutputDestinations, tmp_path: Path
) -> None:
    for name in ("o.png", "o-1.png", "o-2.png"):
        server.serve(f"/up/{name}")
    files = [a_file(tmp_path / str(number), "o.png", str(number).encode()) for number in range(3)]
    urls = await upload(uploader, *files)
    assert urls == [server.url(f"/up/{name}") for name in ("o.png", "o-1.png", "o-2.png")]
    assert {received.path: received.body for received in server.received} == {
        "/up/o.png": b"0",
        "/up/o-1.png": b"1",
        "/up/o-2.png": b"2",
    }


async def test_names_stay_unique_over_the_chunks_of_a_prediction(
    server: Server, uploader: OutputDestinations, tmp_path: Path
) -> None:
    for name in ("o.png", "o-1.png"):
        server.serve(f"/up/{name}")
    outputs = uploader.of("p1", None)
    for folder, name in (("a", "o.png"), ("b", "o-1.png")):
        file = a_file(tmp_path / folder, "o.png")
        assert json.loads(await outputs.deliver(json.dumps(file.token).encode(), [file])) == server.url(f"/up/{name}")
    # another prediction has its own names
    assert await upload(uploader, a_file(tmp_path, "o.png"), prediction_id="p2") == [server.url("/up/o.png")]


async def test_d7_uploads_keep_the_models_order(server: Server, uploader: OutputDestinations, tmp_path: Path) -> None:
    def last(exchange: Exchange) -> None:
        # The first file is answered only when the second one has arrived.
        server.held.acquire(timeout=40)
        exchange.reply()

    def first(exchange: Exchange) -> None:
        server.held.release()
        exchange.reply()

    server.routes.update({"/up/0.png": last, "/up/1.png": first})
    urls = await upload(uploader, a_file(tmp_path, "0.png"), a_file(tmp_path, "1.png"))
    assert urls == [server.url("/up/0.png"), server.url("/up/1.png")]


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("https://cdn.test/x/a.png?signature=s#part", "https://cdn.test/x/a.png#part"),
        ("/files/a.png?v=1", "/files/a.png?v=1"),
    ],
)
async def test_location_is_used(
    server: Server, uploader: OutputDestinations, tmp_path: Path, location: str, url: str
) -> None:
    server.serve("/up/a.png", status=201, Location=location)
    assert await upload(uploader, a_file(tmp_path, "a.png")) == [url]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirect_repeats_the_put(
    server: Server, uploader: OutputDestinations, tmp_path: Path, status: int
) -> None:
    server.serve("/up/a.png", status=status, Location="/elsewhere/a.png?sig=x")
    server.serve("/elsewhere/a.png")
    assert await upload(uploader, a_file(tmp_path, "a.png")) == [server.url("/elsewhere/a.png")]
    first, second = server.received
    assert (second.method, second.path, second.body) == ("PUT", "/elsewhere/a.png?sig=x", b"content")
    assert second.headers["referer"] == server.url("/up/a.png")
    assert first.body == b"content"


async def test_redirects_have_an_end(server: Server, uploader: OutputDestinations, tmp_path: Path) -> None:
    server.serve("/up/a.png", status=307, Location="/up/a.png")
    with pytest.raises(OutputFileError, match="more than 10 redirects"):
        await upload(uploader, a_file(tmp_path, "a.png"))
    assert len(server.received) == 11


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_faltering_receiver_is_asked_again(
    server: Server, uploader: OutputDestinations, tmp_path: Path, status: int
) -> None:
    answers = iter([status, status, 200])
    server.routes["/up/a.png"] = lambda exchange: exchange.reply(status=next(answers))
    assert await upload(uploader, a_file(tmp_path, "a.png")) == [server.url("/up/a.png")]
    assert [received.body for received in server.received] == [b"content"] * 3


async def test_connection_that_breaks_is_made_again(
    server: Server, uploader: OutputDestinations, tmp_path: Path
) -> None:
    def breaks(exchange: Exchange) -> None:
        server.serve("/up/a.png")
        exchange.close_connection = True

    server.routes["/up/a.png"] = breaks
    assert await upload(uploader, a_file(tmp_path, "a.png")) == [server.url("/up/a.png")]


@pytest.mark.parametrize(
    ("status", "tries", "text"),
    [
        (400, 1, "400 Bad Request"),
        (403, 1, "403 Forbidden"),
        (303, 1, "303 See Other"),
        (599, 1, "599"),
        (500, 4, "500 Internal Server Error"),
    ],
)
async def test_refused_upload_fails(
    server: Server, uploader: OutputDestinations, tmp_path: Path, *, status: int, tries: int, text: str
) -> None:
    server.serve("/up/a.png", status=status)
    with pytest.raises(OutputFileError, match=r"^Failed to upload output: upload returned status " + text + "$"):
        await upload(uploader, a_file(tmp_path, "a.png"))
    assert len(server.received) == tries


async def test_receiver_that_is_not_there_fails(tmp_path: Path) -> None:
    uploader = an_uploader(f"http://127.0.0.1:{unused_port()}/up")
    with pytest.raises(OutputFileError, match=r"^Failed to upload output: "):
        await upload(uploader, a_file(tmp_path, "a.png"))
    await uploader.close()


async def test_d5_missing_file_is_an_error(server: Server, uploader: OutputDestinations, tmp_path: Path) -> None:
    missing = FileRef("token", str(tmp_path / "nope.png"), "image/png")
    with pytest.raises(OutputFileError, match="does not exist"):
        await upload(uploader, missing)
    assert server.received == []


@pytest.mark.parametrize(
    ("prediction_id", "header"),
    [("r/3 x", "r/3%20x"), ("a\r\nEvil: 1", "a%0D%0AEvil:%201"), ("é", "%C3%A9"), ("x" * 300, "x" * 300)],
)
async def test_hostile_id_is_escaped_in_the_header(
    server: Server, uploader: OutputDestinations, tmp_path: Path, *, prediction_id: str, header: str
) -> None:
    server.serve("/up/a.png")
    await upload(uploader, a_file(tmp_path, "a.png"), prediction_id=prediction_id)
    assert server.received[0].headers["x-prediction-id"] == header
    assert "evil" not in server.received[0].headers


# A client's URL: `output_file_prefix`


@pytest.fixture
async def private() -> AsyncIterator[OutputDestinations]:
    destinations = OutputDestinations(UrlPolicy(allow_private=True))
    yield destinations
    await destinations.close()


async def send(destinations: OutputDestinations, prefix: str, *files: FileRef) -> list[str]:
    output = json.dumps([file.token for file in files]).encode()
    delivered: list[str] = json.loads(await destinations.of("p1", prefix).deliver(output, files))
    return delivered


async def test_form_is_what_the_document_says(server: Server, private: OutputDestinations, tmp_path: Path) -> None:
    server.serve("/upload")
    content = b"--raw\r\n\0 bytes--"
    urls = await send(private, server.url("/upload"), a_file(tmp_path, "image.png", content))
    assert urls == [server.url("/upload/image.png")]
    (received,) = server.received
    assert (received.method, received.path) == ("PUT", "/upload")
    media_type, _, boundary = received.headers["content-type"].partition("; boundary=")
    assert media_type == "multipart/form-data"
    assert received.headers["content-length"] == str(len(received.body))
    assert received.headers["user-agent"] == "geartrain"
    assert not {"transfer-encoding", "x-prediction-id", "authorization", "cookie"} & received.headers.keys()
    head = b'Content-Disposition: form-data; name="file"; filename="image.png"\r\nContent-Type: image/png'
    line = boundary.encode()
    assert received.body == b"--" + line + b"\r\n" + head + b"\r\n\r\n" + content + b"\r\n--" + line + b"--\r\n"


async def test_large_form_arrives_whole(server: Server, private: OutputDestinations, tmp_path: Path) -> None:
    server.serve("/upload")
    content = bytes(range(256)) * 20_000
    await send(private, server.url("/upload"), a_file(tmp_path, "large.bin", content))
    assert content in server.received[0].body


@pytest.mark.parametrize(
    ("name", "sent", "escaped"),
    [
        ("a b#é?.png", "a b#é?.png", "a%20b%23%C3%A9%3F.png"),
        ('a"b.png', "a%22b.png", "a%22b.png"),
        ("a\r\nX-Evil: 1.png", "a%0D%0AX-Evil: 1.png", "a%0D%0AX-Evil%3A%201.png"),
        ("a\\b.png", "a\\b.png", "a%5Cb.png"),
        ("..png", "..png", "..png"),
    ],
)
async def test_d16_names_in_forms_are_escaped(
    server: Server, private: OutputDestinations, tmp_path: Path, *, name: str, sent: str, escaped: str
) -> None:
    server.serve("/upload")
    assert await send(private, server.url("/upload"), a_file(tmp_path, name)) == [server.url(f"/upload/{escaped}")]
    assert f'filename="{sent}"\r\n'.encode() in server.received[0].body


async def test_d16_equal_names_get_numbers_in_forms(
    server: Server, private: OutputDestinations, tmp_path: Path
) -> None:
    server.serve("/upload")
    files = [a_file(tmp_path / str(number), "o.png", str(number).encode()) for number in range(3)]
    names = ("o.png", "o-1.png", "o-2.png")
    assert await send(private, server.url("/upload"), *files) == [server.url(f"/upload/{name}") for name in names]
    for number, name in enumerate(names):
        (body,) = [received.body for received in server.received if f'"{name}"'.encode() in received.body]
        assert f"\r\n\r\n{number}\r\n".encode() in body


@pytest.mark.parametrize(
    ("prefix", "path", "result"),
    [
        ("", "/", "/a.png"),
        ("/", "/", "/a.png"),
        ("/up/", "/up/", "/up/a.png"),
        ("/up?signature=s#part", "/up?signature=s", "/up/a.png"),
    ],
)
async def test_result_is_the_name_below_the_prefix(
    server: Server, private: OutputDestinations, tmp_path: Path, *, prefix: str, path: str, result: str
) -> None:
    server.serve(path.partition("?")[0])
    assert await send(private, server.url(prefix), a_file(tmp_path, "a.png")) == [server.url(result)]
    assert server.paths() == [path]


async def test_user_and_password_of_the_prefix_are_sent_and_not_told(
    server: Server, private: OutputDestinations, tmp_path: Path
) -> None:
    server.serve("/up")
    prefix = server.url("/up").replace("://", "://user:secret@")
    assert await send(private, prefix, a_file(tmp_path, "a.png")) == [server.url("/up/a.png")]
    assert server.received[0].headers["authorization"].startswith("Basic ")


@pytest.mark.parametrize(
    ("location", "url"),
    [("https://cdn.test/a.png?signature=s", "https://cdn.test/a.png"), ("/files/a.png?v=1", "/files/a.png?v=1")],
)
async def test_location_of_the_answer_is_the_result(
    server: Server, private: OutputDestinations, tmp_path: Path, *, location: str, url: str
) -> None:
    server.serve("/up", status=201, Location=location)
    assert await send(private, server.url("/up"), a_file(tmp_path, "a.png")) == [url]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirect_repeats_the_form(
    server: Server, private: OutputDestinations, tmp_path: Path, status: int
) -> None:
    server.serve("/up", status=status, Location="/elsewhere")
    server.serve("/elsewhere")
    assert await send(private, server.url("/up"), a_file(tmp_path, "a.png")) == [server.url("/up/a.png")]
    first, second = server.received
    assert (second.method, second.body) == ("PUT", first.body)


async def test_faltering_receiver_of_forms_is_asked_again(
    server: Server, private: OutputDestinations, tmp_path: Path
) -> None:
    answers = iter([503, 429, 200])
    server.routes["/up"] = lambda exchange: exchange.reply(status=next(answers))
    assert await send(private, server.url("/up"), a_file(tmp_path, "a.png")) == [server.url("/up/a.png")]
    assert len({received.body for received in server.received}) == 1


async def test_answer_that_does_not_end_is_not_read_to_its_end(
    server: Server, private: OutputDestinations, tmp_path: Path
) -> None:
    def chatter(exchange: Exchange) -> None:
        exchange.send_response(200)
        exchange.send_header("Transfer-Encoding", "chunked")
        exchange.end_headers()
        exchange.close_connection = True
        with contextlib.suppress(OSError):
            while True:
                exchange.wfile.write(b"10000\r\n" + bytes(65_536) + b"\r\n")
        server.hung_up.release()

    server.routes["/up"] = chatter
    assert await send(private, server.url("/up"), a_file(tmp_path, "a.png")) == [server.url("/up/a.png")]
    assert server.hung_up.acquire(timeout=40)


async def test_connections_to_clients_urls_do_not_outlive_their_files(
    server: Server, private: OutputDestinations, tmp_path: Path
) -> None:
    def keep(exchange: Exchange) -> None:
        exchange.reply()
        exchange.hold()

    server.routes["/up"] = keep
    await send(private, server.url("/up"), a_file(tmp_path, "a.png"))
    assert server.hung_up.acquire(timeout=40)


@pytest.mark.parametrize(
    ("status", "tries", "text"),
    [(400, 1, "400 Bad Request"), (404, 1, "404 Not Found"), (303, 1, "303 See Other"), (500, 4, "500 Internal")],
)
async def test_refused_form_fails(
    server: Server, private: OutputDestinations, tmp_path: Path, *, status: int, tries: int, text: str
) -> None:
    server.serve("/up", status=status)
    with pytest.raises(OutputFileError, match=r"^Failed to upload output: upload returned status " + text):
        await send(private, server.url("/up"), a_file(tmp_path, "a.png"))
    assert len(server.received) == tries


async def test_prefix_that_nobody_serves_fails(private: OutputDestinations, tmp_path: Path) -> None:
    prefix = f"http://127.0.0.1:{unused_port()}/up"
    with pytest.raises(OutputFileError, match=r"^Failed to upload output: Connection refused$"):
        await send(private, prefix, a_file(tmp_path, "a.png"))


async def test_redirect_to_another_scheme_fails(server: Server, private: OutputDestinations, tmp_path: Path) -> None:
    server.serve("/up", status=307, Location="ftp://127.0.0.1/x")
    with pytest.raises(OutputFileError, match="neither http: nor https:"):
        await send(private, server.url("/up"), a_file(tmp_path, "a.png"))


# The guard


@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        ("", "is no http: or https: URL"),
        ("/upload", "is no http: or https: URL"),
        ("ftp://a.test/", "is no http: or https: URL"),
        ("file:///etc", "is no http: or https: URL"),
        ("http://", "malformed"),
        ("http://a.test:99999/", "malformed"),
        ("http://[::1", "malformed"),
        ("http://a b/", "cannot be the name of a host"),
        ("http://127.0.0.1/", "127.0.0.1 is a loopback, private"),
        ("http://[::1]/", "::1 is a loopback, private"),
        ("http://169.254.169.254/latest", "169.254.169.254 is an address of the local link"),
        ("http://10.0.0.1/", "10.0.0.1 is a loopback, private"),
        ("http://a.test/" + "x" * 9000, "at most 8192"),
    ],
)
def test_fault_of_a_prefix(prefix: str, words: str) -> None:
    fault = OutputDestinations(UrlPolicy()).fault(prefix, background=False)
    assert fault is not None
    assert words in fault


def test_public_prefix_has_no_fault() -> None:
    assert OutputDestinations(UrlPolicy()).fault("https://a.test/up?x=1", background=False) is None


def test_prefix_of_a_background_prediction() -> None:
    fault = OutputDestinations(UrlPolicy()).fault("https://a.test/up", background=True)
    assert fault is not None
    assert "--upload-url" in fault
    operators = OutputDestinations(UrlPolicy(), upload_url="https://b.test/")
    assert operators.fault("https://a.test/up", background=True) is None
    assert operators.fault("nonsense", background=True) is not None


async def test_prefix_wins_over_the_upload_url(server: Server, tmp_path: Path) -> None:
    server.serve("/up")
    both = OutputDestinations(UrlPolicy(allow_private=True), upload_url=server.url("/operator"))
    assert await send(both, server.url("/up"), a_file(tmp_path, "a.png")) == [server.url("/up/a.png")]
    assert server.paths() == ["/up"]
    await both.close()


async def test_name_that_leads_to_a_private_address_is_refused(server: Server, tmp_path: Path) -> None:
    guarded = OutputDestinations(UrlPolicy())
    prefix = server.url("/up").replace("127.0.0.1", "localhost")
    with pytest.raises(OutputFileError, match=r"^Failed to upload output: localhost is a loopback"):
        await send(guarded, prefix, a_file(tmp_path, "a.png"))
    assert server.received == []
    await guarded.close()


async def test_upload_url_may_be_private(server: Server, tmp_path: Path) -> None:
    server.serve("/up/a.png")
    operators = OutputDestinations(UrlPolicy(), upload_url=server.url("/up"))
    assert await upload(operators, a_file(tmp_path, "a.png")) == [server.url("/up/a.png")]
    await operators.close()


async def test_proxy_of_the_environment_does_not_get_clients_files(
    server: Server, private: OutputDestinations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{unused_port()}")
    server.serve("/up")
    assert await send(private, server.url("/up"), a_file(tmp_path, "a.png")) == [server.url("/up/a.png")]
