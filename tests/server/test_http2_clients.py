"""Clients of HTTP/2 and gRPC that others have written, on the one port of a server: in clear text, and with TLS.

A program that is not installed skips its tests and names the package that has it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

import geartrain
from geartrain.transport.access.guard import SCOPES
from geartrain.transport.access.keys import Key, add_key, digest_of, new_key
from tests.support.certificates import make_party
from tests.support.servers import ServerProcess, write_model

HERE: Final = Path(__file__).parents[1]
PROTO: Final = Path(geartrain.__file__).parent / "transport/grpc/open_inference.proto"
SERVICE: Final = "/inference.GRPCInferenceService"
LONG: Final = 50  # seconds that a program may take
MODELS: Final = {
    "words": """
        from geartrain import BaseRunner

        class Runner(BaseRunner):
            def run(self, text: str = "", times: int = 1) -> str:
                return text * times
    """,
    "tokens": """
        from collections.abc import Iterator
        from geartrain import BaseRunner, streaming

        class Runner(BaseRunner):
            @streaming
            def run(self, n: int) -> Iterator[str]:
                for index in range(n):
                    yield f"t{index}"
    """,
    "waits": """
        import asyncio
        from geartrain import BaseRunner, concurrent

        class Runner(BaseRunner):
            @concurrent(max=4)
            async def run(self, text: str = "") -> str:
                await asyncio.sleep(600)
                return text
    """,
}


class Live:
    """A server of `MODELS`, and what its clients need: with TLS a file of the authority, and a key."""

    def __init__(self, folder: Path, *, secured: bool) -> None:
        for name, source in MODELS.items():
            write_model(folder / "models" / name, source)
        self.authority: Path | None = None
        self.key = ""
        arguments: tuple[str, ...] = ()
        if secured:
            arguments = self._secure(folder)
        self.process = ServerProcess(str(folder / "models"), "--default-model", "words", *arguments)
        self.url = self.process.wait_for("listening")["url"]
        self.address = self.url.partition("://")[2]
        for _ in MODELS:
            self.process.wait_for("ready")

    def _secure(self, folder: Path) -> tuple[str, ...]:
        authority = make_party("authority")
        self.authority, _ = authority.write(folder, "authority")
        cert, private = make_party("server", authority).write(folder, "server")
        self.key = new_key()
        add_key(folder / "keys", Key("tests", tuple(SCOPES), digest_of(self.key)))
        return "--tls-cert", str(cert), "--tls-key", str(private), "--keys", str(folder / "keys")

    @property
    def secrets(self) -> tuple[str, ...]:
        """The authority and the key, for a program's arguments."""
        return () if self.authority is None else (str(self.authority), self.key)

    @property
    def fields(self) -> tuple[str, ...]:
        """The header that lets a client in, as curl and its like take it."""
        return ("-H", f"authorization: Bearer {self.key}") if self.key else ()

    def credentials(self) -> grpc.ChannelCredentials | None:
        if self.authority is None:
            return None
        tls = grpc.ssl_channel_credentials(self.authority.read_bytes())
        return grpc.composite_channel_credentials(tls, grpc.access_token_call_credentials(self.key))

    def channel(self, kind: Any) -> Any:
        """A channel of `grpc` or of `grpc.aio`."""
        given = self.credentials()
        return kind.insecure_channel(self.address) if given is None else kind.secure_channel(self.address, given)

    def triton(self, kind: Any) -> Any:
        """Triton's client, blocking or of asyncio."""
        given = self.credentials()
        return kind(self.address) if given is None else kind(self.address, creds=given)


@pytest.fixture(scope="module", params=[False, True], ids=["clear", "tls"])
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    server = Live(tmp_path_factory.mktemp("clients"), secured=request.param)
    yield server
    server.process.end()


def needed(program: str, package: str) -> str:
    """Return the path of a program, or skip."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed; on Debian and Ubuntu: apt install {package}")
    return found


def run(*command: str, text: str | None = None) -> str:
    """Return what a program prints; it has to end well."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LONG, input=text)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


# messages


def words(text: str, model: str = "words", **fields: Any) -> pb.ModelInferRequest:
    data = text.encode()
    tensor = pb.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])
    raw = struct.pack("<I", len(data)) + data
    return pb.ModelInferRequest(model_name=model, inputs=[tensor], raw_input_contents=[raw], **fields)


