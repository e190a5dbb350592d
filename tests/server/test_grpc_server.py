"""The gRPC server itself: its port, TLS, limits, and how it ends."""

from __future__ import annotations

import contextlib
import queue
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from geartrain.server.grpc import grpc_tls, listen_grpc
from geartrain.transport.grpc.options import DEFAULT_PORT, GrpcOptions, GrpcOptionsError
from geartrain.transport.wire.tls import TlsFiles, TlsFilesError, TlsOptions
from tests.support.certificates import Party, make_party
from tests.support.gates import Gates
from tests.support.servers import PATIENCE, ServerProcess, write_model

MODEL = """
    import asyncio, pathlib
    from geartrain import BaseRunner, concurrent

    class Runner(BaseRunner):
        @concurrent(max=4)
        async def run(self, text: str, gates: str = "") -> str:
            if gates:
                pathlib.Path(gates, "there").write_bytes(b"x")
                loop = asyncio.get_running_loop()
                with open(pathlib.Path(gates, "go"), "rb", buffering=0) as gate:
                    opened = loop.create_future()
                    loop.add_reader(gate, lambda: opened.done() or opened.set_result(None))
                    try:
                        await opened
                    finally:
                        loop.remove_reader(gate)
            return text
"""
STATUS = grpc.StatusCode
Start = Callable[..., ServerProcess]


def request(text: str, gates: Path | None = None) -> Any:
    texts = {"text": text, **({} if gates is None else {"gates": str(gates)})}
    return pb.ModelInferRequest(
        model_name="model",
        id=text[:9],
        inputs=[pb.ModelInferRequest.InferInputTensor(name=name, datatype="BYTES", shape=[1]) for name in texts],
        raw_input_contents=[struct.pack("<I", len(each)) + each.encode() for each in texts.values()],
    )


def code_of(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    return error.code(), error.details()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("grpc") / "model", MODEL)


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Gates]:
    found = Gates(tmp_path / "gates")
    yield found
    found.remove()


# the port


def test_taken_default_port_is_no_hindrance(server_process: Start, folder: Path) -> None:
    taken = socket.socket()
    try:
        taken.bind(("127.0.0.1", DEFAULT_PORT))
        taken.listen()
    except OSError:
        pass  # somebody else has it: all the better
    with taken:
        process = server_process(str(folder), grpc=())
        url = process.wait_for("listening")["url"]
        process.wait_for("ready")
        assert httpx.get(f"{url}/health-check").json()["status"] == "READY"
    (warning,) = [line for line in process.lines if line["level"] == "warning"]
    assert f"cannot listen for gRPC on 127.0.0.1:{DEFAULT_PORT}: Address already in use. Choose" in warning["message"]
    assert "--grpc-port" in warning["message"]


def test_taken_port_that_was_asked_for_ends_the_start(server_process: Start, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = server_process(str(folder), "--grpc-port", str(port))
        said = "".join(process.rest())
        assert process.popen.wait(timeout=40) == 1
    assert said.startswith(f"error: cannot listen for gRPC on 127.0.0.1:{port}: Address already in use")
    assert said.count("\n") == 1


def test_port_that_was_asked_for_is_had_or_refused() -> None:
    (listener,) = listen_grpc(GrpcOptions(port=0, is_explicit=True), "127.0.0.1")
    with listener:
        port = listener.getsockname()[1]
        with pytest.raises(GrpcOptionsError, match=rf"127\.0\.0\.1:{port}: Address already in use"):
            listen_grpc(GrpcOptions(port=port, is_explicit=True), "127.0.0.1")
        assert listen_grpc(GrpcOptions(port=port), "127.0.0.1") == ()
    assert listen_grpc(GrpcOptions(port=None), "127.0.0.1") == ()
    (listener,) = listen_grpc(GrpcOptions(port=0), "::1")
    with listener:
        assert listener.family is socket.AF_INET6


def test_server_of_trainings_alone_keeps_no_port(server_process: Start, tmp_path: Path) -> None:
    source = """
        from geartrain import BaseRunner

        class Runner(BaseRunner):
            def run(self, n: int) -> str:
                return ""

        def train(n: int) -> str:
            return ""
    """
    folder = write_model(tmp_path / "model", source, "run: run.py:Runner\ntrain: run.py:train\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = server_process(str(folder), "--x-mode", "train", "--grpc-port", str(port))
    process.wait_for("ready")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=40)


# TLS and limits


class Secure(NamedTuple):
    """A server that asks for certificates, and those who have one."""

    address: str
    ca: Party
    client: Party
    stranger: Party

    def stub(self, party: Party | None) -> tuple[Any, grpc.Channel]:
        credentials = grpc.ssl_channel_credentials(self.ca.cert, *(() if party is None else (party.key, party.cert)))
        channel = grpc.secure_channel(self.address, credentials)
        return GRPCInferenceServiceStub(channel), channel


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Secure]:
    root = tmp_path_factory.mktemp("tls")
    ca = make_party("our CA")
    server, client, stranger = make_party("server", ca), make_party("client", ca), make_party("stranger")
    paths = {"cert": server.cert, "key": server.key, "ca": ca.cert}
    arguments = []
    for name, pem in paths.items():
        (root / f"{name}.pem").write_bytes(pem)
        arguments += [f"--grpc-tls-{name}", str(root / f"{name}.pem")]
    process = ServerProcess(str(folder), *arguments, "--grpc-port", "0", "--grpc-max-message-size", "1MiB")
    address = process.wait_for("listening-grpc")["url"]
    yield Secure(address, ca, client, stranger)
    process.popen.send_signal(signal.SIGTERM)
    process.wait_for("stopping")  # and until then nothing but lines of our log: gRPC has written nothing of its own
    process.end()


