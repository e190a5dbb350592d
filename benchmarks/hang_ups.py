"""Chats that hang up: the runs that go on, and the memory of the server and its worker, round by round.

`python benchmarks/hang_ups.py --help`. 500 clients begin a chat as a stream on connections of their own, and a third of
them leave within a second. All rounds are on one server. Prints markdown. Ends with 1 if a run is
live that has no client, or a chat of a client that stayed is not whole.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import random
import sys

from report import machine, table
from servers import HERE, Running, processes_of, running, serving

CLIENTS = 500
PATIENCE = 30.0  # seconds
SECONDS = 3.0  # length of a chat


def request(path: str, body: dict[str, object]) -> bytes:
    """A request on a connection of its own."""
    data = json.dumps({"model": "waiting", **body}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


async def chat(port: int, leaves_after: float | None) -> bool:
    """Have a chat, or leave it after so many seconds; return True if it was whole."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    messages = [{"role": "user", "content": "hello"}]
    body = {"stream": True, "seconds": SECONDS, "messages": messages}
    writer.write(request("/v1/chat/completions", body))
    try:
        answer = await asyncio.wait_for(reader.read(-1), leaves_after or PATIENCE)
    except TimeoutError:
        return False
    finally:
        writer.close()
    return b"data: [DONE]" in answer


async def live(port: int) -> int:
    """The number of runs in the worker."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request("/v1/completions", {"prompt": "live"}))
    answer = await reader.read(-1)
    writer.close()
    return int(json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"])


async def turn(port: int) -> tuple[int, int, int, int]:
    """One round: the clients that stay, live runs when the others have left, whole chats, live runs at the end."""
    leaving = {number: random.uniform(0.05, 1.0) for number in random.sample(range(CLIENTS), CLIENTS // 3)}  # noqa: S311
    chats = [asyncio.ensure_future(chat(port, leaving.get(number))) for number in range(CLIENTS)]
    await asyncio.gather(*(chats[number] for number in leaving))
    await asyncio.sleep(0.3)  # the bar for a cancel is 0.1 s
    during = await live(port)
    whole = sum(await asyncio.gather(*chats))
    await asyncio.sleep(0.3)
    return CLIENTS - len(leaving), during, whole, await live(port)


def resident(started: Running) -> tuple[float, float]:
    """MiB of memory of the server's own process, and of its descendants together."""
    sizes = []
    for pid in processes_of(started.pid):
        status = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
        line = next((line for line in status if line.startswith("VmRSS")), "VmRSS: 0 kB")
        sizes.append(int(line.split()[1]) / 1024)
    return sizes[0], sum(sizes[1:])


def main() -> int:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    rows, is_good = [], True
    with running(serving(HERE / "models/waiting")) as started:
        for number in range(given.rounds):
            stay, during, whole, after = asyncio.run(turn(started.port))
            is_good = is_good and (during, whole, after) == (stay, stay, 0)
            server, worker = resident(started)
            rows.append(
                [str(number + 1), str(stay), str(during), str(whole), str(after), f"{server:.1f}", f"{worker:.1f}"]
            )
    print(machine())
    print(f"{CLIENTS} chats of {SECONDS:.0f} s in a round.\n")
    print(
        table(["round", "clients that stay", "live runs", "whole", "live at the end", "server MiB", "worker MiB"], rows)
    )
    return not is_good


if __name__ == "__main__":
    sys.exit(main())