def tokens(count: int, **fields: Any) -> pb.ModelInferRequest:
    tensor = pb.ModelInferRequest.InferInputTensor(name="n", datatype="INT64", shape=[1])
    return pb.ModelInferRequest(
        model_name="tokens", inputs=[tensor], raw_input_contents=[struct.pack("<q", count)], **fields
    )


def text_of(response: Any) -> str:
    data: bytes = response.raw_output_contents[0]
    return data[4:].decode()


def triton_words(package: Any, text: str) -> Any:
    tensor = package.InferInput("text", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode()], dtype=np.object_))
    return tensor


# grpcio


def test_grpcio(live: Live) -> None:
    with live.channel(grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        for number in range(50):
            answer = stub.ModelInfer(words(f"text {number}", id=str(number)), timeout=LONG)
            assert (answer.id, text_of(answer)) == (str(number), f"text {number}")
        calls = [stub.ModelInfer.future(words(str(number)), timeout=LONG) for number in range(100)]
        assert [text_of(call.result()) for call in calls] == [str(number) for number in range(100)]


def test_grpcio_is_told_of_errors(live: Live) -> None:
    with live.channel(grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(words("a", "nope"), timeout=LONG)
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert error.details() == "Request for unknown model: 'nope' is not found"
        nonsense: Any = channel.unary_unary(f"{SERVICE}/Nonsense")
        with pytest.raises(grpc.RpcError) as caught:
            nonsense(b"", timeout=LONG)
        error = caught.value
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(words("a", "waits"), timeout=0.3)
        error = caught.value
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_grpcio_streams_and_health(live: Live) -> None:
    with live.channel(grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        answers = list(stub.ModelStreamInfer(iter([tokens(5, id="t")]), timeout=LONG))
        assert [text_of(each.infer_response) for each in answers] == [f"t{number}" for number in range(5)]
        health: Any = health_pb2_grpc.HealthStub(channel)
        check = health.Check(health_pb2.HealthCheckRequest(service="words"), timeout=LONG)
        assert check.status == health_pb2.HealthCheckResponse.SERVING


async def test_grpcio_of_asyncio(live: Live) -> None:
    async with live.channel(grpc.aio) as channel:
        stub: Any = GRPCInferenceServiceStub(channel)
        answers = await asyncio.gather(*(stub.ModelInfer(words(str(n)), timeout=LONG) for n in range(100)))
        assert [text_of(answer) for answer in answers] == [str(number) for number in range(100)]
        call = stub.ModelStreamInfer(timeout=LONG)
        for number in range(20):
            await call.write(words(str(number), id=str(number)))
            answer = (await call.read()).infer_response
            assert (answer.id, text_of(answer)) == (str(number), str(number))
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("size", [0, 1, 16_384, 3_000_000])
def test_grpcio_with_gzip_and_messages_of_every_size(live: Live, size: int) -> None:
    with live.channel(grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            answer = stub.ModelInfer(words("s" * size), timeout=LONG, compression=compression)
            assert text_of(answer) == "s" * size


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip], ids=["plain", "gzip"])
def test_grpcio_with_gzip_in_a_stream(live: Live, compression: grpc.Compression) -> None:
    """Small and large responses are what they should be, and the log tells how many bytes they have taken."""
    is_packed = compression is grpc.Compression.Gzip
    sizes = (1, 16_384, 3_000_000)
    with live.channel(grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        asked = [words("s" * size, id=str(size)) for size in sizes]
        request_id = f"stream-{is_packed}"
        metadata = (("x-request-id", request_id),)
        answers = stub.ModelStreamInfer(iter(asked), timeout=LONG, compression=compression, metadata=metadata)
        texts = {each.infer_response.id: text_of(each.infer_response) for each in answers}
    assert texts == {str(size): "s" * size for size in sizes}
    while (line := live.process.wait_for("request")).get("request_id") != request_id:
        pass
    assert line["bytes_in"] < sum(sizes) / 10 if is_packed else line["bytes_in"] > sum(sizes)
    assert line["bytes_out"] < sum(sizes) / 10 if is_packed else line["bytes_out"] > sum(sizes)


# Triton's clients


def test_triton(live: Live) -> None:
    with live.triton(triton.InferenceServerClient) as client:
        assert client.is_server_live()
        assert client.is_model_ready("words")
        result = client.infer("words", [triton_words(triton, "by triton")], request_id="1")
        assert result.as_numpy("output").tolist() == [b"by triton"]


async def test_triton_of_asyncio(live: Live) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number in range(50):
            yield {
                "model_name": "words",
                "inputs": [triton_words(triton_aio, str(number))],
                "request_id": str(number),
            }

    async with live.triton(triton_aio.InferenceServerClient) as client:
        result = await client.infer("words", [triton_words(triton_aio, "once")])
        assert result.as_numpy("output").tolist() == [b"once"]
        got = {}
        async for result, error in client.stream_infer(requests()):
            assert error is None
            got[result.get_response().id] = result.as_numpy("output").tolist()
        assert got == {str(number): [str(number).encode()] for number in range(50)}


# gRPC for Node.js and Go


def test_grpc_for_node(live: Live) -> None:
    node = needed("node", "nodejs npm")
    if not (HERE / "js/node_modules/.stamp").is_file():  # what `make clients` leaves when npm has installed all
        pytest.skip("@grpc/grpc-js is not installed; with npm (Debian: nodejs npm): make clients")
    found = json.loads(run(node, str(HERE / "js/client.js"), str(PROTO), live.address, *live.secrets))
    not_found = {"code": 5, "details": "Request for unknown model: 'nope' is not found"}
    assert found == {
        "live": True,
        "unary": {"id": "7", "text": "from node"},
        "many": True,
        "large": True,
        "compressed": True,
        "unknown_model": not_found,
        "unknown_method": 12,
        "late": 4,
        "stream": {
            "code": 0,
            "errors": [["3", not_found["details"]]],
            "texts": {"1": ["a"], "2": ["t0", "t1", "t2"], "4": ["c"]},
        },
        "left": 1,
        "health": "SERVING",
        "health_of_model": "SERVING",
        "health_of_another": 5,
    }


@pytest.fixture(scope="module")
def go_client(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The client of `tests/go`, built with what Debian's packages have; nothing is fetched."""
    go = needed("go", "golang-go golang-google-grpc-dev")
    packages = Path("/usr/share/gocode")
    if not (packages / "src/google.golang.org/grpc").is_dir():
        pytest.skip("grpc-go is not installed; on Debian and Ubuntu: apt install golang-google-grpc-dev")
    folder = tmp_path_factory.mktemp("go")
    program = folder / "client"
    environment = {"GO111MODULE": "off", "GOFLAGS": "", "GOPATH": str(packages), "GOCACHE": str(folder / "cache")}
    command = [go, "build", "-o", str(program), str(HERE / "go/client.go")]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=280, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return str(program)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_grpc_for_go(live: Live, go_client: str) -> None:
    def line(kind: str, method: str, *messages: Any) -> str:
        texts = [base64.b64encode(message.SerializeToString()).decode() for message in messages]
        return " ".join([kind, f"{SERVICE}/{method}", *texts])

    asked = [
        line("unary", "ModelInfer", words("from go", id="1")),
        line("unary", "ModelInfer", words("z" * 1_000_000)),
        line("unary", "ModelInfer", words("a", "nope")),
        line("unary", "Nonsense", pb.ServerLiveRequest()),
        line("stream", "ModelStreamInfer", words("a", id="a"), tokens(3, id="b"), words("c", id="c")),
        *(line("unary", "ModelInfer", words(str(number), id=str(number))) for number in range(100)),
    ]
    first, large, unknown_model, unknown_method, streamed, *many = (
        told.split(" ") for told in run(go_client, live.address, *live.secrets, text="\n".join(asked)).splitlines()
    )

    def answers(told: list[str], kind: Any) -> list[Any]:
        assert told[0] == "ok", told
        return [kind.FromString(base64.b64decode(each)) for each in told[1:]]

    [answer] = answers(first, pb.ModelInferResponse)
    assert (answer.id, text_of(answer)) == ("1", "from go")
    assert text_of(answers(large, pb.ModelInferResponse)[0]) == "z" * 1_000_000
    assert unknown_model[:2] == ["error", "5"]
    assert " ".join(unknown_model[2:]) == "Request for unknown model: 'nope' is not found"
    assert unknown_method[:2] == ["error", "12"]
    responses = [each.infer_response for each in answers(streamed, pb.ModelStreamInferResponse)]
    texts = [(each.id, text_of(each)) for each in responses]
    assert sorted(texts) == [("a", "a"), ("b", "t0"), ("b", "t1"), ("b", "t2"), ("c", "c")]
    assert [text_of(answers(told, pb.ModelInferResponse)[0]) for told in many] == [str(n) for n in range(100)]


# curl


@pytest.fixture
def curl(live: Live) -> Callable[..., tuple[str, str]]:
    """Ask with curl; gives the version of HTTP with the status, and the body."""
    program = needed("curl", "curl")
    features = run(program, "--version")
    if "HTTP2" not in features:
        pytest.skip("this curl cannot do HTTP/2; that of Debian's package curl can")
    trust = () if live.authority is None else ("--cacert", str(live.authority))

    def ask(*options: str, path: str = "/health-check") -> tuple[str, str]:
        written = run(
            program, "-sS", "--max-time", str(LONG), "-w", "\n%{http_version} %{http_code}", *trust, *live.fields,
            *options, live.url + path,
        )  # fmt: skip
        content, _, told = written.rpartition("\n")
        return told, content

    return ask


def test_curl_that_would_upgrade(live: Live, curl: Callable[..., tuple[str, str]]) -> None:
    """In clear text the offer is ignored, as RFC 9113 has done away with it; with TLS, ALPN decides."""
    told, content = curl("--http2")
    assert told == ("1.1 200" if live.authority is None else "2 200")
    assert json.loads(content)["status"] in {"READY", "BUSY"}
    assert curl("--http1.1")[0] == "1.1 200"


def test_curl_with_prior_knowledge(curl: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    large.write_text(json.dumps({"input": {"text": "c" * 3_000_000}}))
    told, content = curl("--http2-prior-knowledge", "--json", f"@{large}", path="/predictions")
    assert told == "2 200"
    assert json.loads(content)["output"] == "c" * 3_000_000
    assert curl("--http2-prior-knowledge", path="/nothing")[0] == "2 404"
    assert curl("--http2-prior-knowledge", "--head")[0] == "2 200"


def test_curl_reads_events(curl: Callable[..., tuple[str, str]]) -> None:
    told, content = curl("--http2-prior-knowledge", "--json", '{"n": 4}', path="/v2/models/tokens/generate_stream")
    assert told == "2 200"
    events = [json.loads(line.removeprefix("data: ")) for line in content.splitlines() if line.startswith("data:")]
    assert [event["text_output"] for event in events] == ["t0", "t1", "t2", "t3"]


# nghttp and h2load


def test_nghttp(live: Live, tmp_path: Path) -> None:
    """With priorities, padding, fields in CONTINUATION, trailers and a small window."""
    nghttp = needed("nghttp", "nghttp2-client")
    content = tmp_path / "body"
    content.write_text(json.dumps({"input": {"text": "n" * 100_000}}))
    options = [
        "--no-verify-peer", "--continuation", "--padding=64", "--window-bits=10", "--trailer=x-after: the body",
        f"--data={content}", "-H", "content-type: application/json", *live.fields,
    ]  # fmt: skip
    answer = run(nghttp, *options, f"{live.url}/predictions")
    assert json.loads(answer)["output"] == "n" * 100_000


def test_nghttp_asks_for_the_same_many_times(live: Live) -> None:
    nghttp = needed("nghttp", "nghttp2-client")
    told = run(nghttp, "-v", "-n", "-m", "40", "--no-verify-peer", *live.fields, f"{live.url}/health-check")
    assert len(re.findall(r":status: 200", told)) == 40
    assert "END_STREAM" in told


@pytest.mark.parametrize("options", [["-m10"], ["-m10", "-w5", "-W10"], ["-m1", "-c8"], ["-m10", "--h1"]])
def test_h2load(live: Live, tmp_path: Path, options: list[str]) -> None:
    h2load = needed("h2load", "nghttp2-client")
    content = tmp_path / "body"
    content.write_text('{"id": "1", "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["load"]}]}')
    fields = ["-H", "content-type: application/json", *live.fields]
    for asked in ([f"{live.url}/health-check"], ["-d", str(content), f"{live.url}/v2/models/words/infer"]):
        told = run(h2load, "-n400", "-t1", *(["-c2"] if "-c8" not in options else []), *options, *fields, *asked)
        assert "400 succeeded, 0 failed, 0 errored, 0 timeout" in told, told
        assert "400 2xx, 0 3xx, 0 4xx, 0 5xx" in told, told
