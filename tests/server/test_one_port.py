"""One port for everything at once: Cog's API, events, Open Inference and gRPC, over HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import grpc.aio
import httpx
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.support.certificates import make_party
from tests.support.http2 import Answer, Http2Client, http2
from tests.support.servers import PATIENCE, ServerProcess, eventually, write_model

# Every run says that it is there and waits for the gate, so all of them are under way at once.
MODELS: Final = {
    "words": """
        import asyncio, os, pathlib

        async def run(text: str, gates: str) -> str:
            pathlib.Path(gates, text).touch()
            while not os.path.exists(os.path.join(gates, "go")):
                await asyncio.sleep(0.005)
            return text
    """,
    "tokens": """
        import asyncio, os, pathlib
        from collections.abc import AsyncIterator
        from geartrain import streaming

        @streaming
        async def run(text: str, gates: str) -> AsyncIterator[str]:
            pathlib.Path(gates, text).touch()
            yield "first of " + text
            while not os.path.exists(os.path.join(gates, "go")):
                await asyncio.sleep(0.005)
            yield "last of " + text
    """,
}
MANY: Final = "concurrency: {max: 64}"
EVENTS: Final = {"accept": "text/event-stream"}


class Live:
    """A server on one port. `trust` is what a client of TLS opens a connection with."""

    def __init__(self, folder: Path, *, secured: bool) -> None:
        for name, source in MODELS.items():
            write_model(folder / "models" / name, source, MANY)
        self.gates = folder / "gates"
        self.gates.mkdir()
        self.authority = b""
        self.trust: ssl.SSLContext | None = None
        arguments: tuple[str, ...] = ()
        if secured:
            authority = make_party("authority")
            self.authority = authority.cert
            self.trust = ssl.create_default_context(cadata=authority.cert.decode())
            self.trust.set_alpn_protocols(["h2"])
            cert, key = make_party("server", authority).write(folder, "server")
            arguments = ("--tls-cert", str(cert), "--tls-key", str(key))
        self.process = ServerProcess(str(folder / "models"), "--default-model", "words", *arguments)
        self.url = self.process.wait_for("listening")["url"]
        for _ in MODELS:
            self.process.wait_for("ready")

    @contextlib.asynccontextmanager
    async def plain(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client of HTTP/1.1."""
        trust = ssl.create_default_context(cadata=self.authority.decode()) if self.authority else True
        async with httpx.AsyncClient(base_url=self.url, timeout=PATIENCE, verify=trust) as client:
            yield client

    @contextlib.asynccontextmanager
    async def frames(self) -> AsyncIterator[Http2Client]:
        """A client of HTTP/2."""
        async with http2(self.url, trust=self.trust) as client:
            yield client

    @contextlib.asynccontextmanager
    async def stub(self) -> AsyncIterator[Any]:
        """A client of gRPC."""
        address = self.url.partition("://")[2]
        if self.authority:
            channel = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(self.authority))
        else:
            channel = grpc.aio.insecure_channel(address)
        async with channel:
            yield GRPCInferenceServiceStub(channel)

    def cog(self, name: str) -> dict[str, Any]:
        """The body of a prediction."""
        return {"input": {"text": name, "gates": str(self.gates)}}

    def tensors(self, name: str) -> dict[str, Any]:
        """The body of an inference."""
        values = {"text": name, "gates": str(self.gates)}
        return {"inputs": [{"name": k, "datatype": "BYTES", "shape": [1], "data": [v]} for k, v in values.items()]}

    def message(self, model: str, name: str) -> pb.ModelInferRequest:
        """The same as a message of gRPC."""
        values = {"text": name.encode(), "gates": str(self.gates).encode()}
        kind = pb.ModelInferRequest.InferInputTensor
        inputs = [kind(name=each, datatype="BYTES", shape=[1]) for each in values]
        raw = [struct.pack("<I", len(value)) + value for value in values.values()]
        return pb.ModelInferRequest(model_name=model, id=name, inputs=inputs, raw_input_contents=raw)

    async def all_are_there(self, names: set[str]) -> None:
        """Wait until the runs of these names are under way."""
        await eventually(lambda: names <= {path.name for path in self.gates.iterdir()})


@pytest.fixture(params=[False, True], ids=["clear", "tls"])
def live(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Live]:
    server = Live(tmp_path, secured=request.param)
    yield server
    server.process.end()


def outputs_of(events: str) -> list[str]:
    """The words that a stream of Cog's events has given."""
    blocks = [dict(line.split(": ", 1) for line in block.splitlines()) for block in events.strip().split("\n\n")]
    return [json.loads(block["data"])["chunk"] for block in blocks if block["event"] == "output"]


# one request each, by name


