"""Requests a second of a model that takes 5 ms for a batch: geartrain beside Triton's batcher, mosec and LitServe.

`python benchmarks/batching.py --help`. A batch has at most 32 requests, so so many connections can be answered at most
min(connections, 32) / 5 ms times a second: that is the limit. All servers run side by side and take turns in rounds;
what counts is the median of the rounds. Every request carries a number of its own, and only the answer to it is good.
Needs wrk. Prints markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import json
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from load import Load, Summary, connections_text, drive, summary, version
from peer_servers import litserve, mosec, triton
from report import conditions, peers_environment, table, version_of
from servers import HERE, Running, Server, resting, running

MAX_SIZE = 32  # requests in a batch
BATCH_SECONDS = 0.005  # that the models of all servers take for one
DELAY = 0.001  # seconds that whoever waits for more requests does so
CONNECTIONS = (1, 16, 64)
PREFERRED = "preferred_batch_size: [16, 32]"  # of Triton's; what else was tried made no clear difference
WARM_UP = 1  # seconds of load before the first round
SAMPLE = 10  # requests that each connection of `verify` sends
PEERS = {"triton": "nvidia-pytriton", "mosec": "mosec", "litserve": "litserve"}


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """How a number is sent, and where the answer has twice that number and one.

    The body is the number between `head` and `tail`. `pattern` finds the result in the text of an answer, in Lua's
    language; `result` in its JSON.
    """

    path: str
    head: str
    tail: str
    pattern: str
    result: Callable[[Any], float]


COG = Endpoint("/predictions", '{"input":{"x":', "}}", '"output":([%d.]+)', lambda answer: answer["output"])
INFER = Endpoint(
    "/v2/models/doubler/infer",
    '{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[',
    "]}]}",
    '"data":%[+([%d.]+)',
    lambda answer: _first(answer["outputs"][0]["data"]),
)
MOSEC = Endpoint("/inference", '{"x":', "}", '"y": ?([%d.]+)', lambda answer: answer["y"])
LITSERVE = dataclasses.replace(MOSEC, path="/predict")


def _first(data: Any) -> float:
    while isinstance(data, list):
        data = data[0]
    return float(data)


@dataclasses.dataclass(frozen=True)
class Contender:
    """A server with one way of gathering, asked at one endpoint. `make` may write into the folder it is given.

    `restless`: it looks into its queue all the time, also when nothing comes; so it is stopped in the turns of others.
    """

    name: str
    program: str
    endpoint: Endpoint
    make: Callable[[pathlib.Path], Server]
    restless: bool = False


# servers


def geartrain(model: str, delay: float) -> Callable[[pathlib.Path], Server]:
    """The server of this work tree on a model of `models/`, which says nothing of a delay."""

    def make(folder: pathlib.Path) -> Server:
        own = folder / "doubler"
        shutil.copytree(HERE / "models" / model, own)
        if delay:
            (own / "geartrain.yaml").write_text(f"batching:\n  max_delay: {delay}\n")
        script = pathlib.Path(sys.executable).with_name("geartrain")
        address = ("--host", "127.0.0.1", "--port", "{port}", "--grpc-port", "off")
        return Server(name="geartrain", command=(str(script), "serve", str(own), *address))

    return make


def floor(_: pathlib.Path) -> Server:
    """See `batching_floor.py`."""
    return Server(name="floor", command=(sys.executable, str(HERE / "batching_floor.py"), "{port}"))


def triton_gathering(*settings: str) -> Callable[[pathlib.Path], Server]:
    """Triton with these settings of its dynamic batcher."""
    text = f"dynamic_batching {{ {' '.join(settings)} }}\n"
    return lambda folder: triton(folder, model="doubler", settle=lambda config: config + text)


CONTENDERS = (
    Contender("geartrain, Cog's API", "geartrain", COG, geartrain("batched", 0)),
    Contender("geartrain, Cog's API, 1 ms", "geartrain", COG, geartrain("batched", DELAY)),
    Contender("geartrain, infer", "geartrain", INFER, geartrain("batched_tensor", 0)),
    Contender("geartrain, infer, 1 ms", "geartrain", INFER, geartrain("batched_tensor", DELAY)),
    Contender("floor", "floor", COG, floor),
    Contender("triton, 1 ms", "triton", INFER, triton_gathering(PREFERRED, "max_queue_delay_microseconds: 1000")),
    Contender("triton", "triton", INFER, triton_gathering(PREFERRED)),
    Contender("mosec, 1 ms", "mosec", MOSEC, lambda folder: mosec(folder, script="doubler.py", max_wait_ms=1)),
    Contender(
        "litserve, 1 ms", "litserve", LITSERVE, lambda _: litserve(script="doubler.py", batch_timeout=DELAY), True
    ),
    Contender("litserve", "litserve", LITSERVE, lambda _: litserve(script="doubler.py", batch_timeout=0), True),
)


# load


def limit(connections: int) -> float:
    """Requests per second that a server can answer at most, if each connection waits for its answer."""
    return min(connections, MAX_SIZE) / BATCH_SECONDS


def load(server: Running, endpoint: Endpoint, *, connections: int, seconds: int) -> Load:
    """Send numbers to an endpoint."""
    arguments = (endpoint.head, endpoint.tail, endpoint.pattern)
    return drive(server, endpoint.path, "batched.lua", arguments, connections=connections, seconds=seconds)


def verify(contender: Contender, server: Running, connections: int) -> None:
    """Ask over so many connections at once; raise RuntimeError unless everyone is given the answer to his question."""

    def ask(client: int) -> Iterator[str]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        for number in range(client * SAMPLE, (client + 1) * SAMPLE):
            body = f"{contender.endpoint.head}{number}{contender.endpoint.tail}"
            connection.request("POST", contender.endpoint.path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != http.client.OK or contender.endpoint.result(json.loads(text)) != number * 2 + 1:
                yield f"{contender.name} answered {number} with {answer.status} {text[:200]!r}"
        connection.close()

    with ThreadPoolExecutor(connections) as pool:
        wrong = [text for each in pool.map(lambda client: list(ask(client)), range(connections)) for text in each]
    if wrong:
        raise RuntimeError(f"{wrong[0]}; {len(wrong)} answers are wrong")


def measure(connections: int, contenders: Sequence[Contender], *, rounds: int, seconds: int) -> str:
    """Measure all with so many connections; a markdown table."""
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        started: list[tuple[Contender, Running, list[Load]]] = []
        for number, contender in enumerate(contenders):
            own = folder / str(number)
            own.mkdir()
            started.append((contender, stack.enter_context(running(contender.make(own))), []))
        for contender, server, _ in started:
            verify(contender, server, connections)
            load(server, contender.endpoint, connections=connections, seconds=WARM_UP)
        for _ in range(rounds):
            for contender, server, loads in started:
                with resting(other for each, other, _ in started if each.restless and other is not server):
                    loads.append(load(server, contender.endpoint, connections=connections, seconds=seconds))
        for contender, server, _ in started:
            verify(contender, server, connections)
    rows = [_row(contender.name, summary(loads), limit(connections)) for contender, _, loads in started]
    head = ["server", "good/s", "of the limit", "p50 ms", "p99 ms", "bad"]
    return f"#### {connections_text(connections)}: at most {limit(connections):,.0f}/s\n\n{table(head, rows)}"


def _row(name: str, seen: Summary, most: float) -> list[str]:
    times = [f"{seconds * 1000:.2f}" for seconds in (seen.p50, seen.p99)]
    return [name, f"{seen.rate:,.0f}", f"{seen.rate / most:.0%}", *times, str(seen.bad)]


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns that every server takes (default: 5)")
    parser.add_argument("--seconds", type=int, default=3, help="length of a turn (default: 3)")
    programs = ("geartrain", "floor", *PEERS)
    parser.add_argument("--servers", nargs="+", choices=programs, default=programs, help="whom to measure (all)")
    parser.add_argument("--connections", nargs="+", type=int, choices=CONNECTIONS, default=CONNECTIONS)
    options = parser.parse_args()
    wrk = version(parser)
    versions = {name: version_of(PEERS[name], peers_environment(name)) for name in PEERS if name in options.servers}
    print(conditions(versions, wrk))
    print(f"{options.rounds} rounds, {options.seconds} s for each server in each.\n")
    contenders = [contender for contender in CONTENDERS if contender.program in options.servers]
    for connections in options.connections:
        print(measure(connections, contenders, rounds=options.rounds, seconds=options.seconds), flush=True)


if __name__ == "__main__":
    main()
