"""Mixed clients of one server, to find streams and connections of HTTP/2 that are reset without a reason.

    python -m tools.mix --minutes 10 --report mix.json

HTTP/2 by httpx and by h2load, gRPC, pipelined HTTP/1.1, server-sent events, and clients that hang up, all at once. A
proxy in front of the server cuts what passes into pieces of any size, and counts each RST_STREAM and GOAWAY by its
sender and code. Ends with 1 if an answer is lost or mixed up, or if a code names a fault of the protocol; the report
then has the frames before it. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import pathlib
import random
import shutil
import tempfile
import time
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from tools.soak import MODELS, PATIENCE, Hooks, Load, Server

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CODES: Final = (
    *("NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED"),
    *("FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM"),
)
FINE: Final = frozenset({"NO_ERROR", "CANCEL", "REFUSED_STREAM"})
_RST_STREAM: Final = 3
_GOAWAY: Final = 7
_KEPT: Final = 80  # frames of a connection
_SHOWN: Final = 24  # bytes of a frame
_PIPELINED: Final = 16
_BURST: Final = 24  # requests of each kind of client at once


class Frames:
    """Frames of HTTP/2 in one direction of a connection."""

    def __init__(self, sender: str, watch: Watch, kept: collections.deque[str]) -> None:
        self._sender = sender
        self._watch = watch
        self._kept = kept
        self._held = b""
        self._is_http2 = sender == "server"
        self._is_other = False

    def take(self, data: bytes) -> None:
        """Count the frames in some bytes; nothing for a connection of HTTP/1.1."""
        if self._is_other:
            return
        self._held += data
        if not self._is_http2:
            self._is_http2 = self._held.startswith(PREFACE)
            self._is_other = not PREFACE.startswith(self._held[: len(PREFACE)])
            if not self._is_http2:
                return
            self._held = self._held[len(PREFACE) :]
        elif self._held.startswith(b"HTTP/1"):
            self._is_other = True
            return
        while len(self._held) >= 9:  # noqa: PLR2004
            size = int.from_bytes(self._held[:3], "big")
            if len(self._held) < 9 + size:
                return
            self._note(self._held[3], self._held[4], self._held[5:9], self._held[9 : 9 + size])
            self._held = self._held[9 + size :]

    def _note(self, kind: int, flags: int, tag: bytes, payload: bytes) -> None:
        stream = int.from_bytes(tag, "big")
        self._kept.append(
            f"{time.monotonic():.4f} {self._sender} kind={kind} flags={flags:#x} stream={stream} "
            f"size={len(payload)} {payload[:_SHOWN].hex()}"
        )
        if kind in {_RST_STREAM, _GOAWAY}:
            at = 4 if kind == _GOAWAY else 0
            code = int.from_bytes(payload[at : at + 4], "big")
            name = CODES[code] if code < len(CODES) else str(code)
            self._watch.note(f"{self._sender}: {'GOAWAY' if at else 'RST_STREAM'} {name}", name, self._kept)


class Watch:
    """Proxies in front of a server that count its resets."""

    def __init__(self, chance: random.Random) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.found: list[dict[str, Any]] = []
        self._chance = chance
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, port: int) -> int:
        """Open a proxy in front of a port; return its own."""

        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._serve(port, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self._servers.append(server)
        found: int = server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        """End all connections."""
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def note(self, text: str, code: str, frames: collections.deque[str]) -> None:
        """Count a reset; keep the frames before one that names a fault."""
        self.counts[text] += 1
        if code not in FINE:
            self.found.append({"at": time.strftime("%H:%M:%S"), "what": text, "frames": list(frames)})

    async def _serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.transport.abort()
            return
        kept: collections.deque[str] = collections.deque(maxlen=_KEPT)
        await asyncio.gather(
            self._pump(reader, back, Frames("client", self, kept)),
            self._pump(there, writer, Frames("server", self, kept)),
        )
        for each in (writer, back):
            each.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: Frames) -> None:
        try:
            while data := await reader.read(65_536):
                frames.take(data)
                cut = self._chance.randrange(len(data)) if self._chance.random() < 0.2 else 0  # noqa: PLR2004
                if cut:
                    writer.write(data[:cut])
                    await asyncio.sleep(self._chance.choice((0.0, 0.001)))
                writer.write(data[cut:])
                await writer.drain()
            writer.write_eof()
        except OSError:
            writer.transport.abort()


class Mix:
    """Bursts of requests of all kinds of clients."""

    def __init__(self, server: Server, load: Load, watch: Watch, folder: pathlib.Path) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._server = server
        self._load = load
        self._chance = random.Random(2)  # noqa: S311 - no secret
        self._folder = folder
        self._watch = watch
        self._body = json.dumps({"input": {"text": "x" * 300}})
        (folder / "body.json").write_text(self._body)

    async def burst(self) -> None:
        """Make requests of every kind at once."""
        kinds = ("sync", "put", "sse", "rest", "binary", "generate", "grpc", "grpc-deadline", "grpc-stream", "hang-up")
        wanted = [self._load.one(self._chance.choice(kinds)) for _ in range(2 * _BURST)]
        await asyncio.gather(
            *wanted, self._h2load(), self._pipeline(), self._impatient(), self._leave(), self._uploads()
        )

    async def _h2load(self) -> None:
        """Make requests with nghttp2, whose checks of answers are its own."""
        program = shutil.which("h2load")
        if program is None:
            return
        key = f"authorization: {self._server.headers['authorization']}"
        model = self._chance.choice(list(MODELS))
        command = [program, "-n", "60", "-c", "2", "-m", "20", "-H", key, "-H", "content-type: application/json"]
        command += ["-d", str(self._folder / "body.json"), f"{self._server.url}/models/{model}/predictions"]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        text = (await process.communicate())[0].decode()
        line = next((each for each in text.splitlines() if each.startswith("requests:")), text[-200:])
        self.counts["h2load " + ("all done" if " 0 failed, 0 errored, 0 timeout" in line else line)] += 1

    async def _pipeline(self) -> None:
        """Send requests of HTTP/1.1 without waiting for answers, which have to come in their order."""
        parts = urlsplit(self._server.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        for number in range(_PIPELINED):
            body = json.dumps({"input": {"text": f"{number}"}}).encode()
            head = f"POST /models/plain/predictions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
            head += f"content-type: application/json\r\nauthorization: {self._server.headers['authorization']}\r\n\r\n"
            writer.write(head.encode() + body)
        async with asyncio.timeout(PATIENCE):
            for number in range(_PIPELINED):
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                found = await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
                is_right = json.loads(found).get("output") == f"[{number}]"
                self.counts["pipelined " + ("right" if is_right else head[:12])] += 1
        writer.close()

    async def _impatient(self) -> None:
        """Make requests over HTTP/2 on one connection and give up some of them."""
        options: dict[str, Any] = {"base_url": self._server.url, "headers": self._server.headers}
        async with httpx.AsyncClient(http1=False, http2=True, timeout=PATIENCE, **options) as client:

            async def one(patience: float) -> None:
                body = {"input": {"text": "y" * self._chance.choice((1, 100_000)), "seconds": 0.05}}
                headers = self._chance.choice(({}, {"accept": "text/event-stream"}))
                try:
                    async with asyncio.timeout(patience):
                        answer = await client.post("/models/words/predictions", json=body, headers=headers)
                    self.counts[f"impatient {answer.status_code}"] += 1
                except TimeoutError:
                    self.counts["impatient gave up"] += 1
                except Exception as error:  # noqa: BLE001 - httpcore does not bear every cancel
                    self.counts[f"impatient {error!r}"[:200]] += 1

            patience = [self._chance.choice((PATIENCE, self._chance.uniform(0, 0.2))) for _ in range(_BURST)]
            await asyncio.gather(*map(one, patience))

    async def _leave(self) -> None:
        """Begin requests over HTTP/2 and HTTP/1.1 and hang up amid them."""
        options: dict[str, Any] = {"base_url": self._server.url, "headers": self._server.headers}
        for http2 in (True, False):
            async with httpx.AsyncClient(http1=not http2, http2=http2, timeout=PATIENCE, **options) as client:
                body = {"input": {"text": "z" * 50_000, "seconds": 0.3}}
                tasks = [
                    asyncio.ensure_future(client.put(f"/models/words/predictions/{self._chance.random()}", json=body))
                    for _ in range(8)
                ]
                await asyncio.sleep(self._chance.uniform(0, 0.1))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _uploads(self) -> None:
        """Send bodies in pieces, some of which are refused before their end."""
        options: dict[str, Any] = {"base_url": self._server.url, "headers": self._server.headers}

        async def pieces(count: int) -> Any:
            for _ in range(count):
                yield b" " * 20_000
                await asyncio.sleep(self._chance.choice((0.0, 0.002)))
            yield self._body.encode()

        async with httpx.AsyncClient(http1=False, http2=True, timeout=PATIENCE, **options) as client:

            async def one(path: str) -> None:
                headers = {"content-type": "application/json"}
                try:
                    answer = await client.post(path, content=pieces(self._chance.randrange(12)), headers=headers)
                    self.counts[f"upload {answer.status_code}"] += 1
                except httpx.HTTPError as error:  # refused before the end of the body
                    self.counts[f"upload {type(error).__name__}"] += 1

            paths = ("/models/plain/predictions", "/models/words/predictions", "/nothing", "/models/none/predictions")
            await asyncio.gather(*(one(self._chance.choice(paths)) for _ in range(_BURST)))


async def mix(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    """Run the server and its clients in a folder; return the report."""
    for name, source in MODELS.items():
        (folder / "models" / name).mkdir(parents=True)
        (folder / "models" / name / "run.py").write_text(source)
    hooks = Hooks()
    await hooks.start()
    watch = Watch(random.Random(options.seed))  # noqa: S311 - no secret
    server = Server("mix", folder)
    bursts = 0
    try:
        await server.ready()
        server.url = f"http://127.0.0.1:{await watch.open(int(server.url.rpartition(':')[2]))}"
        server.target = f"127.0.0.1:{await watch.open(int(server.target.rpartition(':')[2]))}"
        until = time.monotonic() + 60 * options.minutes
        async with server.clients() as clients:
            load = Load(server, clients, hooks, options.seed)
            made = Mix(server, load, watch, folder)
            while time.monotonic() < until:
                await made.burst()
                await load.settle()
                bursts += 1
                await asyncio.sleep(options.pause)
            await load.settle(is_last=True)
    finally:
        hooks.close()
        await watch.close()
        is_good = server.stop()
    faults = load.faults + ([] if is_good else ["The server did not end after SIGTERM."])
    faults += [line[:2000] for line in server.log.read_text().splitlines() if "Traceback" in line]
    counts = {"bursts": bursts, **made.counts, **load.counts}
    return {"faults": faults, "counts": counts, "resets": dict(watch.counts), "found": watch.found}


def main() -> None:
    """Run it and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between two bursts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=pathlib.Path, help="a file for the report, JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mix-") as folder:
        report = asyncio.run(mix(options, pathlib.Path(folder)))
    if options.report:
        options.report.write_text(json.dumps(report, indent=1))
    print(json.dumps({"counts": report["counts"], "resets": report["resets"]}, indent=1))
    print(f"{len(report['faults'])} faults", *report["faults"][:20], sep="\n")
    print(f"{len(report['found'])} resets that name a fault")
    raise SystemExit(1 if report["faults"] or report["found"] else 0)


if __name__ == "__main__":
    main()
