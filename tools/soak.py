"""Long mixed load on real servers, with faults, that looks for answers that are lost or mixed up and for leaks.

    python -m tools.soak --minutes 60 --report soak.json

Two servers of the same three models (sync, batched, streaming), each with keys and a store; one loads its models
on demand. Each answer has to hold the nonce of its request. Meanwhile clients hang up, cancel and set deadlines,
models are reloaded and workers are killed. Each 10 s memory, descriptors and files are sampled. Ends with 1 if the
verdict names a fault. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import collections
import contextlib
import itertools
import json
import os
import pathlib
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio
import httpx
import psutil

from geartrain.transport.grpc import open_inference_pb2 as pb

MODELS: Final = {
    "plain": """
import time

class Runner:
    def run(self, text: str, seconds: float = 0.0) -> str:
        time.sleep(seconds)
        return "[" + text + "]"
""",
    "batched": """
import time
from geartrain import BaseRunner, batched

class Runner(BaseRunner):
    @batched(max_size=8)
    def run(self, text: list[str], seconds: list[float] = 0.0) -> list[str]:
        time.sleep(max(seconds))
        return ["[" + each + "]" for each in text]
""",
    "words": """
import asyncio
from collections.abc import AsyncIterator
from geartrain import BaseRunner, concurrent, streaming

class Runner(BaseRunner):
    @streaming
    @concurrent(max=4)
    async def run(self, text: str, seconds: float = 0.0) -> AsyncIterator[str]:
        for part in ("[", text, "]"):
            await asyncio.sleep(seconds / 3)
            yield part
