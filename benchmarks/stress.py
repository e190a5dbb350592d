"""An hour of mixed use in a minute: whether every prediction ends exactly once, and everything is given back.

`python benchmarks/stress.py --help`. Clients that wait, stream, cancel, disconnect; predictions that fail; receivers of
webhooks that are slow, fail, close in the middle of a request, crash, or are not there. Prints counts as markdown.
Ends with 1 if a prediction did not end as it must, if a webhook did not come, or if something was not given back.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from report import table
from servers import HERE, Running, Server, processes_of, running
from stress_clients import Client, Refused, Violation
from stress_receivers import Receivers

MODELS = ("stress_async", "stress")
CLIENTS = 48
CROWD = 200
CALM = 10  # looks, a tenth of a second apart
TIMEOUT = 30.0  # seconds for anything to come or to end
ENDS = ("succeeded", "failed", "canceled")
Values = dict[str, Any]


class Run:
    """The clients of one server."""

    def __init__(self, port: int, receivers: Receivers, dice: random.Random, *, in_chunks: bool) -> None:
        """`in_chunks`: the model gives chunk by chunk."""
        self.client = Client(port)
        self.receivers = receivers
        self.dice = dice
        self.in_chunks = in_chunks
        self.seen: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []
        self._numbers = 0

    def choose(self, count: int) -> list[Kind]:
        """So many kinds of predictions: each one, and then as it comes."""
        return [*KINDS, *self.dice.choices(list(KINDS), list(KINDS.values()), k=count)][:count]

    async def go(self, kinds: list[Kind], clients: int = CLIENTS) -> None:
        """Make predictions of these kinds, as many at once as there are clients."""
        left = iter(kinds)
        await asyncio.gather(*(self._work(left) for _ in range(clients)))
        self.client.close()

    async def _work(self, left: Iterator[Kind]) -> None:
        for kind in left:
            self._numbers += 1
            prediction_id = f"{'async' if self.in_chunks else 'sync'}-{self._numbers}"
            try:
                async with asyncio.timeout(TIMEOUT):
                    status = await kind(self, prediction_id)
            except Refused:
                self.seen[kind.__name__, "refused"] += 1
            except TimeoutError:
                self.wrong.append(f"{prediction_id} ({kind.__name__}) did not end")
            except (Violation, OSError, EOFError) as error:
                self.wrong.append(f"{prediction_id} ({kind.__name__}): {error!r}")
            else:
                self.seen[kind.__name__, status] += 1

    def expect(self, fact: bool, what: object) -> None:  # noqa: FBT001 - as of assert
        """Raise `Violation` if it is not so."""
        if not fact:
            raise Violation(str(what))

    def check(self, answer: Values, text: str, steps: int) -> None:
        """Whether a successful prediction has its own output and its own logs, and nothing else."""
        whole: Any = [*(f"{text} {step}" for step in range(steps)), text] if self.in_chunks else text
        logs = "".join(f"{text} {step}\n" for step in range(steps))
        self.expect((answer["status"], answer["output"], answer["logs"]) == ("succeeded", whole, logs), answer)

    def slow(self, text: str) -> Values:
        """The input of a prediction that takes up to some hundredths of a second."""
        pauses = [0, 0.001, 0.01] if self.in_chunks else [0, 0, 0.001]
        return {"text": text, "steps": self.dice.randint(1, 20), "pause": self.dice.choice(pauses)}

    async def moment(self) -> None:
        """Let up to some milliseconds pass."""
        await asyncio.sleep(self.dice.choice([0, 0.001, 0.01, 0.05]))


# The kinds: each makes a prediction of that id and returns how it ended.


async def waits(run: Run, name: str) -> str:
    """POST and wait."""
    answer = await run.client.post({"input": {"text": name, "steps": 2}, "id": name})
    run.check(answer, name, 2)
    return str(answer["status"])


async def fails(run: Run, name: str) -> str:
    """A run that raises."""
    answer = await run.client.post({"input": {"text": name, "end": "failure"}, "id": name})
    run.expect((answer["status"], answer["error"]) == ("failed", f"ValueError: {name}"), answer)
    return str(answer["status"])


async def makes_a_file(run: Run, name: str) -> str:
    """A run that returns a file."""
    answer = await run.client.post({"input": {"text": name, "end": "file"}, "id": name})
    url = answer["output"][-1] if run.in_chunks else answer["output"]
    run.expect(url == f"data:text/plain;base64,{base64.b64encode(name.encode()).decode()}", answer)
    return str(answer["status"])


async def streams(run: Run, name: str) -> str:
    """POST or PUT for an event stream, and read it to its end."""
    steps = run.dice.randint(0, 30)
    put = run.dice.choice([True, False])
    events = [event async for event in run.client.stream({"input": {"text": name, "steps": steps}}, name, put=put)]
    names = [event for event, _ in events]
    run.expect((names[0], names[-1], names.count("completed")) == ("start", "completed", 1), names)
    indices = [data["index"] for event, data in events if event == "output"]
    run.expect(indices == list(range(steps + 1 if run.in_chunks else 1)), events)
    run.check(events[-1][1], name, steps)
    return str(events[-1][1]["status"])


async def is_read_by_two(run: Run, name: str) -> str:
    """A stream that another client joins, if it is still there."""

    async def read() -> list[tuple[str, Values]]:
        try:
            return [event async for event in run.client.stream({"input": run.slow(name)}, name, put=True)]
        except Refused:
            return []

    both = await asyncio.gather(read(), read())
    ends = [data["status"] for events in both for event, data in events if event == "completed"]
    if not ends:
        raise Refused
    run.expect(ends == ["succeeded"] * len(ends), both)
    return "succeeded"


async def is_told(run: Run, name: str) -> str:
    """Respond-async, with a webhook to some receiver."""
    done = run.receivers.expect(name)
    wants = run.dice.choice([["completed"], ["start", "completed"], ["start", "output", "logs", "completed"]])
    url = run.receivers.any(name, run.dice)
    body = {"id": name, "input": run.slow(name), "webhook": url, "webhook_events_filter": wants}
    await run.client.post(body, prefer="respond-async")
    return await done


async def has_no_receiver(run: Run, name: str) -> str:
    """A webhook to where nobody listens: the prediction itself is none the worse for it."""
    answer = await run.client.post({"id": name, "input": {"text": name}, "webhook": run.receivers.nowhere})
    run.check(answer, name, 1)
    return str(answer["status"])


async def is_canceled(run: Run, name: str) -> str:
    """Respond-async, and a cancel or two at some moment."""
    done = run.receivers.expect(name)
    body = {"id": name, "input": run.slow(name), "webhook": run.receivers.good(name)}
    await run.client.post(body, prefer="respond-async")
    await run.moment()
    for _ in range(run.dice.randint(1, 2)):
        await run.client.cancel(name)
    status = await done
    run.expect(status in {"succeeded", "canceled"}, status)
    return status


async def disconnects(run: Run, name: str) -> str:
    """POST, and close the connection at some moment instead of waiting."""
    return await _leave(run, name, accept="*/*")


async def leaves_its_stream(run: Run, name: str) -> str:
    """As `disconnects`, in the midst of a stream."""
    return await _leave(run, name, accept="text/event-stream")


async def _leave(run: Run, name: str, *, accept: str) -> str:
    done = run.receivers.expect(name)
    body = {"id": name, "input": run.slow(name), "webhook": run.receivers.good(name)}
    await run.client.post_and_leave(body, run.moment, accept=accept)
    status = await done
    run.expect(status in {"succeeded", "canceled"}, status)
    return status


Kind = Callable[[Run, str], Awaitable[str]]
KINDS: dict[Kind, int] = {
    waits: 25,
    fails: 10,
    makes_a_file: 5,
    streams: 15,
    is_read_by_two: 5,
    is_told: 15,
    has_no_receiver: 1,
    is_canceled: 10,
    disconnects: 7,
    leaves_its_stream: 7,
}


# What the server holds


def holdings(pid: int, folder: pathlib.Path, told: Values) -> dict[str, int]:
    """Count what could leak."""
    family = [pathlib.Path(f"/proc/{one}") for one in processes_of(pid)]
    return {
        "processes": len(family),
        "descriptors": sum(len(list((one / "fd").iterdir())) for one in family),
        "threads": sum(len(list((one / "task").iterdir())) for one in family),
        "temporary files": sum(path.is_file() for path in folder.rglob("*")),
        "tasks": told["tasks"],
        "slots in use": told["slots"] - told["idle"],
    }


class Site:
    """A server under observation."""

    def __init__(self, server: Running, folder: pathlib.Path, address: pathlib.Path) -> None:
        """`folder`: where it has its temporary files; `address`: where it shows its books."""
        self._server = server
        self._folder = folder
        self._address = address

    async def ask(self) -> Values:
        """What the server has in its books."""
        reader, writer = await asyncio.open_unix_connection(self._address)
        told: Values = json.loads(await reader.read())
        writer.close()
        await writer.wait_closed()
        return told

    async def calm(self) -> dict[str, int]:
        """Wait until what is held does not change any more; return what is."""
        seen: list[dict[str, int]] = []
        while len(seen) < CALM or any(look != seen[-1] for look in seen[-CALM:]):
            await asyncio.sleep(0.1)
            seen.append(holdings(self._server.pid, self._folder, await self.ask()))
        return seen[-1]

    async def settled(self, limits: dict[str, int]) -> dict[str, int]:
        """Wait until no more is held than `limits`, as long as there is hope; return what is."""
        until = time.monotonic() + TIMEOUT
        while True:
            now = holdings(self._server.pid, self._folder, await self.ask())
            if all(now[name] <= limits[name] for name in limits) or time.monotonic() > until:
                return now
            await asyncio.sleep(0.1)


async def stress(model: str, count: int, *, seed: int) -> list[str]:
    """Stress one model; print what was seen, and return what was wrong."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        own = folder / "tmp"
        own.mkdir()
        address = folder / "books"
        command = (sys.executable, str(HERE / "observed.py"), str(HERE / "models" / model), "{port}", str(address))
        with running(Server(name="geartrain", command=command, environment={"TMPDIR": str(own)})) as server:
            async with Receivers() as receivers:
                run = Run(server.port, receivers, random.Random(seed), in_chunks=model.endswith("_async"))  # noqa: S311
                site = Site(server, own, address)
                wrong = await drive(run, site, count)
            wrong += await ended(server)
        left = [str(path) for path in own.rglob("*")]
        return wrong + ([f"left behind: {left}"] if left else [])


