"""The gRPC server itself: its port, TLS, limits, and how it ends."""

from __future__ import annotations

import datetime
import ipaddress
import queue
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from geartrain.transport.grpc.options import (
    DEFAULT_PORT,
    GrpcOptions,
    GrpcOptionsError,
    ReservedPort,
    TlsFiles,
    check_tls,
)
from tests.support.gates import Gates
from tests.support.servers import ServerProcess, write_model

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
    assert f"cannot listen for gRPC on 127.0.0.1:{DEFAULT_PORT}: Address already in use" in warning["message"]
    assert "--grpc-port" in warning["message"]


def test_taken_port_that_was_asked_for_ends_the_start(server_process: Start, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = server_process(str(folder), "--grpc-port", str(port))
        assert process.popen.stderr is not None
        said = process.popen.stderr.read()
        assert process.popen.wait(timeout=10) == 1
    assert said.startswith(f"error: cannot listen for gRPC on 127.0.0.1:{port}: Address already in use")
    assert said.count("\n") == 1


def test_reserved_port_is_nobody_elses_until_it_is_released() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    reserved = ReservedPort("127.0.0.1", port)
    with pytest.raises(GrpcOptionsError, match="Address already in use"):
        ReservedPort("127.0.0.1", port)
    reserved.release()
    again = ReservedPort("127.0.0.1", port)
    again.release()
    assert again.address == f"127.0.0.1:{port}"
    assert ReservedPort("::1", 0).address == "[::1]:0"


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
        socket.create_connection(("127.0.0.1", port), timeout=5)


# TLS and limits


class Party(NamedTuple):
    """A key and the certificate for it, PEM."""

    key: bytes
    cert: bytes


def make_party(name: str, issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None = None) -> Any:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer[0].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key if issuer is None else issuer[1], hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return cert, key, Party(pem, cert.public_bytes(serialization.Encoding.PEM))


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
    ca_cert, ca_key, ca = make_party("our CA")
    _, _, server = make_party("server", (ca_cert, ca_key))
    _, _, client = make_party("client", (ca_cert, ca_key))
    _, _, stranger = make_party("stranger")
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
        assert stub.ServerLive(pb.ServerLiveRequest(), timeout=10).live


@pytest.mark.parametrize("who", ["none", "stranger", "insecure"])
def test_client_without_a_certificate_of_the_ca_is_not(secure: Secure, who: str) -> None:
    if who == "insecure":
        channel = grpc.insecure_channel(secure.address)
        stub = GRPCInferenceServiceStub(channel)
    else:
        stub, channel = secure.stub(secure.stranger if who == "stranger" else None)
    with channel:
        assert code_of(lambda: stub.ServerLive(pb.ServerLiveRequest(), timeout=10))[0] is STATUS.UNAVAILABLE


def test_message_beyond_the_limit_is_refused(secure: Secure) -> None:
    stub, channel = secure.stub(secure.client)
    with channel:
        stub.ModelReady(pb.ModelReadyRequest(name="model"), timeout=10, wait_for_ready=True)
        code, details = code_of(lambda: stub.ModelInfer(request("x" * 2 * 1024**2), timeout=10))
        assert code is STATUS.RESOURCE_EXHAUSTED
        assert "1048576" in details


def test_shared_memory_is_refused_where_it_was_not_asked_for(secure: Secure) -> None:
    stub, channel = secure.stub(secure.client)
    with channel:
        code, details = code_of(lambda: stub.SystemSharedMemoryStatus(pb.SystemSharedMemoryStatusRequest()))
    assert code is STATUS.UNIMPLEMENTED
    assert "--shared-memory" in details


def test_files_of_tls_are_checked_before_the_start(tmp_path: Path) -> None:
    _, _, one = make_party("one")
    _, _, other = make_party("other")
    for name, pem in {"cert": one.cert, "key": one.key, "other": other.key, "none": b"none"}.items():
        (tmp_path / name).write_bytes(pem)
    cert, key = tmp_path / "cert", tmp_path / "key"
    check_tls(TlsFiles(cert=cert, key=key, ca=cert))
    with pytest.raises(GrpcOptionsError, match="--grpc-tls-key: there is no file"):
        check_tls(TlsFiles(cert=cert, key=tmp_path / "missing"))
    with pytest.raises(GrpcOptionsError, match="are no certificate and its key"):
        check_tls(TlsFiles(cert=cert, key=tmp_path / "other"))
    with pytest.raises(GrpcOptionsError, match="--grpc-tls-ca has no certificate"):
        check_tls(TlsFiles(cert=cert, key=key, ca=tmp_path / "none"))


def test_options_say_by_default_that_the_port_is_nobodys_wish() -> None:
    assert GrpcOptions() == GrpcOptions(port=DEFAULT_PORT, is_explicit=False, max_message_bytes=None, tls=None)


# the end


class Plain:
    """A server to be ended."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        address = process.wait_for("listening-grpc")["url"]
        self.channel = grpc.insecure_channel(address)
        self.stub = GRPCInferenceServiceStub(self.channel)
        self.health: Any = health_pb2_grpc.HealthStub(self.channel)
        if not self.stub.ModelReady(pb.ModelReadyRequest(name="model")).ready:
            process.wait_for("ready")


@pytest.fixture
def plain(server_process: Start, folder: Path) -> Iterator[Plain]:
    server = Plain(server_process(str(folder), "--grpc-port", "0"))
    yield server
    server.channel.close()


def test_sigterm_lets_running_calls_end_and_ends_idle_ones(plain: Plain, gates: Gates) -> None:
    there, go = gates["there"], gates["go"]
    running = plain.stub.ModelInfer.future(request("answer", there.path.parent), timeout=30)
    there.wait()
    sent: queue.Queue[Any] = queue.Queue()
    idle = plain.stub.ModelStreamInfer(iter(sent.get, None), timeout=30)
    sent.put(request("first"))
    assert next(idle).infer_response.id == "first"
    watch = plain.health.Watch(health_pb2.HealthCheckRequest(service="model"), timeout=30)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    plain.process.popen.send_signal(signal.SIGTERM)
    assert code_of(lambda: next(idle)) == (STATUS.UNAVAILABLE, "The server is shutting down.")
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert code_of(lambda: next(watch))[0] is STATUS.UNAVAILABLE
    assert code_of(lambda: plain.stub.ModelInfer(request("late"), timeout=5))[0] is STATUS.UNAVAILABLE
    assert plain.process.popen.poll() is None
    go.open()
    assert running.result().raw_output_contents == [struct.pack("<I", 6) + b"answer"]
    sent.put(None)
    assert plain.process.popen.wait(timeout=5) == 0


def test_sigint_cancels_running_calls(plain: Plain, gates: Gates) -> None:
    there = gates["there"]
    gates["go"]  # it is never opened
    running = plain.stub.ModelInfer.future(request("answer", there.path.parent), timeout=30)
    there.wait()
    plain.process.popen.send_signal(signal.SIGINT)
    assert running.exception().code() is STATUS.CANCELLED
    assert plain.process.popen.wait(timeout=5) == 0