""",
}
SHARED: Final = pathlib.Path("/dev/shm")  # noqa: S108 - of this machine
PATIENCE: Final = 60.0  # seconds that an answer may take before it counts as a hang
PERIOD: Final = 10.0  # seconds between two samples
WARM_UP: Final = 600.0  # seconds, or a third of a short run
GROWTH: Final = 0.05  # of the memory of a server after the warm-up
SPARE_DESCRIPTORS: Final = 8  # that a server at rest may have more than after the warm-up, apart from those of memory
MOST_OF_MEMORY: Final = 2 * (32 + 16)  # descriptors: 32 regions for bodies, 2 for each of 8 slots; open and mapped
AFTER_KILL: Final = 20.0  # seconds after the kill of a worker in which requests may fail
TERMINAL: Final = frozenset({"succeeded", "failed", "canceled"})
BUSY: Final = frozenset({409, 429, 503})
_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
_STREAM: Final = "/inference.GRPCInferenceService/ModelStreamInfer"
_CODES: Final = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)


class Hooks:
    """Receiver of webhooks: the final status of each prediction."""

    def __init__(self) -> None:
        self.ended: dict[str, dict[str, Any]] = {}
        self._server: asyncio.Server
        self.url = ""

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                size = int(head.partition("content-length:")[2].partition("\r\n")[0])
                body = json.loads(await reader.readexactly(size))
                if body["status"] in TERMINAL:
                    self.ended[body["id"]] = body
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    def close(self) -> None:
        """Stop listening."""
        self._server.close()


class Server:
    """A server process with its key, and the clients of it."""

    def __init__(self, name: str, folder: pathlib.Path, *arguments: str) -> None:
        self.name = name
        self.temporary = folder / f"{name}-tmp"
        self.temporary.mkdir()
        self.log = folder / f"{name}.log"
        keys = folder / f"{name}.keys"
        command = [sys.executable, "-m", "geartrain"]
        made = [*command, "keys", "new", "soak", "--keys", str(keys)]
        made += [each for scope in ("predict", "read", "admin") for each in ("--scope", scope)]
        found = subprocess.run(made, check=True, capture_output=True, text=True).stdout.split()
        self.headers = {"authorization": f"Bearer {found[-1]}"}
        ports = [_free_port(), _free_port()]
        store = ["--store", f"sqlite:///{folder}/{name}.db", "--lease", "6s", "--keys", str(keys)]
        limits = ["--queue", "1000", "--restart", "on-crash", "--restart-limit", "1000", "--allow-private-urls"]
        where = ["--port", str(ports[0]), "--grpc-port", str(ports[1]), "--access-log", "off", "--log-format", "json"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "serve", str(folder / "models"), *store, *limits, *where, *arguments],
                env={**os.environ, "TMPDIR": str(self.temporary)},
                stdout=log,
                stderr=log,
            )
        self.process = psutil.Process(self._process.pid)
        self.url, self.target = f"http://127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}"
        self.killed_at = -AFTER_KILL

    @contextlib.asynccontextmanager
    async def clients(self) -> AsyncIterator[Clients]:
        """Open clients of HTTP/1.1, HTTP/2 and gRPC."""
        options: dict[str, Any] = {"base_url": self.url, "headers": self.headers, "timeout": PATIENCE}
        async with (
            httpx.AsyncClient(**options) as one,
            httpx.AsyncClient(http1=False, http2=True, **options) as two,
            grpc.aio.insecure_channel(self.target) as channel,
        ):
            yield Clients((one, two), channel)

    async def ready(self) -> None:
        """Wait until it serves."""
        async with asyncio.timeout(PATIENCE), httpx.AsyncClient() as client:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get(f"{self.url}/readyz")).is_success:
                        return
                await asyncio.sleep(0.1)

    @property
    def may_fail(self) -> bool:
        """True shortly after a worker was killed."""
        return time.monotonic() - self.killed_at < AFTER_KILL

    def workers(self) -> list[psutil.Process]:
        """List its child processes."""
        with contextlib.suppress(psutil.Error):
            return self.process.children(recursive=True)
        return []

    def descriptors(self, *, of_memory: bool = False) -> int:
        """Count descriptors: those of memory for bodies and slots, which is kept up to a bound, or all others."""
        found = 0
        for link in pathlib.Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # that was closed meanwhile
                found += ("geartrain-slot" in os.readlink(link)) is of_memory  # noqa: PTH115 - a text, not a path
        return found

    def sample(self) -> dict[str, Any]:
        """Measure memory in bytes, descriptors, processor seconds and temporary files."""
        workers = []
        for worker in self.workers():
            with contextlib.suppress(psutil.Error):
                workers.append(worker.memory_info().rss)
        times = self.process.cpu_times()
        return {
            "server": self.name,
            "rss": self.process.memory_info().rss,
            "workers_rss": workers,
            "descriptors": self.descriptors(),
            "memory_descriptors": self.descriptors(of_memory=True),
            "cpu": round(times.user + times.system, 2),
            "files": sum(len(names) for _, _, names in os.walk(self.temporary)),  # folders may vanish meanwhile
        }

    def stop(self) -> bool:
        """End it; return False if it had to be killed."""
        workers = self.workers()
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            for process in [*workers, self.process]:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            self._process.wait()
            return False
        return True


class Clients:
    """Clients of one server."""

    def __init__(self, http: tuple[httpx.AsyncClient, httpx.AsyncClient], channel: grpc.aio.Channel) -> None:
        self.http = http
        self.infer = channel.unary_unary(
            _INFER,
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )
        self.stream = channel.stream_stream(
            _STREAM,
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )


class Load:
    """Mixed requests to one server, whose answers are checked."""

    def __init__(self, server: Server, clients: Clients, hooks: Hooks, seed: int) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []
        self._accepted: dict[str, tuple[str, str]] = {}  # id → path of the model, nonce
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._numbers = itertools.count()
        self._server = server
        self._clients = clients
        self._hooks = hooks
        self._actions: dict[str, Callable[[str, str], Awaitable[None]]] = {
            "sync": self._sync,
            "background": self._background,
            "put": self._put,
            "sse": self._sse,
            "cancel": self._cancel,
            "hang-up": self._hang_up,
            "rest": self._rest,
            "binary": self._binary,
            "generate": self._generate,
            "grpc": self._grpc,
            "grpc-deadline": self._grpc_deadline,
            "grpc-stream": self._grpc_stream,
        }

    async def one(self, name: str = "", model: str = "") -> None:
        """Make one request, of any kind if none is named; remember it if it goes wrong."""
        name = name or self._random.choice(list(self._actions))
        model = model or self._random.choice(list(MODELS))
        size = self._random.choice((0, 0, 100, 20_000, 200_000))
        nonce = f"{next(self._numbers)}-{self._random.randbytes(8).hex()}" + "x" * size
        self.counts[name] += 1
        try:
            async with asyncio.timeout(PATIENCE):
                await self._actions[name](model, nonce)
        except TimeoutError:
            self._fault(f"{name} of {model}: no answer within {PATIENCE:.0f} s")
        except (httpx.HTTPError, grpc.RpcError) as error:
            self._failed(f"{name} of {model}: {error!r}"[:300])

    def _fault(self, text: str) -> None:
        self.faults.append(f"{time.strftime('%H:%M:%S')} {self._server.name}: {text}")

    def _failed(self, text: str) -> None:
        """Count a failure that the kill of a worker explains, and note any other one."""
        if self._server.may_fail:
            self.counts["failed after a kill"] += 1
        else:
            self._fault(text)

    def _same(self, name: str, found: Any, nonce: str) -> None:
        """Note an answer that belongs to another request."""
        text = "".join(found) if isinstance(found, list) else found
        if text != f"[{nonce}]":
            self._fault(f"{name}: {str(found)[:80]!r} in place of {nonce[:60]!r}")

    @property
    def _http(self) -> httpx.AsyncClient:
        return self._random.choice(self._clients.http)

    @property
    def _seconds(self) -> float:
        return self._random.choice((0.0, 0.0, 0.003, 0.02))

    def _body(self, nonce: str, seconds: float | None = None) -> dict[str, Any]:
        return {"input": {"text": nonce, "seconds": self._seconds if seconds is None else seconds}}

    def _ok(self, name: str, response: httpx.Response) -> bool:
        """Return True for 2xx; count busy servers, and note other answers."""
        if response.is_success:
            return True
        if response.status_code in BUSY:
            self.counts[f"{response.status_code}"] += 1
        else:
            self._failed(f"{name}: {response.status_code} {response.text[:200]}")
        return False

    def _prediction(self, name: str, body: dict[str, Any], nonce: str) -> None:
        if body["status"] == "succeeded":
            self._same(name, body["output"], nonce)
        elif body["status"] == "failed":
            self._failed(f"{name}: {body['error']}")
        else:
            self._fault(f"{name}: {body['status']}")

    async def _sync(self, model: str, nonce: str) -> None:
        response = await self._http.post(f"/models/{model}/predictions", json=self._body(nonce))
        if self._ok("sync", response):
            self._prediction("sync", response.json(), nonce)

    async def _accept(self, model: str, nonce: str, seconds: float | None = None) -> str:
        """Start a prediction in the background; return its id, or nothing if it was refused."""
        body = self._body(nonce, seconds) | {"webhook": self._hooks.url, "webhook_events_filter": ["completed"]}
        headers = {"prefer": "respond-async"}
        response = await self._http.post(f"/models/{model}/predictions", json=body, headers=headers)
        if not self._ok("background", response):
            return ""
        name: str = response.json()["id"]
        self._accepted[name] = f"/models/{model}/predictions/{name}", nonce
        return name

    async def _background(self, model: str, nonce: str) -> None:
        await self._accept(model, nonce)

    async def _put(self, model: str, nonce: str) -> None:
        path = f"/models/{model}/predictions/{nonce[:20]}"
        body = self._body(nonce)
        for response in await asyncio.gather(*(self._http.put(path, json=body) for _ in range(2))):
            if self._ok("put", response) and response.json()["status"] in TERMINAL:  # one of them joins a running one
                self._prediction("put", response.json(), nonce)

    async def _sse(self, _: str, nonce: str) -> None:
        headers = {"accept": "text/event-stream"}
        path = "/models/words/predictions"  # the only model that streams
        async with self._http.stream("POST", path, json=self._body(nonce), headers=headers) as response:
            text = (await response.aread()).decode()
        if not self._ok("sse", response):
            return
        events = [event for event in text.split("\n\n") if event.startswith("event: completed")]
        if len(events) != 1:
            self._failed(f"sse: {len(events)} ends: {text[-200:]!r}")
            return
        self._prediction("sse", json.loads(events[0].partition("data: ")[2]), nonce)

    async def _cancel(self, model: str, nonce: str) -> None:
        if name := await self._accept(model, nonce, 0.3):
            response = await self._http.post(f"/models/{model}/predictions/{name}/cancel")
            if response.status_code != httpx.codes.NOT_FOUND:  # it has ended
                self._ok("cancel", response)

    async def _hang_up(self, model: str, nonce: str) -> None:
        with contextlib.suppress(httpx.TimeoutException):
            body = self._body(nonce, 0.2)
            # HTTP/1.1: in httpcore the timeout of one stream of HTTP/2 is that of all others of its connection.
            patience = self._random.uniform(0.005, 0.15)
            await self._clients.http[0].post(f"/models/{model}/predictions", json=body, timeout=patience)

    async def _rest(self, model: str, nonce: str) -> None:
        inputs = [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [nonce]}]
        response = await self._http.post(f"/v2/models/{model}/infer", json={"id": nonce[:20], "inputs": inputs})
        if self._ok("rest", response):
            body = response.json()
            if body["id"] != nonce[:20]:
                self._fault(f"rest: the id {body['id']} in place of {nonce[:20]}")
            self._same("rest", body["outputs"][0]["data"], nonce)

    async def _binary(self, model: str, nonce: str) -> None:
        data = struct.pack("<I", len(nonce)) + nonce.encode()
        one = {"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(data)}}
        head = json.dumps({"inputs": [one], "parameters": {"binary_data_output": True}}).encode()
        headers = {"inference-header-content-length": str(len(head))}
        response = await self._http.post(f"/v2/models/{model}/infer", content=head + data, headers=headers)
        if self._ok("binary", response):
            size = int(response.headers["inference-header-content-length"])
            self._same("binary", _texts(response.content[size:]), nonce)

    async def _generate(self, model: str, nonce: str) -> None:
        response = await self._http.post(f"/v2/models/{model}/generate", json={"text_input": nonce})
        if self._ok("generate", response):
            self._same("generate", response.json()["text_output"], nonce)

    async def _grpc(self, model: str, nonce: str, deadline: float = PATIENCE) -> None:
        try:
            answer = await self._clients.infer(
                _message(model, nonce), timeout=deadline, metadata=tuple(self._server.headers.items())
            )
        except grpc.aio.AioRpcError as error:
            if error.code() in _CODES and (deadline < PATIENCE or error.code() != _CODES[0]):
                self.counts[error.code().name] += 1
                return
            raise
        if answer.id != nonce[:20]:
            self._fault(f"grpc: the id {answer.id} in place of {nonce[:20]}")
        self._same("grpc", _texts(answer.raw_output_contents[0]), nonce)

    async def _grpc_deadline(self, model: str, nonce: str) -> None:
        await self._grpc(model, nonce, self._random.choice((0.0003, 0.002, 0.01, 1.0)))

    async def _grpc_stream(self, model: str, nonce: str) -> None:
        call = self._clients.stream(timeout=PATIENCE, metadata=tuple(self._server.headers.items()))
        await call.write(_message(model, nonce))
        await call.done_writing()
        parts: list[str] = []
        async for message in call:
            if message.error_message:
                self._failed(f"grpc-stream: {message.error_message}")
                return
            for content in message.infer_response.raw_output_contents:
                parts += _texts(content)
        self._same("grpc-stream", parts, nonce)

    async def settle(self, *, is_last: bool = False) -> None:
        """Compare each accepted prediction that has ended; at the last time all must have ended, and their webhooks."""
        until = time.monotonic() + PATIENCE
        for name, (path, nonce) in list(self._accepted.items()):
            while (ended := self._hooks.ended.get(name)) is None and is_last and time.monotonic() < until:
                await asyncio.sleep(0.05)
            if ended is None and is_last:
                state = await self._clients.http[0].get(path)
                self._fault(f"{name}: no webhook told of its end: {state.status_code} {state.text[:200]}")
            if ended is None:
                continue
            if ended["status"] != "canceled":
                self._prediction("webhook", ended, nonce)
            del self._accepted[name]
            del self._hooks.ended[name]


class Soak:
    """A run: load on all servers, faults, samples and the verdict."""

    def __init__(self, options: argparse.Namespace, servers: list[Server], loads: list[Load]) -> None:
        self.samples: list[dict[str, Any]] = []
        self._seconds: float = options.minutes * 60
        self._rate: float = options.rate
        self._servers = servers
        self._loads = loads
        self._random = random.Random(options.seed)  # noqa: S311 - no secret
        self._began = time.monotonic()
        self._at_rest: dict[str, int] = {}

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    @property
    def warm_up(self) -> float:
        """Seconds before memory is judged."""
        return min(WARM_UP, self._seconds / 3)

    async def run(self) -> list[str]:
        """Run for the whole time; return the faults."""
        await self._rest()
        sampling = asyncio.ensure_future(self._sample())
        kills = asyncio.ensure_future(self._disturb())
        try:
            while self._elapsed < self._seconds:
                await self._second()
                for task in (sampling, kills):
                    if task.done():
                        task.result()  # raises: without samples there is no verdict
        finally:
            sampling.cancel()
            kills.cancel()
        for load in self._loads:
            await load.settle(is_last=True)
        before = {server.name: self._most_descriptors(server) for server in self._servers}
        await self._rest()
        until = time.monotonic() + PATIENCE  # in which replaced workers and idle connections of webhooks end
        while time.monotonic() < until and self._more_than(before):
            await asyncio.sleep(1)
        faults = [fault for load in self._loads for fault in load.faults]
        return [*faults, *self._more_than(before), *self.growth()]

    def _most_descriptors(self, server: Server) -> int:
        """Return the most descriptors of a server until the end of the warm-up, apart from those of memory."""
        found: list[int] = [
            s["descriptors"] for s in self.samples if s["server"] == server.name and s["at"] <= self.warm_up
        ]
        return max(self._at_rest[server.name], *found)

    def _more_than(self, before: dict[str, int]) -> list[str]:
        """Name the servers that hold more descriptors than before, or more memory than they may keep."""
        found = []
        for server in self._servers:
            now, of_memory = server.descriptors(), server.descriptors(of_memory=True)
            if now > before[server.name] + SPARE_DESCRIPTORS:
                found.append(f"{server.name}: {now} descriptors at rest, {before[server.name]} in the warm-up")
            if of_memory > MOST_OF_MEMORY:
                found.append(f"{server.name}: {of_memory} descriptors of memory, {MOST_OF_MEMORY} at most")
        return found

    async def _second(self) -> None:
        """Make a second's requests, at most half a core of this process and of the servers."""
        began, used = time.monotonic(), self._used()
        count = max(1, round(self._rate / len(self._loads)))
        await asyncio.gather(*(load.one() for load in self._loads for _ in range(count)))
        for load in self._loads:
            await load.settle()
        busy = max(mine - before for mine, before in zip(self._used(), used, strict=True))
        await asyncio.sleep(max(0.0, max(1.0, 2 * busy) - (time.monotonic() - began)))

    def _used(self) -> tuple[float, float]:
        times = [server.process.cpu_times() for server in self._servers]
        return time.process_time(), sum(each.user + each.system for each in times)

    async def _rest(self) -> None:
        """Use each model and each kind of client once, and count descriptors."""
        for load, server in zip(self._loads, self._servers, strict=True):
            for model in MODELS:
                for kind in ("sync", "sync", "rest", "binary", "grpc", "grpc-stream"):
                    await load.one(kind, model)
            self._at_rest[server.name] = server.descriptors()

    async def _sample(self) -> None:
        while True:
            for server in self._servers:
                shared = sum(1 for _ in os.scandir(SHARED))
                self.samples.append({"at": round(self._elapsed, 1), "shared_memory": shared, **server.sample()})
            await asyncio.sleep(min(PERIOD, self._seconds / 10))

    async def _disturb(self) -> None:
        """Kill a worker, reload all models by a signal, and reload one by a request, in turn."""
        for kind in itertools.cycle(("load", "hang-up", "kill")):
            await asyncio.sleep(min(30.0, self._seconds / 6))
            index = self._random.randrange(len(self._servers))
            server, load = self._servers[index], self._loads[index]
            load.counts[f"disturbed by {kind}"] += 1
            if kind == "hang-up":
                server.process.send_signal(signal.SIGHUP)
            elif kind == "load":
                await self._reload(server, load)
            elif workers := server.workers():
                server.killed_at = time.monotonic()
                with contextlib.suppress(psutil.Error):
                    self._random.choice(workers).kill()

    async def _reload(self, server: Server, load: Load) -> None:
        name = self._random.choice(list(MODELS))
        async with httpx.AsyncClient(base_url=server.url, headers=server.headers, timeout=PATIENCE) as client:
            try:
                response = await client.post(f"/v2/repository/models/{name}/load")
            except httpx.HTTPError as error:
                load.faults.append(f"{server.name}: load of {name}: {error!r}")
                return
        if not response.is_success and not server.may_fail:
            load.faults.append(f"{server.name}: load of {name}: {response.status_code} {response.text[:200]}")

    def growth(self) -> list[str]:
        """Compare memory after the warm-up with memory at the end; a short run has no such verdict."""
        if self.warm_up < WARM_UP:
            return []
        return [
            f"{server.name}: memory grew from {first / 2**20:.1f} to {last / 2**20:.1f} MiB"
            for server in self._servers
            for first, last in [self.memory(server)]
            if last > first * (1 + GROWTH)
        ]

    def memory(self, server: Server) -> tuple[float, float]:
        """Return the median memory of a server in the first and the last fifth after the warm-up, in bytes."""
        found = [s["rss"] for s in self.samples if s["server"] == server.name and s["at"] >= self.warm_up]
        part = max(1, len(found) // 5)
        return statistics.median(found[:part]), statistics.median(found[-part:])


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _texts(content: bytes) -> list[str]:
    """Decode the elements of a BYTES tensor."""
    found, position = [], 0
    while position < len(content):
        end = position + 4 + int.from_bytes(content[position : position + 4], "little")
        found.append(content[position + 4 : end].decode())
        position = end
    return found


def _message(model: str, nonce: str) -> pb.ModelInferRequest:
    tensor = pb.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])
    raw = [struct.pack("<I", len(nonce)) + nonce.encode()]
    return pb.ModelInferRequest(model_name=model, id=nonce[:20], inputs=[tensor], raw_input_contents=raw)


