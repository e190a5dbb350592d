"""Cost of a chunk of a text in the server: OpenAI's stream, without and with stop sequences, beside plain events.

`python benchmarks/text_streams.py --help`. All streams come from one server and one model and take turns in rounds;
what counts is the median of the rounds. The CPU is that of the server's own process, without the worker. Prints
markdown. Ends with 1 if a stream is not whole, or a chunk costs more than `--most` says.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import pathlib
import socket
import statistics
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from report import machine, table
from servers import HERE, Running, geartrain, running

TOKENS = 100_000
PACED, GAP, STREAMS = 1000, 0.002, 16  # tokens of a stream, seconds between them, streams at once
TIMEOUT = 60.0  # seconds without a byte
LAST_CHUNK = b"0\r\n\r\n"
MESSAGES = [{"role": "user", "content": "token"}]
TEXT_STOPS = ["###", "\n\nUser:"]  # that never come
NEAR_STOPS = ["to###", "ke\n\nUser:"]  # nor do these, but each token has their first characters


class Form(NamedTuple):
    """A kind of stream: its path, its body, and what each of its chunks has."""

    name: str
    path: str
    body: Mapping[str, Any]
    token: bytes


def _chat(**more: Any) -> dict[str, Any]:
    return {"model": "texts", "messages": MESSAGES, "stream": True, **more}


BASE = "events of a prediction"
NEAR = "chat completions, 2 stop sequences that seem to begin in each token"
FORMS = (
    Form(BASE, "/predictions", {}, b"event: output\n"),
    Form("chat completions", "/v1/chat/completions", _chat(), b'"content":" token"'),
    Form(
        "chat completions, 1 stop sequence", "/v1/chat/completions", _chat(stop=TEXT_STOPS[:1]), b'"content":" token"'
    ),
    Form("chat completions, 2 stop sequences", "/v1/chat/completions", _chat(stop=TEXT_STOPS), b'"content":" token"'),
    Form(NEAR, "/v1/chat/completions", _chat(stop=NEAR_STOPS), b'"content":" token"'),
    Form("completions", "/v1/completions", {"model": "texts", "prompt": "token", "stream": True}, b'"text":" token"'),
    Form("responses", "/v1/responses", {"model": "texts", "input": "token", "stream": True}, b'"delta":" token"'),
    Form("messages of Anthropic", "/v1/messages", _chat(max_tokens=9), b'"text":" token"'),
)


def cpu(pid: int) -> float:
    """Seconds that all threads of a process have computed, in nanoseconds of the scheduler."""
    seconds = 0.0
    for each in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            seconds += int((each / "schedstat").read_text().split()[0]) / 1e9
    return seconds


def request(form: Form, values: Mapping[str, float]) -> bytes:
    """A whole request."""
    body = {"input": {"prompt": "token", **values}} if form.name == BASE else {**form.body, **values}
    content = json.dumps(body).encode()
    head = f"POST {form.path} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content


def stream(port: int, form: Form, *, tokens: int, gap: float = 0.0, streams: int = 1) -> None:
    """Run streams at once and read them to their ends. Raises RuntimeError for one that is not whole."""
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(streams):
            connection = stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", port), TIMEOUT)))
            connection.sendall(request(form, {"count": tokens, "gap": gap}))
            connections.append(connection)
        for connection in connections:
            parts: list[bytes] = []
            while not (parts and parts[-1].endswith(LAST_CHUNK)):
                parts.append(connection.recv(1 << 18))
                if not parts[-1]:
                    break
            found = b"".join(parts).count(form.token)
            if found < tokens:  # a token may lie across two chunks of HTTP
                raise RuntimeError(f"{form.name}: {found} of {tokens} tokens have come")


def microseconds(server: Running, form: Form, *, tokens: int, gap: float = 0.0, streams: int = 1) -> float:
    """The server's CPU for a token."""
    before = cpu(server.pid)
    stream(server.port, form, tokens=tokens, gap=gap, streams=streams)
    return (cpu(server.pid) - before) / (tokens * streams) * 1e6


def measure(title: str, rounds: int, *, slots: int, tokens: int, gap: float = 0.0) -> tuple[str, dict[str, float]]:
    """Measure all forms in turns; a markdown table, and how much more than plain events a chunk of each costs."""
    with running(geartrain(HERE / "models/texts", slots=slots)) as server:
        seen: dict[str, list[float]] = {form.name: [] for form in FORMS}
        for turn in range(rounds + 1):
            forms = FORMS if turn % 2 else FORMS[::-1]
            for form in forms:
                taken = microseconds(server, form, tokens=tokens, gap=gap, streams=slots)
                if turn:  # the first one warms up
                    seen[form.name].append(taken)
    rows = []
    more: dict[str, float] = {}
    for name, costs in seen.items():
        differences = [cost - base for cost, base in zip(costs, seen[BASE], strict=True)]
        ratios = [cost / base for cost, base in zip(costs, seen[BASE], strict=True)]
        more[name] = statistics.median(differences)
        row = [name, f"{statistics.median(costs):.2f}"]
        row += [f"{more[name]:+.2f}", f"{statistics.median(ratios):.2f} ×"] if name != BASE else ["", ""]
        rows.append(row)
    head = ["stream", "CPU of a chunk, µs", "more than plain events, µs", "ratio"]
    return f"### {title}\n\n{table(head, rows)}", more


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="turns that every form takes (default: 7)")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"of a stream (default: {TOKENS})")
    parser.add_argument("--fast-only", action="store_true", help="leave out the streams at a pace")
    parser.add_argument(
        "--most",
        type=float,
        nargs=2,
        metavar=("PLAIN", "STOPS"),
        help="µs more than plain events that a chunk of chat completions may cost, without and with stop sequences",
    )
    options = parser.parse_args()
    print(f"{machine()}, geartrain {importlib.metadata.version('geartrain')}.")
    print(f"{options.rounds} rounds.\n")
    title = f"One stream of {options.tokens:,} tokens, yielded at once"
    text, more = measure(title, options.rounds, slots=1, tokens=options.tokens)
    print(text, flush=True)
    if not options.fast_only:
        title = f"{STREAMS} streams at once, a token of each every {GAP * 1000:.0f} ms"
        print(measure(title, options.rounds, slots=STREAMS, tokens=PACED, gap=GAP)[0])
    if options.most:
        plain, stops = options.most
        limits = {FORMS[1].name: plain, FORMS[2].name: stops, FORMS[3].name: stops, NEAR: stops}
        wrong = [
            f"{name}: {more[name]:.2f} µs more, not {limit:g}" for name, limit in limits.items() if more[name] > limit
        ]
        if wrong:
            sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
