"""What a start imports, which is most of the time that it takes; time itself would say little on a busy machine."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

import httpx
import pytest

from geartrain.launch.server import Server, serve_command
from tests.support.receiver import receiving
from tests.support.servers import Serve, write_model

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

# A program that serves a model, and tells its modules for each line on stdin.
WITH_MODULES: Final = """
import sys, threading
from geartrain.cli import main

def tell():
    for _ in sys.stdin:
        print(*sorted(sys.modules), flush=True)

threading.Thread(target=tell, daemon=True).start()
main.main()
"""

# A program that serves a model, and tells for each line on stdin how its garbage collector is set.
WITH_COLLECTOR: Final = """
import gc, sys, threading
from geartrain.cli import main

def tell():
    for _ in sys.stdin:
        print(gc.isenabled(), gc.get_threshold()[0], flush=True)

threading.Thread(target=tell, daemon=True).start()
main.main()
"""

# A program that serves a model, and tells for each line on stdin how many arenas malloc has for its threads.
WITH_ARENAS: Final = """
import ctypes, sys, tempfile, threading
from geartrain.cli import main

libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fdopen.restype = ctypes.c_void_p

def tell():
    for _ in sys.stdin:
        together = threading.Barrier(13)
        for _ in range(12):
            threading.Thread(target=lambda: (libc.malloc(50_000), together.wait()), daemon=True).start()
        together.wait()
        with tempfile.TemporaryFile() as file:
            stream = ctypes.c_void_p(libc.fdopen(libc.dup(file.fileno()), b"w"))
            libc.malloc_info(0, stream)
            libc.fclose(stream)
            file.seek(0)
            print(file.read().count(b"<heap nr="), flush=True)

threading.Thread(target=tell, daemon=True).start()
main.main()
"""

ARENAS: Final = 3  # two, and perhaps that of a thread which writes the log before
PARENT: Final = 590  # modules, with those of Python, which differ a little between its versions
OWN_OF_PARENT: Final = 330
WORKER: Final = 270
OWN_OF_WORKER: Final = 103

# What only some servers or requests need.
LATE_IN_PARENT: Final = {
    "ctypes.util",
    "geartrain.domain.multipart",
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


@contextlib.contextmanager
def serving(program: str, folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a program that serves a model and reads lines on stdin; give the process and its URL."""
    words = ["serve", str(folder), "--host", "127.0.0.1", "--port", "0", "--grpc-port", "0", *arguments]
    command = [sys.executable, "-c", program, *words]
    pipe = subprocess.PIPE
    environ = {**os.environ, "LOG_FORMAT": "json"}
    with subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        try:
            lines = map(json.loads, process.stderr)
            yield process, next(line["url"] for line in lines if line.get("message") == "listening")
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> str:
    """Write a line to the program of a server, and return the one that it answers."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


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


async def test_a_webhook_needs_no_library(plain: Path) -> None:
    """Httpx, imported after every start to have it for the first webhook, took 6 MB."""
    async with receiving() as receiver:
        with serving(WITH_MODULES, plain, "--allow-private-urls") as (process, url):
            body = {"webhook": receiver.url(), "webhook_events_filter": ["completed"]}
            async with httpx.AsyncClient() as client:
                assert (await client.post(f"{url}/predictions", json=body, timeout=LIMIT)).status_code == 200
            await receiver.ended()
            modules = set((await asyncio.to_thread(told, process)).split())
    assert "geartrain.outbound.webhooks" in modules
    assert not packages(modules) & {"anyio", "certifi", "email", "h11", "httpcore", "httpx", "idna"}


def test_a_worker_runs_with_what_every_model_needs(plain: Path) -> None:
    modules = modules_after_a_prediction(plain)
    assert not packages(modules) & PACKAGES_LATE_IN_WORKER
    assert len(own(modules)) <= OWN_OF_WORKER, sorted(own(modules))
    assert len(modules) <= WORKER, sorted(modules)


def test_the_collector_works_once_the_server_listens(plain: Path) -> None:
    """It is off until then; a server where it stayed off grew by 17 MB a minute."""
    with serving(WITH_COLLECTOR, plain) as (process, _):
        assert told(process).split() == ["True", "20000"]


async def test_the_collector_of_a_worker_looks_at_what_an_author_makes(serve: Serve) -> None:
    source = """
        import gc
        mine = {"made": []}

        def run() -> list[int]:
            seen = any(each is mine for each in gc.get_objects())
            return [int(gc.isenabled()), int(seen), gc.get_freeze_count()]
    """
    async with serve(source) as server:
        is_enabled, is_seen, frozen = (await server.predict())["output"]
    assert (is_enabled, is_seen) == (1, 1)
    assert frozen > 10_000  # the worker's own modules


def test_the_collector_works_in_a_command_and_is_spared_its_end(tmp_path: Path) -> None:
    """`geartrain run` with a note of the collector, by what is called behind the last of its own."""
    program = """
        import atexit, gc
        from geartrain.cli import main, predict

        predicting = predict.predict
        noted = []

        async def noting(*args):
            noted.append(gc.isenabled())
            return await predicting(*args)

        predict.predict = noting
        atexit.register(lambda: print(*noted, gc.get_freeze_count() > 10_000))
        main.main()
    """
    folder = write_model(tmp_path / "model", "def run() -> str: return 'done'")
    command = [sys.executable, "-c", textwrap.dedent(program), "run", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT)
    assert done.stdout.split() == ["done", "True", "True"]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="not glibc")
def test_the_threads_of_a_server_share_the_free_memory_of_malloc(plain: Path) -> None:
    """One arena for each of them held more that was free than that was used."""
    with serving(WITH_ARENAS, plain) as (process, _):
        assert int(told(process)) <= ARENAS