async def soak(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    """Run servers and load in a folder; return the report."""
    for name, source in MODELS.items():
        (folder / "models" / name).mkdir(parents=True)
        (folder / "models" / name / "run.py").write_text(source)
    key = folder / "store.key"
    key.write_bytes(base64.b64encode(os.urandom(32)))
    hooks = Hooks()
    await hooks.start()
    common = ("--store-key-file", str(key))
    demand = ("--load", "on-demand", "--idle-unload", "60s")
    servers = [Server("all", folder, *common), Server("demand", folder, *common, *demand)]
    try:
        async with contextlib.AsyncExitStack() as stack:
            loads = []
            for number, server in enumerate(servers):
                await server.ready()
                clients = await stack.enter_async_context(server.clients())
                loads.append(Load(server, clients, hooks, options.seed + number))
            run = Soak(options, servers, loads)
            faults = await run.run()
    finally:
        hooks.close()
        stopped = [server.stop() for server in servers]
    for server, is_good in zip(servers, stopped, strict=True):
        if not is_good:
            faults.append(f"{server.name}: did not end after SIGTERM")
        left = [str(path) for path in server.temporary.rglob("*")]
        faults += [f"{server.name}: {path} was left" for path in left]
        faults += [
            f"{server.name}: {line[:2000]}" for line in server.log.read_text().splitlines() if "Traceback" in line
        ]
    return {
        "faults": faults,
        "counts": {server.name: dict(load.counts) for server, load in zip(servers, loads, strict=True)},
        "memory": {server.name: run.memory(server) for server in servers},
        "is_memory_judged": run.warm_up >= WARM_UP,
        "samples": run.samples,
    }


def main() -> None:
    """Run it and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=24, help="requests a second, of all servers together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=pathlib.Path, help="a file for the report, JSON")
    options = parser.parse_args()
    before = set(SHARED.iterdir())
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        report = asyncio.run(soak(options, pathlib.Path(folder)))
    ours = [path.name for path in set(SHARED.iterdir()) - before if path.name.startswith("geartrain")]
    report["faults"] += [f"{SHARED / name} was left" for name in ours]
    if options.report:
        options.report.write_text(json.dumps(report, indent=1))
    print(json.dumps(report["counts"], indent=1))
    for name, (first, last) in report["memory"].items():
        print(f"{name}: {first / 2**20:.1f} MiB after the warm-up, {last / 2**20:.1f} MiB at the end")
    print(f"{len(report['faults'])} faults", *report["faults"][:20], sep="\n")
    raise SystemExit(1 if report["faults"] else 0)


if __name__ == "__main__":
    main()