async def by_http1(live: Live, name: str) -> list[str]:
    """A prediction, an inference and a stream, each on a connection of its own."""

    async def stream(client: httpx.AsyncClient) -> list[str]:
        content = live.cog(f"{name}-sse")
        async with client.stream("POST", "/models/tokens/predictions", json=content, headers=EVENTS) as answer:
            return outputs_of("".join([text async for text in answer.aiter_text()]))

    async with live.plain() as client:
        cog, infer, told = await asyncio.gather(
            client.post("/predictions", json=live.cog(f"{name}-cog")),
            client.post("/v2/models/words/infer", json=live.tensors(f"{name}-v2")),
            stream(client),
        )
    assert {cog.http_version, infer.http_version} == {"HTTP/1.1"}
    return [cog.json()["output"], *infer.json()["outputs"][0]["data"], *told]


async def by_http2(live: Live, name: str) -> list[str]:
    """The same on one connection."""

    def sent(content: dict[str, Any]) -> bytes:
        return json.dumps(content).encode()

    async with live.frames() as client:
        fields = ("content-type", "application/json")
        streams = []
        for path, content, more in (
            ("/predictions", live.cog(f"{name}-cog"), ()),
            ("/v2/models/words/infer", live.tensors(f"{name}-v2"), ()),
            ("/models/tokens/predictions", live.cog(f"{name}-sse"), tuple(EVENTS.items())),
        ):
            stream = await client.begin("POST", path, fields, *more)
            await client.upload(stream, sent(content))
            streams.append(stream)
        cog, infer, told = [await client.answer(stream) for stream in streams]
    return [cog.json()["output"], *infer.json()["outputs"][0]["data"], *outputs_of(_text(told))]


def _text(answer: Answer) -> str:
    return bytes(answer.body).decode()


async def by_grpc(live: Live, name: str) -> list[str]:
    """An inference, and a stream of two."""
    async with live.stub() as stub:
        stream = stub.ModelStreamInfer(timeout=PATIENCE)
        for model, each in (("words", "both"), ("tokens", "stream")):
            await stream.write(live.message(model, f"{name}-{each}"))
        await stream.done_writing()
        answer, *told = await asyncio.gather(
            stub.ModelInfer(live.message("words", f"{name}-infer"), timeout=PATIENCE),
            *[_all_of(stream)],
        )
    return [_word(answer), *sorted(told[0])]


async def _all_of(stream: Any) -> list[str]:
    answers = [each async for each in stream]
    assert not any(each.error_message for each in answers), answers
    return [_word(each.infer_response) for each in answers]


def _word(response: pb.ModelInferResponse) -> str:
    data: bytes = response.raw_output_contents[0]
    return data[4:].decode()


async def test_everything_at_once_on_one_port(live: Live) -> None:
    """Three clients of each kind; no answer can come before all requests are under way."""
    clients = range(3)
    asking = {
        **{f"http1-{number}": by_http1(live, f"http1-{number}") for number in clients},
        **{f"http2-{number}": by_http2(live, f"http2-{number}") for number in clients},
        **{f"grpc-{number}": by_grpc(live, f"grpc-{number}") for number in clients},
    }
    tasks = {name: asyncio.ensure_future(each) for name, each in asking.items()}
    suffixes = {"http1": ("cog", "v2", "sse"), "http2": ("cog", "v2", "sse"), "grpc": ("infer", "both", "stream")}
    names = {f"{name}-{suffix}" for name in asking for suffix in suffixes[name.split("-")[0]]}
    waiting = asyncio.ensure_future(live.all_are_there(names))
    await asyncio.wait([waiting, *tasks.values()], return_when=asyncio.FIRST_COMPLETED)
    assert [name for name, task in tasks.items() if task.done()] == [], await asyncio.gather(*tasks.values())
    await waiting
    (live.gates / "go").touch()
    async with asyncio.timeout(PATIENCE):
        answers = {name: await task for name, task in tasks.items()}
    for name, answer in answers.items():
        if name.startswith("grpc"):
            both = [f"first of {name}-stream", f"{name}-both", f"last of {name}-stream"]
            assert answer == [f"{name}-infer", *sorted(both)]
        else:
            assert answer == [f"{name}-cog", f"{name}-v2", f"first of {name}-sse", f"last of {name}-sse"]


@pytest.mark.parametrize("live", [True], ids=["tls"], indirect=True)
async def test_a_client_without_alpn_is_served_over_http_1_1(live: Live) -> None:
    """And one that offers both gets HTTP/2."""
    for offered, expected in ([], None), (["http/1.1"], "http/1.1"), (["http/1.1", "h2"], "h2"), (["h2"], "h2"):
        context = ssl.create_default_context(cadata=live.authority.decode())
        if offered:
            context.set_alpn_protocols(offered)
        host, port = live.url.partition("://")[2].split(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == expected
        if expected != "h2":
            writer.write(b"GET /health-check HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(PATIENCE):
                assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
