"""Servers of tests as applications of Ray Serve: three replicas of each behind Ray's HAProxy, which share a store.

What a test sees of such a server is what clients see: the processes are Ray's, on the other side of the proxy.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import itertools
import json
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn, cast
from urllib.parse import quote

import pytest

from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import Prediction
from geartrain.outbound.retries import Retries
from geartrain.server import WebhookOptions
from geartrain.server.options import ServeOptions
from geartrain.service.models.deployment import Limits
from tests.support import modes
from tests.support.clients import asyncio_client
from tests.support.postgres import Postgres, running_postgres
from tests.support.ray_serve import RayCluster, cluster, need_ray
from tests.support.servers import PATIENCE, LiveServer, ServerProcess

REPLICAS: Final = 3
# What `geartrain.ray.app` calls the options that tests have for a server.
_NAMES: Final = {
    "allow_private_urls": "allow_private_urls",
    "health_body": "health_body",
    "max_body_bytes": "max_body_size",
    "max_download_bytes": "max_download_size",
    "setup_timeout": "setup_timeout",
    "upload_url": "upload_url",
}
# The same for the arguments of `geartrain serve`. gRPC has a port of HAProxy's. Shared memory would be of one
# replica, and tests of it have the mark `one_server`.
_ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "--health-body": {"health_body": True},
    "--restart on-crash": {"restart": "on-crash"},
    "--grpc-port 0": {},
    "--shared-memory": {},
}
_LOOK: Final = 0.01  # seconds between two looks at a prediction


class Site:
    """A cluster, a database for each application, and the files that its replicas share."""

    def __init__(self, folder: Path, ray: RayCluster, postgres: Postgres) -> None:
        self.ray = ray
        self._postgres = postgres
        self._numbers = itertools.count(1)
        self._ended: list[str] = []  # applications that nobody asks any more
        self._token, self._keys = folder / "token", folder / "keys"
        self._token.write_text(secrets.token_urlsafe(32))
        self._keys.write_bytes(base64.b64encode(secrets.token_bytes(32)))
        self._keys.chmod(0o600)

    def start(self, models: Path, options: dict[str, Any], *, is_alone: bool = False) -> str:
        """Run three replicas; return the name of the application, which no other one shares the cluster with if so.

        HAProxy closes connections when its config changes. So what has ended is taken away here, and not during a test.
        """
        name = f"t{next(self._numbers)}"
        shared = {"store": self._postgres.another(name), "store_key_file": str(self._keys)}
        self.ray.run(
            name,
            str(models),
            {"num_replicas": REPLICAS, "num_cpus": 0.05, "cluster_token_file": str(self._token), **shared, **options},
            ended=self._ended,
            is_alone=is_alone,
        )
        self._ended = []
        return name

    async def until_all_answer(self, name: str) -> None:
        """Wait until HAProxy has had an answer of each replica for us."""
        assert len(await self.ray.until_replicas(REPLICAS, prefix=f"/{name}")) == REPLICAS

    def url_of(self, name: str) -> str:
        """Where clients reach an application."""
        return f"{self.ray.url}/{name}"

    def end(self, name: str) -> None:
        """Have an application end, before the next one starts."""
        self._ended.append(name)


@contextlib.contextmanager
def _open_site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="replicas-") as folder, running_postgres() as postgres, cluster() as ray:
        yield Site(Path(folder), ray, postgres)


@functools.cache
def site() -> Site:
    """The cluster of this run, which is there until its end."""
    need_ray()
    found: Site = modes.current().lasting.enter_context(_open_site())
    return found


class Told:
    """A prediction as clients are told of it; it has what most tests ask of a `Prediction`."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.id: str = body["id"]
        self.status = Status(body["status"])
        self.logs: str = body["logs"]
        self.error: str | None = body.get("error")
        self.created_at = _moment(body, "created_at")
        self.completed_at = _moment(body, "completed_at")
        self.is_terminal = self.completed_at is not None
        self.input = _as_bytes(body["input"])
        self.output = _as_bytes(body["output"]) if "output" in body else None
        output = body.get("output")
        self.chunks = [_as_bytes(each) for each in output] if isinstance(output, list) else []


def _moment(body: dict[str, Any], name: str) -> float | None:
    return datetime.fromisoformat(body[name]).timestamp() if name in body else None


def _as_bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class ReplicaSet(LiveServer):
    """Three replicas, as their clients see them. What a test wants of a server's own process skips it."""

    def __init__(self, url: str, client: Any, root: Path, *, path: str = "/predictions") -> None:
        """`path`: what predictions, or trainings, are below."""
        self.url = url
        self.client = client
        self.root = root
        self._path = path

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.skip(f"it looks at `{name}` within the server, and the replicas are processes of Ray's")

    async def _until(self, prediction_id: str, condition: Callable[[Prediction], bool]) -> Prediction:
        path = f"{self._path}/{quote(prediction_id, safe='')}"
        async with asyncio.timeout(PATIENCE):
            while True:
                response = await self.client.get(path)
                assert response.status_code in {200, 404, 503}, response.text
                if response.status_code == 200:
                    told = cast("Prediction", Told(response.json()))
                    if condition(told):
                        return told
                    assert not told.is_terminal, f"it ended: {response.text}"
                await asyncio.sleep(_LOOK)

    def of_trainings(self) -> LiveServer:
        """The same for trainings."""
        return ReplicaSet(self.url, self.client, self.root, path="/trainings")

    def newest(self) -> NoReturn:
        """Skip: which of the replicas has it?"""
        self.__getattr__("newest()")


