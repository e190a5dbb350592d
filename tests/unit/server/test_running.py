"""What a server says and checks before it starts anything."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from geartrain.project.source import ModelSource
from geartrain.server import ServeOptions, run_server, running
from geartrain.transport.wire.tls import TlsFiles, TlsFilesError

SOURCE = ModelSource(name="pets", root=Path("/models/pets"), runner="run.py:Runner")


class BoundSocket:
    """Stands in for a socket that listens."""

    def __init__(self, address: str) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address, 5000


class StartedError(Exception):
    """The server has gone on to what comes after the checks."""


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every host name is bound as it is, and nothing is started."""

    def start(*_: object) -> None:
        raise StartedError

    monkeypatch.setattr(running, "listen", lambda host, _port: BoundSocket(host))
    monkeypatch.setattr(running, "listen_grpc", start)


@pytest.mark.usefixtures("bound")
@pytest.mark.parametrize(
    ("host", "warnings"),
    [("127.0.0.1", 0), ("::1", 0), ("0.0.0.0", 1), ("::", 1), ("192.0.2.1", 1)],  # noqa: S104 - nothing is bound
)
def test_listening_beyond_loopback_is_warned_of_once(
    host: str, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StartedError):
        run_server(ServeOptions(source=SOURCE, host=host))
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * warnings
    assert all("asks for no keys" in message for message in caplog.messages)


@pytest.mark.usefixtures("bound")
def test_files_of_tls_are_checked_first() -> None:
    with pytest.raises(TlsFilesError, match="--tls-cert: there is no file"):
        run_server(ServeOptions(source=SOURCE, tls=TlsFiles(cert=Path("none"), key=Path("none"))))
