"""A server is replaced by another while fifty clients ask without a pause, and no request fails."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import json
import signal
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.support.servers import PATIENCE, ServerProcess, write_model

MODEL: Final = "import os; NAME = os.environ['SERVER_NAME']\ndef run(what: str) -> str: return what + NAME"
OLD: Final = "old"
NEW: Final = "new"
HTTP_CLIENTS: Final = 30
GRPC_CLIENTS: Final = 20
LONG: Final = "10m"
_OWN_CONNECTION: Final = [("grpc.use_local_subchannel_pool", 1)]


class Balancer:
    """Passes connections on, as the balancers of platforms do: new ones to `target`, open ones stay where they are."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._is_listening = threading.Event()
        self._is_over = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        assert self._is_listening.wait(PATIENCE)

    def close(self) -> None:
        """End, when all connections have ended."""
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        connections: set[asyncio.Task[None]] = set()

        def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.add(asyncio.ensure_future(self._pass_on(reader, writer)))

        server = await asyncio.start_server(on_connection, "127.0.0.1", 0, backlog=500)
        self.address = "{}:{}".format(*server.sockets[0].getsockname())
        self._is_listening.set()
        await self._is_over.wait()
        server.close()
        await asyncio.gather(*connections)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            theirs, ours = await asyncio.open_connection(*self.target.split(":"))
            await asyncio.gather(_pump(reader, ours), _pump(theirs, writer))
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()


class Client(threading.Thread, abc.ABC):
    """Asks for one prediction after the other, over a connection that it keeps as long as the server wants."""

    def __init__(self, address: str, is_over: threading.Event, progress: threading.Semaphore) -> None:
        """`progress` is released with each answer, and at the end."""
        super().__init__()
        self._address = address
        self._is_over = is_over
        self._progress = progress
        self.answered = Counter[str]()  # by server
        self.faults: list[Any] = []

    def run(self) -> None:
        """Ask until told to stop, or something goes wrong."""
        try:
            while not self._is_over.is_set():
                answer = self.ask("hello ")
                if answer not in {f"hello {OLD}", f"hello {NEW}"}:
                    self.faults.append(answer)
                    break
                self.answered[answer.split()[1]] += 1
                self._progress.release()
        except Exception as error:  # noqa: BLE001 - shown by the test
            self.faults.append(error)
        finally:
            self._progress.release()
            self.close()

    @abc.abstractmethod
    def ask(self, what: str) -> Any:
        """Return the output of a prediction, or what there is instead."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connection, if there is one."""


class HttpClient(Client):
    """Keeps its connection until an answer says `Connection: close`; one that ends otherwise is a fault."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._connection = HTTPConnection(self._address, timeout=PATIENCE)
        self._connection.auto_open = 0

    def ask(self, what: str) -> Any:
        connection = self._connection
        if connection.sock is None:
            connection.connect()
        body = json.dumps({"input": {"what": what}})
        connection.request("POST", "/predictions", body, {"content-type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        if response.getheader("connection") == "close":
            connection.close()
        return json.loads(text)["output"] if response.status == 200 else (response.status, text)

    def close(self) -> None:
        self._connection.close()


class GrpcClient(Client):
    """The channel connects anew when the server has sent GOAWAY."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._channel = grpc.insecure_channel(self._address, options=_OWN_CONNECTION)
        self._infer = GRPCInferenceServiceStub(self._channel).ModelInfer

    def ask(self, what: str) -> Any:
        given = pb.ModelInferRequest.InferInputTensor(name="what", datatype="BYTES", shape=[1])
        raw = struct.pack("<I", len(what)) + what.encode()
        request = pb.ModelInferRequest(model_name="model", inputs=[given], raw_input_contents=[raw])
        return self._infer(request, timeout=PATIENCE).raw_output_contents[0][4:].decode()

    def close(self) -> None:
        self._channel.close()


class Fleet:
    """Two servers of a model, the clients, and the balancer between them."""

    def __init__(self, start: Callable[..., ServerProcess], folder: Path, drain_delay: str) -> None:
        arguments = (str(write_model(folder / "model", MODEL)), "--queue", "100", "--drain-delay", drain_delay)
        self.servers = {name: start(*arguments, env={"SERVER_NAME": name}) for name in (OLD, NEW)}
        self.addresses = {
            name: server.wait_for("listening")["url"].partition("://")[2] for name, server in self.servers.items()
        }
        for server in self.servers.values():
            server.wait_for("ready")
        self.balancer = Balancer(self.addresses[OLD])
        self._is_over, self._progress = threading.Event(), threading.Semaphore(0)
        kinds = [HttpClient] * HTTP_CLIENTS + [GrpcClient] * GRPC_CLIENTS
        self.clients: list[Client] = [kind(self.balancer.address, self._is_over, self._progress) for kind in kinds]
        for client in self.clients:
            client.start()

    def wait_for(self, count: int, name: str) -> None:
        """Wait until a server has given every client so many answers."""
        while not all(client.answered[name] >= count or client.faults for client in self.clients):
            assert self._progress.acquire(timeout=PATIENCE)

    def is_ready(self, name: str) -> bool:
        """Ask a server, over a connection of its own."""
        with contextlib.closing(HTTPConnection(self.addresses[name], timeout=PATIENCE)) as probe:
            probe.request("GET", "/readyz")
            response = probe.getresponse()
            response.read()
            return response.status == 200

    def faults(self) -> list[Any]:
        """End the clients, and return what has gone wrong."""
        self._is_over.set()
        for client in self.clients:
            client.join()
        return [fault for client in self.clients for fault in client.faults]

    def close(self) -> None:
        """End what is left."""
        self.faults()
        for server in self.servers.values():
            server.end()  # and with it, what the balancer still passes on
        self.balancer.close()


@pytest.fixture
def start_fleet(server_process: Callable[..., ServerProcess], tmp_path: Path) -> Iterator[Callable[[str], Fleet]]:
    fleets: list[Fleet] = []

    def start(drain_delay: str) -> Fleet:
        fleets.append(Fleet(server_process, tmp_path, drain_delay))
        return fleets[-1]

    yield start
    for fleet in fleets:
        fleet.close()


def test_no_request_fails_while_a_server_is_replaced(start_fleet: Callable[[str], Fleet]) -> None:
    """How fast the clients are depends on the machine, so the delay is long, and ended when all of them have left."""
    fleet = start_fleet(LONG)
    fleet.wait_for(3, OLD)
    ending = fleet.servers[OLD].popen
    ending.send_signal(signal.SIGTERM)
    while fleet.is_ready(OLD):
        pass
    # The balancer has not noticed yet: clients that are sent away come back, and are served.
    fleet.wait_for(max(client.answered[OLD] for client in fleet.clients) + 5, OLD)
    assert fleet.is_ready(NEW)
    fleet.balancer.target = fleet.addresses[NEW]
    fleet.wait_for(3, NEW)
    ending.send_signal(signal.SIGTERM)
    assert ending.wait(PATIENCE) == 0
    assert fleet.faults() == []


def test_the_delay_is_waited_for(server_process: Callable[..., ServerProcess], tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", MODEL)
    process = server_process(str(folder), "--drain-delay", "500ms", env={"SERVER_NAME": OLD})
    process.wait_for("ready")
    began = time.monotonic()
    process.popen.send_signal(signal.SIGTERM)
    assert process.popen.wait(PATIENCE) == 0
    assert time.monotonic() - began >= 0.5