def _options_of(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of `geartrain.ray.app` for those of `ServeOptions`; skip what a replica has none for."""
    options: dict[str, Any] = {}
    usual = {field: getattr(ServeOptions, field, None) for field in given}
    usual["webhooks"] = given.get("webhooks")  # which variables of the models decide
    for field, value in given.items():
        if field == "limits":
            options |= {name: getattr(value, name) for name in Limits.__struct_fields__ if _is_set(value, name)}
        elif field in _NAMES:
            options[_NAMES[field]] = value
        elif field != "shared_memory" and value != usual[field]:
            pytest.skip(f"`{field}` is no option of a replica on Ray")
    return options


def _is_set(limits: Limits, name: str) -> bool:
    return bool(getattr(limits, name) != getattr(Limits(), name))


def _variables_of(options: WebhookOptions | None) -> dict[str, str]:
    """Return the variables of a model that say how its webhooks are sent; skip for pauses that a test waits for."""
    if options is None:
        return {}
    if options.retries.first_pause > Retries().first_pause or options.retries.tries > Retries().tries:
        pytest.skip("replicas try a webhook again when their store says so")
    said = {"COG_THROTTLE_RESPONSE_INTERVAL": options.interval, "WEBHOOK_AUTH_TOKEN": options.token}
    return {name: str(value) for name, value in said.items() if value is not None}


def _set_variables(model: Path, variables: dict[str, str]) -> None:
    """Give a model variables: the environment of replicas is that of their cluster."""
    if not variables:
        return
    config = model / "cog.yaml"
    text = config.read_text() if config.exists() else ""
    assert "environment:" not in text, f"{config} has variables already"
    lines = [f"  {name}: {json.dumps(value)}" for name, value in variables.items()]
    config.write_text("\n".join([text, "environment:", *lines]))


@contextlib.asynccontextmanager
async def serve_replicas(folder: Path, environ: dict[str, str], **given: Any) -> AsyncIterator[LiveServer]:
    """Serve the model in a folder with three replicas, of which each has answered."""
    options = _options_of(given)
    _set_variables(folder, {**environ, **_variables_of(given.get("webhooks"))})
    found = site()
    name = await asyncio.to_thread(found.start, folder, options)
    try:
        await found.until_all_answer(name)
        async with asyncio_client(found.url_of(name)) as client:
            yield ReplicaSet(found.url_of(name), client, folder)
    finally:
        found.end(name)


def _with_variables(models: Path, folder: Path, variables: dict[str, str]) -> Path:
    """Return a copy of a folder of models, where each has the variables."""
    copied = shutil.copytree(models, folder / models.name)
    for model in copied.iterdir():
        _set_variables(model, variables)
    return copied


class ReplicaProcess(ServerProcess):
    """Three replicas of what `geartrain serve` would serve, in the place of its process.

    It has told where it listens, and that it is ready. A test that wants more of its log or of the process is skipped.
    """

    def __init__(self, target: str, *arguments: str, env: dict[str, str] | None = None, **options: Any) -> None:
        given = next((name for name, value in options.items() if value), None)
        if given:
            pytest.skip(f"a replica on Ray has no {given} of the test's own")
        wanted = {"allow_private_urls": True, **_read_arguments(arguments)}
        found = site()
        is_alone = "--grpc-port" in arguments  # then calls need not name the application
        self._folder = tempfile.TemporaryDirectory(prefix="models-")
        models = Path(target) if env is None else _with_variables(Path(target), Path(self._folder.name), env)
        self._name = found.start(models, wanted, is_alone=is_alone)
        with ThreadPoolExecutor(1) as other:  # the test may have a loop here
            other.submit(asyncio.run, found.until_all_answer(self._name)).result()
        url = found.url_of(self._name)
        self._told = [{"event": "listening", "url": url}, {"event": "ready"}]
        if is_alone:
            self._told.insert(1, {"event": "listening-grpc", "url": f"127.0.0.1:{found.ray.grpc_port}"})

    def __getattr__(self, name: str) -> NoReturn:
        pytest.skip(f"it looks at `{name}` of a process of its own, and the replicas are Ray's")

    def wait_for_one(self, *events: str) -> dict[str, Any]:
        """Return the next of what it has told; all models are ready."""
        for number, line in enumerate(self._told):
            if line["event"] in events:
                return line if line["event"] == "ready" else self._told.pop(number)
        pytest.skip(f"it waits for {' or '.join(events)} in the log of a process of its own, and replicas are Ray's")

    def end(self) -> None:
        """End them."""
        site().end(self._name)
        self._folder.cleanup()


def _read_arguments(arguments: tuple[str, ...]) -> dict[str, Any]:
    """Return options of `geartrain.ray.app` for arguments of `geartrain serve`; skip what a replica has none for."""
    options: dict[str, Any] = {}
    rest = " ".join(arguments)
    for text, values in _ARGUMENTS.items():
        if text in rest:
            options |= values
            rest = rest.replace(text, "")
    if rest.strip():
        pytest.skip(f"`{rest.strip()}` is nothing that a replica on Ray has")
    return options