def test_client_with_a_certificate_is_let_in(secure: Secure) -> None:
    stub, channel = secure.stub(secure.client)
    with channel:
        assert stub.ServerLive(pb.ServerLiveRequest(), timeout=40).live


@pytest.mark.parametrize("who", ["none", "stranger", "insecure"])
def test_client_without_a_certificate_of_the_ca_is_not(secure: Secure, who: str) -> None:
    if who == "insecure":
        channel = grpc.insecure_channel(secure.address)
        stub = GRPCInferenceServiceStub(channel)
    else:
        stub, channel = secure.stub(secure.stranger if who == "stranger" else None)
    with channel:
        assert code_of(lambda: stub.ServerLive(pb.ServerLiveRequest(), timeout=40))[0] is STATUS.UNAVAILABLE


def test_message_beyond_the_limit_is_refused(secure: Secure) -> None:
    stub, channel = secure.stub(secure.client)
    with channel:
        stub.ModelReady(pb.ModelReadyRequest(name="model"), timeout=40, wait_for_ready=True)
        code, details = code_of(lambda: stub.ModelInfer(request("x" * 2 * 1024**2), timeout=40))
        assert code is STATUS.RESOURCE_EXHAUSTED
        assert "1048576" in details


def test_shared_memory_is_refused_where_it_was_not_asked_for(secure: Secure) -> None:
    stub, channel = secure.stub(secure.client)
    with channel:
        code, details = code_of(lambda: stub.SystemSharedMemoryStatus(pb.SystemSharedMemoryStatusRequest()))
    assert code is STATUS.UNIMPLEMENTED
    assert "--shared-memory" in details


def test_files_of_tls_are_checked_before_the_start(tmp_path: Path) -> None:
    cert, key = make_party("one").write(tmp_path, "one")
    options = TlsOptions(cert="--grpc-tls-cert", key="--grpc-tls-key", client_ca="--grpc-tls-ca")
    files = TlsFiles(cert=cert, key=key, client_ca=tmp_path / "missing", options=options)
    with pytest.raises(TlsFilesError, match="--grpc-tls-ca: there is no file"):
        grpc_tls(GrpcOptions(port=0, tls=files), None)


def test_renewed_certificate_is_for_new_connections(server_process: Start, folder: Path, tmp_path: Path) -> None:
    ca = make_party("our CA")
    cert, key = make_party("server", ca).write(tmp_path, "server")
    process = server_process(str(folder), "--tls-cert", str(cert), "--tls-key", str(key), "--grpc-port", "0")
    address = process.wait_for("listening-grpc")["url"]
    credentials = grpc.ssl_channel_credentials(ca.cert)
    with grpc.secure_channel(address, credentials) as channel:
        old = GRPCInferenceServiceStub(channel)
        assert old.ServerLive(pb.ServerLiveRequest(), timeout=40).live
        renewed_ca = make_party("another CA")
        make_party("server", renewed_ca).write(tmp_path, "server")
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(renewed_ca.cert)) as renewed:
            new = GRPCInferenceServiceStub(renewed)
            assert new.ServerLive(pb.ServerLiveRequest(), timeout=40).live
        assert old.ServerLive(pb.ServerLiveRequest(), timeout=40).live


