"""Official clients and what is built on them, each in an environment where its pins fit, against one server.

    python -m tests.clients [--need-all] [ENVIRONMENT ...]

An environment is a file in `pins/`; it is made in `.venv-clients` where it is missing or its file has changed. One that
cannot be installed is skipped, unless all are needed. `npm` is the one of the clients for Node.js. Those of packages of
other servers run the tests of their contract with the real package in the place of ours.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx

from geartrain.transport.access.guard import SCOPES
from geartrain.transport.access.keys import Key, add_key, digest_of, new_key
from tests.clients.asking import Server
from tests.clients.models import READY, write_models
from tests.support.servers import ServerProcess
from tests.support.text_apis import play

_HERE: Final = Path(__file__).parent
_ROOT: Final = _HERE.parents[1]
_PINS: Final = _HERE / "pins"
_ENVIRONMENTS: Final = _ROOT / ".venv-clients"
_NODE: Final = _ROOT / "tests/js"
_NPM: Final = "npm"
_CLIENTS: Final = {
    "newest": ("openai", "langchain", "pydantic_ai", "cohere", "anthropic", "mcp", "page"),
    "openai-2": ("openai", "litellm", "llama_index", "page"),
    "instructor": ("openai", "instructor"),
}
_PACKAGES: Final = {
    "litserve": "tests/server/test_litserve.py",
    "mlflow": "tests/server/test_mlflow.py",
    "mlserver": "tests/server/test_mlserver_runtimes.py",
}
_NODE_CLIENTS: Final = ("openai-6", "openai-7")


class NotInstalledError(Exception):
    """An environment that cannot be made: the last line of what its installer said."""


def make_environment(name: str) -> Path:
    """Return the folder of an environment, which is made where it is missing. Raises `NotInstalledError`."""
    folder, pins = _ENVIRONMENTS / name, _PINS / f"{name}.txt"
    done = folder / "pins.txt"
    if not done.is_file() or done.read_bytes() != pins.read_bytes():
        shutil.rmtree(folder, ignore_errors=True)
        _install(["venv", "-q", "--python", sys.executable, str(folder)])
        _install(["pip", "install", "-q", "--no-deps", "--python", str(folder), "-r", str(pins)])
        shutil.copyfile(pins, done)
    return folder


def _install(arguments: list[str]) -> None:
    made = subprocess.run([sys.executable, "-m", "uv", *arguments], check=False, capture_output=True, text=True)
    if made.returncode:
        raise NotInstalledError(next(iter(made.stderr.strip().splitlines()[::-1]), "uv failed"))


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """Serve the example models; two of them are busy all the time."""
    with tempfile.TemporaryDirectory(prefix="clients-") as temporary, contextlib.ExitStack() as stack:
        folder = Path(temporary)
        write_models(folder / "models")
        never = folder / "never"
        os.mkfifo(never)
        key, reading = new_key(), new_key()
        add_key(folder / "keys", Key("tests", tuple(SCOPES), digest_of(key)))
        add_key(folder / "keys", Key("reader", ("read",), digest_of(reading)))
        store = f"sqlite:///{folder}/store.db"
        options = ("--keys", str(folder / "keys"), "--max-body-size", "1MiB", "--store", store)
        process = ServerProcess(str(folder / "models"), *options)
        stack.callback(process.end)
        server = Server(process.wait_for("listening")["url"], key, reading, str(never))
        for _ in READY:
            process.wait_for("ready")
        client = stack.enter_context(httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {key}"}))
        stack.enter_context(_occupied(client, never))
        yield server


@contextlib.contextmanager
def _occupied(client: httpx.Client, never: Path) -> Iterator[None]:
    """Have the models `busy` and `rank-busy` run all the time."""
    waits = {"input": {"query": f"wait {never}", "documents": ["a"]}}
    begun = client.post("/models/rank-busy/predictions", json=waits, headers={"prefer": "respond-async"})
    begun.raise_for_status()
    said = play("begun", {"wait": str(never)})
    body = {"model": "busy", "messages": [{"role": "user", "content": said}], "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()  # kept: the answer ends with it
        next(lines)  # by then it runs
        yield
        del lines


def ask_by_python(name: str, server: Server) -> bool:
    """Run the tests of an environment; return whether they have passed. Raises `NotInstalledError`."""
    python = make_environment(name) / "bin/python"
    files = [str(_HERE / f"test_{client}.py") for client in _CLIENTS[name]]
    command = [python, "-m", "pytest", "-q", "-c", str(_HERE / "pytest.ini"), "--rootdir", str(_ROOT), *files]
    return _passes([*map(str, command), "--confcutdir", str(_HERE), "-p", "no:cacheprovider"], server)


def ask_by_node(server: Server) -> bool:
    """Run the tests of the clients for Node.js. Raises `NotInstalledError`."""
    if not (_NODE / "node_modules" / _NODE_CLIENTS[0]).is_dir():
        raise NotInstalledError("`make clients` has not installed it")
    script = str(_NODE / "openai.mjs")
    return all([_passes(["node", "--test-reporter=spec", script, name], server) for name in _NODE_CLIENTS])  # noqa: C419 - both are shown


def try_package(name: str) -> bool:
    """Run the tests of a contract with its package; return whether they have passed. Raises `NotInstalledError`."""
    place = next(make_environment(name).glob("lib/python*/site-packages"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", _PACKAGES[name]]
    environment = {**os.environ, "GEARTRAIN_TEST_PACKAGES": str(place)}
    return subprocess.run(command, check=False, cwd=_ROOT, env=environment).returncode == 0


def _passes(command: list[str], server: Server) -> bool:
    environment = {
        **os.environ,
        "CLIENTS_SERVER": json.dumps(dataclasses.asdict(server)),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # it would fetch one
        "PYTHONWARNINGS": "ignore",
    }
    return subprocess.run(command, check=False, cwd=_ROOT, env=environment).returncode == 0


def _try(name: str, server: Server) -> bool:
    if name in _PACKAGES:
        return try_package(name)
    return ask_by_node(server) if name == _NPM else ask_by_python(name, server)


def main() -> int:
    """Run what the command line asks for; return the status to end with."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients")
    parser.add_argument("--need-all", action="store_true", help="fail where an environment cannot be installed")
    names = [*_CLIENTS, _NPM, *_PACKAGES]
    parser.add_argument("environments", nargs="*", default=names, metavar="ENVIRONMENT", help=", ".join(names))
    given = parser.parse_args()
    results: dict[str, str] = {}
    with serving() as server:
        for name in given.environments:
            begin = time.monotonic()
            print(f"--- {name}", flush=True)
            try:
                passes = _try(name, server)
            except NotInstalledError as error:
                results[name] = f"{'FAILED' if given.need_all else 'skipped'}: it cannot be installed: {error}"
            else:
                results[name] = f"{'passed' if passes else 'FAILED'} in {time.monotonic() - begin:.0f} s"
    for name, said in results.items():
        print(f"{name}: {said}")
    return any(said.startswith("FAILED") for said in results.values())


if __name__ == "__main__":
    sys.exit(main())
