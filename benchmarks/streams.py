"""How fast server-sent events flow, and how soon they come: geartrain beside coglet.

`python benchmarks/streams.py --help`. The servers run side by side and take turns in rounds, as in predict.py; what
counts is the median of each round's ratios. Prints markdown. Ends with 1 if a stream of ours did not end as it must.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import selectors
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence

from report import conditions, output, peers_environment, table, version_of
from servers import HERE, Running, Server, coglet, geartrain, running

SERVERS = ("geartrain", "coglet")
TOKENS = 10_000
STREAMS, TOKENS_OF_EACH = 200, 50
PACED, GAP = 50, 0.01  # tokens, and seconds between them
TIMEOUT = 20.0  # seconds without a byte; coglet now and then leaves one of many streams without an end
LAST_CHUNK = b"0\r\n\r\n"


@dataclasses.dataclass
class Stream:
    """One request, from its connection to the end of its answer."""

    connection: socket.socket
    parts: list[bytes] = dataclasses.field(default_factory=list)

    def take(self) -> bool:
        """Read what there is; return whether more will come."""
        data = self.connection.recv(1 << 18)
        self.parts.append(data)
        return bool(data) and not data.endswith(LAST_CHUNK)

    def is_good(self, tokens: int) -> bool:
        """Whether it was answered with so many outputs, in order, and with success."""
        head, _, body = b"".join(self.parts).partition(b"\r\n\r\n")
        if not body.endswith(LAST_CHUNK):
            return False
        events = b"".join(_chunks(body)).split(b"\n\n")
        outputs = [event for event in events if event.startswith(b"event: output\n")]
        indices = [json.loads(event.partition(b"data: ")[2])["index"] for event in outputs]
        ends = [event for event in events if event.startswith(b"event: completed\n")]
        is_whole = indices == list(range(tokens)) and len(ends) == 1 and b'"status":"succeeded"' in ends[0]
        return head.startswith(b"HTTP/1.1 200") and is_whole


def _chunks(body: bytes) -> Iterable[bytes]:
    """The content of a chunked body."""
    at = 0
    while at < len(body):
        line = body.index(b"\r\n", at)
        size = int(body[at:line], 16)
        yield body[line + 2 : line + 2 + size]
        at = line + 4 + size


def begin(port: int, values: dict[str, float]) -> Stream:
    """Ask for a stream."""
    body = json.dumps({"input": values}).encode()
    connection = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = (
        "POST /predictions HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\ncontent-type: application/json"
    )
    connection.sendall(f"{head}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    return Stream(connection)


@dataclasses.dataclass(frozen=True)
class Flow:
    """What came of one or many streams."""

    events: int
    seconds: float
    streams: int
    good: int

    @property
    def rate(self) -> float:
        """Outputs per second, as the client sees them."""
        return self.events / self.seconds


def flow(port: int, *, streams: int, tokens: int) -> Flow:
    """Run so many streams at once and read them all as fast as they come."""
    start = time.perf_counter()
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        asked = [begin(port, {"count": tokens}) for _ in range(streams)]
        for stream in asked:
            stack.callback(stream.connection.close)
            selector.register(stream.connection, selectors.EVENT_READ, stream)
        while selector.get_map():
            ready = selector.select(TIMEOUT)
            if not ready:
                break  # what has not come by now is not good
            for key, _ in ready:
                if not key.data.take():
                    selector.unregister(key.fileobj)
        seconds = time.perf_counter() - start
    good = sum(stream.is_good(tokens) for stream in asked)
    return Flow(good * tokens, seconds, streams, good)


def delays(port: int) -> list[float]:
    """The seconds from each yield of a slow stream to its event at the client, the first one first."""
    stream = begin(port, {"count": PACED, "gap": GAP})
    waits: list[float] = []
    text = b""
    with contextlib.closing(stream.connection):
        more = True
        while more:
            more = stream.take()
            now = time.perf_counter_ns()
            text += stream.parts[-1]
            *whole, text = text.split(b"\n\n")
            waits += [
                (now - int(event.partition(b'"chunk":"')[2].partition(b'"')[0])) / 1e9
                for event in whole
                if b"event: output\n" in event
            ]
    if len(waits) != PACED:
        raise RuntimeError(f"{len(waits)} events came of {PACED} tokens")
    return waits


@dataclasses.dataclass(frozen=True)
class Case:
    """Streams of one model."""

    title: str
    model: str
    streams: int
    tokens: int
    repeats: int  # in a round


CASES = (
    Case(f"one stream of {TOKENS:,} tokens, yielded at once", "tokens", 1, TOKENS, 5),
    Case(f"{STREAMS} streams of {TOKENS_OF_EACH} tokens at once, async", "tokens_async", STREAMS, TOKENS_OF_EACH, 2),
)


def build(model: pathlib.Path, folder: pathlib.Path) -> None:
    """Copy a model, with the schema that an image built by Cog has: without it, coglet streams nothing."""
    shutil.copy(model / "run.py", folder)
    (folder / ".cog").mkdir()
    schema = output([str(pathlib.Path(sys.executable).with_name("geartrain")), "schema", str(model)])
    (folder / ".cog/openapi_schema.json").write_text(schema)


def started(
    stack: contextlib.ExitStack, names: Sequence[str], peers: pathlib.Path, *, model: str, slots: int
) -> dict[str, Running]:
    """Start the servers of a case."""
    folder = HERE / "models" / model
    built = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    build(folder, built)
    both: list[Server] = [geartrain(folder, slots=slots), coglet(built, peers, slots=slots)]
    return {server.name: stack.enter_context(running(server)) for server in both if server.name in names}


def throughput(case: Case, peers: pathlib.Path, *, names: Sequence[str], rounds: int) -> tuple[str, bool]:
    """Measure one case; a markdown table, and whether all streams of ours were good."""
    with contextlib.ExitStack() as stack:
        servers = started(stack, names, peers, model=case.model, slots=case.streams)
        seen: dict[str, list[Flow]] = {name: [] for name in servers}
        for turn in range(rounds + 1):
            for name, server in servers.items():
                flows = [flow(server.port, streams=case.streams, tokens=case.tokens) for _ in range(case.repeats)]
                if turn:  # the first one warms up
                    seen[name].append(_middle(flows))
    ours = seen.get("geartrain", [])
    rows = []
    for name, flows in seen.items():
        row = [name, f"{statistics.median(flow.rate for flow in flows):,.0f}"]
        row += [f"{sum(flow.good for flow in flows)} of {sum(flow.streams for flow in flows)}"]
        ratios = [mine.rate / theirs.rate for mine, theirs in zip(ours, flows, strict=False) if theirs.rate]
        rows.append([*row, f"{statistics.median(ratios):.2f} ×" if ratios and flows is not ours else ""])
    text = table(["server", "events/s", "good streams", "geartrain: events/s"], rows)
    return f"### {_title(case.title)}\n\n{text}", all(flow.good == flow.streams for flow in ours)


def _middle(flows: Sequence[Flow]) -> Flow:
    """Several flows as one: the middle one's time, and the good streams of all."""
    middle = sorted(flows, key=lambda flow: flow.rate)[len(flows) // 2]
    return dataclasses.replace(middle, streams=sum(f.streams for f in flows), good=sum(f.good for f in flows))


def promptness(peers: pathlib.Path, *, names: Sequence[str], rounds: int) -> str:
    """Measure how long an event takes from the yield to the client when it is alone; a markdown table."""
    with contextlib.ExitStack() as stack:
        servers = started(stack, names, peers, model="tokens", slots=1)
        waits: dict[str, list[list[float]]] = {name: [] for name in servers}
        for turn in range(rounds + 1):
            for name, server in servers.items():
                taken = delays(server.port)
                if turn:
                    waits[name].append(taken)

    def row(name: str, pick: Callable[[list[float]], Iterable[float]]) -> list[str]:
        values = sorted(value for taken in waits[name] for value in pick(taken))
        return [f"{values[len(values) // 2] * 1000:.2f}", f"{values[-1] * 1000:.2f}"]

    rows = [[name, *row(name, lambda taken: taken[:1]), *row(name, lambda taken: taken[1:])] for name in waits]
    head = ["server", "first event: median ms", "worst ms", "later events: median ms", "worst ms"]
    return f"### From the yield to the event, a token every {GAP * 1000:.0f} ms\n\n{table(head, rows)}"


def _title(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns that every server takes (default: 5)")
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=SERVERS, help="whom to measure (default: all)")
    options = parser.parse_args()
    peers = peers_environment("coglet")
    print(conditions({"coglet": version_of("coglet", peers)}))
    print(f"{options.rounds} rounds.\n")
    good = True
    for case in CASES:
        text, is_good = throughput(case, peers, names=options.servers, rounds=options.rounds)
        print(text, flush=True)
        good = good and is_good
    print(promptness(peers, names=options.servers, rounds=options.rounds))
    if not good:
        sys.exit("a stream of geartrain did not end as it must")


if __name__ == "__main__":
    main()