async def drive(run: Run, site: Site, count: int) -> list[str]:
    """Warm up, make the predictions, and compare what is held before and after."""
    await run.go([kind for kind in KINDS if kind is not has_no_receiver] * 20)
    before = await site.calm()
    begin = time.perf_counter()
    await run.go(run.choose(count))
    await run.go([waits] * CROWD, CROWD)  # more than there is room for
    seconds = time.perf_counter() - begin
    after = await site.settled(before)
    books = await site.ask()
    wrong = run.wrong + run.receivers.wrong
    wrong += [f"{name}: {before[name]} before, {after[name]} after" for name in before if after[name] > before[name]]
    wrong += [f"{name} ended twice" for name in books["twice"]]
    if books["accepted"] != sum(books["ended"].values()):
        wrong.append(f"{books['accepted']} predictions were accepted, {books['ended']} ended")
    print(f"{books['accepted']:,} predictions, most of them in {seconds:.0f} s; as clients saw them:\n")
    told = [*ENDS, "refused"]
    rows = [
        [kind.__name__.replace("_", " "), *(f"{run.seen[kind.__name__, status]:,}" for status in told)]
        for kind in KINDS
    ]
    rows.append(["in the server's books", *(f"{books['ended'].get(status, 0):,}" for status in ENDS), ""])
    print(table(["a prediction that …", *told], rows))
    print(table(["webhooks", "count"], [[name, f"{number:,}"] for name, number in run.receivers.told.items()]))
    print(table(["held", "before", "after"], [[name, str(before[name]), str(after[name])] for name in before]))
    return wrong


async def ended(server: Running) -> list[str]:
    """Tell the server to end; it must, with all its processes."""
    family = processes_of(server.pid)
    os.kill(server.pid, signal.SIGTERM)
    until = time.monotonic() + TIMEOUT
    while left := [pid for pid in family if _lives(pid)]:
        if time.monotonic() > until:
            return [f"processes left: {left}"]
        await asyncio.sleep(0.02)
    return []


def _lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"  # the server itself is a child that nobody has waited for yet
    return False


def main() -> None:
    """Parse the command line, drive, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predictions", type=int, default=20_000, help="how many in all (default: 20000)")
    parser.add_argument("--seed", type=int, default=0, help="of the dice (default: 0)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, help="which of them (default: both)")
    options = parser.parse_args()
    wrong = []
    for model in options.models:
        wrong += asyncio.run(stress(model, options.predictions // len(options.models), seed=options.seed))
    for violation in wrong[:50]:
        print(violation, file=sys.stderr)
    if wrong:
        sys.exit(f"{len(wrong)} violations")
    print("No violation.")


if __name__ == "__main__":
    main()
