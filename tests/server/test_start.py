"""What a start imports, which is most of the time that it takes; time itself would say little on a busy machine."""

from __future__ import annotations

import json
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

import pytest

from geartrain.launch.server import Server, serve_command
from tests.support.servers import write_model

LIMIT: Final = 40.0  # seconds

# A program that serves a model, and tells its modules on stdout at the moment when the model is ready. What is imported
# when the start is over waits for ever.
UNTIL_READY: Final = """
import os, signal, sys
from geartrain.cli import main, startup
from geartrain.server import grpc

show = startup.ServeObserver.__call__

def look(self, progress):
    show(self, progress)
    if progress.stage == "ready":
        print(*sorted(sys.modules), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

startup.ServeObserver.__call__ = look
grpc._PATIENCE = grpc._BREATH = 1e6
main.main()
"""

# A program that serves a model until the client of webhooks is imported, which nobody has asked it for.
UNTIL_PREPARED: Final = """
import importlib.abc, os, signal, sys
from geartrain.cli import main

class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "geartrain.outbound.webhook_client":
            print(name, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Watch())
main.main()
"""

PARENT: Final = 615  # modules, with those of Python, which differ a little between its versions
OWN_OF_PARENT: Final = 350
WORKER: Final = 270
OWN_OF_WORKER: Final = 103

# What only some servers or requests need.
LATE_IN_PARENT: Final = {
    "ctypes.util",
    "geartrain.apis.multipart",
    "geartrain.cli.commands",
    "geartrain.cli.serve",
    "geartrain.server.stored",
    "geartrain.store.ledger",
    "geartrain.transport.cog.durable",
    "geartrain.transport.grpc.handler",
    "geartrain.transport.http2.connection",
    "geartrain.transport.wire.http2_connection",
}
PACKAGES_LATE_IN_PARENT: Final = {
    "click",
    "difflib",
    "email",
    "google",
    "hpack",
    "html",
    "httpx",
    "jsonschema_rs",
    "mimetypes",
    "multiprocessing",
    "numpy",
    "prometheus_client",
    "psutil",
    "pydantic",
    "python_multipart",
    "rich",
    "simdjson",
    "sqlite3",
    "stamina",
    "structlog",
    "swagger_ui_bundle",
    "typer",
    "unittest",
    "watchfiles",
}
PACKAGES_LATE_IN_WORKER: Final = PACKAGES_LATE_IN_PARENT | {"asyncio", "httptools", "ssl", "uvloop", "yaml"}


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def own(modules: set[str]) -> set[str]:
    return {name for name in modules if packages({name}) == {"geartrain"}}


def modules_at_ready(folder: Path) -> set[str]:
    """The modules of a server when its model is ready."""
    words = ["serve", str(folder), "--host", "127.0.0.1", "--port", "0", "--grpc-port", "0"]
    done = subprocess.run(
        [sys.executable, "-c", UNTIL_READY, *words], check=True, capture_output=True, text=True, timeout=LIMIT
    )
    return set(done.stdout.split())


def modules_after_a_prediction(folder: Path) -> set[str]:
    """The modules of a worker while it runs its first prediction."""
    server = Server(serve_command(str(folder), {}), {})
    try:
        server.wait_until_ready(LIMIT)
        connection = HTTPConnection(server.url.removeprefix("http://"), timeout=LIMIT)
        connection.request("POST", "/predictions", "{}", {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return set(answer["output"].split())
    finally:
        server.stop()


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A model that tells the modules of its worker."""
    source = """
        import sys
        from geartrain import BaseRunner, Input

        class Runner(BaseRunner):
            def run(self, name: str = Input(description="Whom to greet", default="world")) -> str:
                return " ".join(sys.modules)
    """
    return write_model(tmp_path / "model", source, "run: run.py:Runner\n")


def test_a_server_starts_with_what_every_server_needs(plain: Path) -> None:
    modules = modules_at_ready(plain)
    assert not modules & LATE_IN_PARENT
    assert not packages(modules) & PACKAGES_LATE_IN_PARENT
    assert len(own(modules)) <= OWN_OF_PARENT, sorted(own(modules))
    assert len(modules) <= PARENT, sorted(modules)


def test_a3_client_of_webhooks_is_imported_before_the_first_one(plain: Path) -> None:
    """The server ends when the import begins, so no request can have caused it."""
    words = ["serve", str(plain), "--host", "127.0.0.1", "--port", "0", "--grpc-port", "0"]
    done = subprocess.run(
        [sys.executable, "-c", UNTIL_PREPARED, *words], check=True, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.stdout.split() == ["geartrain.outbound.webhook_client"]


def test_a_worker_runs_with_what_every_model_needs(plain: Path) -> None:
    modules = modules_after_a_prediction(plain)
    assert not packages(modules) & PACKAGES_LATE_IN_WORKER
    assert len(own(modules)) <= OWN_OF_WORKER, sorted(own(modules))
    assert len(modules) <= WORKER, sorted(modules)
