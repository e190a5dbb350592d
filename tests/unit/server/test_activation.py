"""Sockets that are passed to the server, by their names."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.server.sockets import ActivationError, host_of, location, passed_sockets, served_host, url_of


class Passed:
    """Descriptors in a row, as a supervisor passes them."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []
        self.first = 0
        self.count = 0

    def add(self, held: socket.socket) -> None:
        self._held.append(held)
        if not self.count:
            self.first = fcntl.fcntl(held.fileno(), fcntl.F_DUPFD, 200)
        else:
            os.dup2(held.fileno(), self.first + self.count, inheritable=True)
        self.count += 1

    def environ(self, names: str | None = None) -> dict[str, str]:
        found = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(self.count), "OTHER": "1"}
        return found if names is None else {**found, "LISTEN_FDNAMES": names}

    def close(self) -> None:
        for number, held in enumerate(self._held):
            held.close()
            os.close(self.first + number)


@pytest.fixture
def passed() -> Iterator[Passed]:
    made = Passed()
    yield made
    made.close()


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_sockets_are_found_by_their_names(passed: Passed) -> None:
    listeners = [listening() for _ in range(4)]
    for listener in listeners:
        passed.add(listener)
    environ = passed.environ("http:admin:http:grpc")
    found = passed_sockets(environ, passed.first)
    assert environ == {"OTHER": "1"}, "workers must not take them for theirs"
    ports = [listener.getsockname()[1] for listener in listeners]
    assert {role: [each.getsockname()[1] for each in sockets] for role, sockets in found.items()} == {
        "http": [ports[0], ports[2]],
        "admin": [ports[1]],
        "grpc": [ports[3]],
    }
    for sockets in found.values():
        for each in sockets:
            assert not each.get_inheritable()
            each.detach()


@pytest.mark.parametrize("names", [None, "", "geartrain.socket:geartrain.socket"])
def test_sockets_without_a_name_of_ours_are_for_http(passed: Passed, names: str | None) -> None:
    for _ in range(2):
        passed.add(listening())
    found = passed_sockets(passed.environ(names), passed.first)
    assert [each.detach() for each in found.pop("http")] == [passed.first, passed.first + 1]
    assert not found


@pytest.mark.parametrize(
    "environ",
    [{}, {"LISTEN_FDS": "1"}, {"LISTEN_FDS": "1", "LISTEN_PID": "1"}, {"LISTEN_PID": str(os.getpid())}],
)
def test_nothing_has_been_passed(environ: dict[str, str]) -> None:
    assert passed_sockets(environ) == {}
    assert environ == {}


def test_names_that_cannot_be_understood(passed: Passed) -> None:
    for _ in range(2):
        passed.add(listening())
    with pytest.raises(ActivationError, match="has the name 'metrics'; write FileDescriptorName= with one of http"):
        passed_sockets(passed.environ("http:metrics"), passed.first)
    with pytest.raises(ActivationError, match="LISTEN_FDNAMES has 1 names for 2 sockets"):
        passed_sockets(passed.environ("http"), passed.first)
    with pytest.raises(ActivationError, match="LISTEN_FDS is 'many'"):
        passed_sockets({**passed.environ(), "LISTEN_FDS": "many"}, passed.first)


@pytest.mark.parametrize("kind", ["not listening", "datagrams"])
def test_sockets_that_take_no_connections(passed: Passed, kind: str) -> None:
    passed.add(socket.socket(socket.AF_INET, socket.SOCK_DGRAM if kind == "datagrams" else socket.SOCK_STREAM))
    with pytest.raises(ActivationError, match="does not listen for connections; write ListenStream="):
        passed_sockets(passed.environ(), passed.first)


def test_what_is_no_socket() -> None:
    read, write = os.pipe()
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
    with pytest.raises(ActivationError, match=f"Descriptor {read}, which was passed as a socket, is none"):
        passed_sockets(dict(environ), read)
    os.close(read)
    os.close(write)
    with pytest.raises(ActivationError, match="cannot be used: Bad file descriptor"):
        passed_sockets(dict(environ), 10_000)


def test_where_a_socket_is_reached(tmp_path: Path) -> None:
    path = os.path.relpath(tmp_path / "s")
    with listening() as tcp, socket.socket(socket.AF_UNIX) as unix, socket.socket(socket.AF_UNIX) as abstract:
        unix.bind(path)
        abstract.bind(f"\0{path}")
        port = tcp.getsockname()[1]
        assert url_of("http", location(tcp)) == f"http://127.0.0.1:{port}"
        assert location(tcp, "models.example") == f"models.example:{port}"
        assert url_of("http", location(unix)) == f"unix:{path}"
        assert location(abstract) == f"unix:@{path}"
        assert [host_of(each) for each in (tcp, unix)] == ["127.0.0.1", ""]


class Bound(socket.socket):
    """Says that it is bound to an address."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address, 80


@pytest.mark.parametrize(
    ("addresses", "served"),
    [(["127.0.0.1", "192.0.2.1"], "192.0.2.1"), (["::1", "::"], "::"), (["127.0.0.1", "::1"], "127.0.0.1"), ([], "")],
)
def test_the_address_that_most_clients_can_reach(addresses: list[str], served: str) -> None:
    sockets = [Bound(address) for address in addresses]
    assert served_host(sockets) == served
    for each in sockets:
        each.close()