def test_administration_is_not_there_where_it_has_a_port_of_its_own(server_process: Start, folder: Path) -> None:
    process = server_process(str(folder), "--admin-port", "0", "--shared-memory", "--grpc-port", "0")
    with grpc.insecure_channel(process.wait_for("listening-grpc")["url"]) as channel:
        stub = GRPCInferenceServiceStub(channel)
        for call in (
            lambda: stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="model"), timeout=40),
            lambda: stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="model"), timeout=40),
            lambda: stub.SystemSharedMemoryStatus(pb.SystemSharedMemoryStatusRequest(), timeout=40),
            lambda: stub.SystemSharedMemoryRegister(pb.SystemSharedMemoryRegisterRequest(name="x"), timeout=40),
            lambda: stub.SystemSharedMemoryUnregister(pb.SystemSharedMemoryUnregisterRequest(), timeout=40),
        ):
            assert code_of(call)[0] is STATUS.UNIMPLEMENTED
        assert [each.name for each in stub.RepositoryIndex(pb.RepositoryIndexRequest(), timeout=40).models] == ["model"]


def test_options_say_by_default_that_the_port_is_nobodys_wish() -> None:
    assert GrpcOptions() == GrpcOptions(port=DEFAULT_PORT, is_explicit=False, max_message_bytes=256 * 1024**2, tls=None)


# the end


class Plain:
    """A server to be ended."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self.address = process.wait_for("listening-grpc")["url"]
        self.channel = grpc.insecure_channel(self.address)
        self.stub = GRPCInferenceServiceStub(self.channel)
        self.health: Any = health_pb2_grpc.HealthStub(self.channel)
        if not self.stub.ModelReady(pb.ModelReadyRequest(name="model")).ready:
            process.wait_for("ready")

    def until_it_takes_no_connection(self) -> None:
        host, _, port = self.address.rpartition(":")
        end = time.monotonic() + PATIENCE
        with contextlib.suppress(ConnectionRefusedError):
            while time.monotonic() < end:
                socket.create_connection((host, int(port)), timeout=PATIENCE).close()
            pytest.fail("the server still takes connections")


@pytest.fixture
def plain(server_process: Start, folder: Path) -> Iterator[Plain]:
    server = Plain(server_process(str(folder), "--grpc-port", "0"))
    yield server
    server.channel.close()


def test_sigterm_lets_running_calls_end_and_ends_idle_ones(plain: Plain, gates: Gates) -> None:
    there, go = gates["there"], gates["go"]
    running = plain.stub.ModelInfer.future(request("answer", there.path.parent), timeout=40)
    there.wait()
    sent: queue.Queue[Any] = queue.Queue()
    idle = plain.stub.ModelStreamInfer(iter(sent.get, None), timeout=40)
    sent.put(request("first"))
    assert next(idle).infer_response.id == "first"
    watch = plain.health.Watch(health_pb2.HealthCheckRequest(service="model"), timeout=40)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    plain.process.popen.send_signal(signal.SIGTERM)
    assert code_of(lambda: next(idle)) == (STATUS.UNAVAILABLE, "The server is shutting down.")
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert code_of(lambda: next(watch))[0] is STATUS.UNAVAILABLE
    plain.until_it_takes_no_connection()
    with grpc.insecure_channel(plain.address, options=[("grpc.use_local_subchannel_pool", 1)]) as other:
        late = GRPCInferenceServiceStub(other)
        assert code_of(lambda: late.ModelInfer(request("late"), timeout=40))[0] is STATUS.UNAVAILABLE
    assert plain.process.popen.poll() is None
    go.open()
    assert running.result().raw_output_contents == [struct.pack("<I", 6) + b"answer"]
    sent.put(None)
    assert plain.process.popen.wait(timeout=40) == 0


def test_sigint_cancels_running_calls(plain: Plain, gates: Gates) -> None:
    there = gates["there"]
    gates["go"]  # it is never opened
    running = plain.stub.ModelInfer.future(request("answer", there.path.parent), timeout=40)
    there.wait()
    plain.process.popen.send_signal(signal.SIGINT)
    assert running.exception().code() is STATUS.CANCELLED
    assert plain.process.popen.wait(timeout=40) == 0
