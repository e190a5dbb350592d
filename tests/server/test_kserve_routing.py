"""KServe in front of models: its own client over version 1, and the steps of an InferenceGraph over both versions."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.servers import ServerProcess

from tests.support.servers import PATIENCE, write_model

ADD = """
    import numpy as np
    import numpy.typing as npt
    import geartrain

    class Runner(geartrain.BaseRunner):
        @geartrain.batched
        def run(self, x: np.ndarray[tuple[int], np.dtype[np.float64]]) -> npt.NDArray[np.float64]:
            if x.max() > 100:
                raise ValueError("too much")
            return x + 1
"""
CLIENT = """
import asyncio, json, sys
from kserve import InferenceRESTClient, RESTConfig

async def ask(url, model):
    client = InferenceRESTClient(RESTConfig(protocol="v1"))
    try:
        faults = []
        for name, body in ((model, {"instances": []}), ("none", {"instances": [1.0]}), (model, {"instances": [101.0]})):
            try:
                await client.infer(url, body, model_name=name)
            except Exception as error:
                faults.append(getattr(getattr(error, "response", None), "status_code", repr(error)))
        return [
            await client.is_model_ready(url, model),
            await client.infer(url, {"instances": [1.0, 2.0]}, model_name=model),
            faults,
        ]
    finally:
        await client.close()

print(json.dumps(asyncio.run(ask(*sys.argv[1:]))))
"""


@pytest.fixture
def url(tmp_path: Path, server_process: Callable[..., ServerProcess]) -> str:
    """A server with the endpoints of version 1."""
    process = server_process(str(write_model(tmp_path / "add", ADD)), "--api", "kserve")
    found: str = process.wait_for("listening")["url"]
    process.wait_for("ready")
    return found


def test_kserves_client_over_version_1(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, url, "add"], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [True, {"predictions": [2.0, 3.0]}, [400, 404, 500]]


class Router:
    """The steps of a graph as KServe's router runs them: the body of the request, or of the answer before, goes on."""

    def __init__(self, url: str) -> None:
        self._client = httpx.AsyncClient(base_url=url, timeout=PATIENCE)

    async def step(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Send a body as the router does: with its type alone."""
        answer = await self._client.post(path, content=body, headers={"content-type": "application/json"})
        return answer.status_code, answer.content

    async def sequence(self, paths: list[str], body: bytes, join: Callable[[bytes], bytes]) -> tuple[int, bytes]:
        """Give each step what `join` makes of the answer before; a fault ends it, with its body and status."""
        status, content = 200, body
        for number, path in enumerate(paths):
            status, content = await self.step(path, join(content) if number else content)
            if status != 200:
                break
        return status, content

    async def ensemble(self, paths: dict[str, str], body: bytes) -> dict[str, Any]:
        """Ask all steps at once; the answers by their names."""
        found = await asyncio.gather(*(self.step(path, body) for path in paths.values()))
        return {name: json.loads(content) for name, (_, content) in zip(paths, found, strict=True)}

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def tensor(values: list[float]) -> bytes:
    body = {"inputs": [{"name": "x", "shape": [len(values)], "datatype": "FP64", "data": values}]}
    return json.dumps(body).encode()


def instances(values: list[float]) -> bytes:
    return json.dumps({"instances": values}).encode()


@pytest.mark.parametrize("version", [1, 2])
async def test_the_steps_of_a_graph(url: str, version: int) -> None:
    path = "/v1/models/add:predict" if version == 1 else "/v2/models/add/infer"
    write = instances if version == 1 else tensor

    def values(content: bytes) -> list[float]:
        answer = json.loads(content)
        found: list[float] = answer["predictions"] if version == 1 else answer["outputs"][0]["data"]
        return found

    def join(content: bytes) -> bytes:
        return write(values(content))

    router = Router(url)
    try:
        status, content = await router.sequence([path, path, path], write([1.0, 2.0]), join)
        assert (status, values(content)) == (200, [4.0, 5.0])
        found = await router.ensemble({"a": path, "b": path}, write([1.0]))
        assert {name: values(json.dumps(each).encode()) for name, each in found.items()} == {"a": [2.0], "b": [2.0]}
        status, content = await router.sequence([path, path], write([100.0]), join)
        assert status == 500
        assert "too much" in json.loads(content)["error"]
        status, content = await router.step(path.replace("add", "none"), write([1.0]))
        assert status == 404
        assert "none" in json.loads(content)["error"]
    finally:
        await router.close()
