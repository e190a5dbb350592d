"""Models that call each other, and a client that asks for the calls of their predictions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httpx

from tests.support.servers import PATIENCE

ECHO = """
    import time
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, text: str, seconds: float = 0.0) -> str:
            time.sleep(seconds)
            if text == "fail":
                raise ValueError("no such thing")
            return text
"""
MIDDLE = """
    import geartrain

    class Runner(geartrain.BaseRunner):
        def run(self, text: str) -> str:
            return geartrain.models["echo"](text=f"{text}1") + geartrain.models["echo"](text=f"{text}2")
"""
OUTER = """
    import geartrain
    from geartrain import ModelError, models

    class Runner(geartrain.BaseRunner):
        def run(self, way: str) -> str:
            return str(getattr(self, way)())

        def none(self):
            return ""

        def tree(self):
            return models["middle"](text="a") + models["echo"](text="b") + models["middle"](text="c")

        def both(self):
            jobs = [models["middle"].start(text=text) for text in "ab"]
            return [job.result() for job in jobs]

        def failures(self):
            calls = [("echo", {"text": "fail"}), ("echo", {"txt": "x"}), ("nobody", {}), ("echo", {"text": "x"})]
            for name, inputs in calls:
                try:
                    models[name](**inputs)
                except ModelError:
                    pass

        def uncaught(self):
            models["echo"](text="fail")

        def job(self):
            job = models["echo"].start(text="x", seconds=60)
            job.cancel()
            try:
                job.result()
            except ModelError as error:
                return error.code

        def slow(self):
            return models["echo"](text="x") + models["echo"](text="y", seconds=60)

        def many(self):
            for number in range(300):
                models["echo"](text=str(number))
"""
GROUPED = """
    import asyncio, os
    from geartrain import BaseRunner, ModelError, batched, models

    class Runner(BaseRunner):
        @batched(max_size=3)
        async def run(self, text: list[str]) -> list[str]:  # async: no call is sent ahead, so all that wait share one
            while text[0].startswith("/") and not os.path.exists(text[0]):
                await asyncio.sleep(0.005)
            try:
                await models["echo"](text="fail")
            except ModelError:
                pass
            return [await models["middle"](text=text[0])] * len(text)
"""
CROWD = """
    import geartrain
    from geartrain import concurrent

    class Runner(geartrain.BaseRunner):
        @concurrent(max=3)
        async def run(self, text: str) -> str:
            return await geartrain.models["grouped"](text=text)
"""


class Live:
    """A server of models that call each other, with two clients."""

    def __init__(self, url: str, keys: dict[str, str]) -> None:
        self.ada, self.bob = (
            httpx.AsyncClient(base_url=url, timeout=PATIENCE, headers={"authorization": f"Bearer {keys[name]}"})
            for name in ("ada", "bob")
        )
        self._number = 0

    async def put(self, model: str, *, later: bool = False, by: httpx.AsyncClient | None = None, **inputs: Any) -> str:
        """Make a prediction, and return its path at its end, or at once."""
        self._number += 1
        path = f"/models/{model}/predictions/p{self._number}"
        headers = {"prefer": "respond-async"} if later else {}
        response = await (by or self.ada).put(path, json={"input": inputs}, headers=headers)
        assert response.status_code == (HTTPStatus.ACCEPTED if later else HTTPStatus.OK), response.text
        return path

    async def shown(self, path: str, *, by: httpx.AsyncClient | None = None) -> dict[str, Any]:
        response = await (by or self.ada).get(f"{path}/calls")
        assert response.status_code == HTTPStatus.OK, response.text
        found: dict[str, Any] = response.json()
        return found

    async def calls(self, model: str, **inputs: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.shown(await self.put(model, **inputs)))["calls"]
        return found

    async def until(
        self, path: str, is_so: Callable[[dict[str, Any]], bool], *, by: httpx.AsyncClient | None = None
    ) -> dict[str, Any]:
        """Return the calls of a prediction once they are so."""
        async with asyncio.timeout(PATIENCE):
            while not is_so(found := await self.shown(path, by=by)):  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.02)
        return found


def outline(calls: list[dict[str, Any]]) -> list[tuple[int, str, str]]:
    return [(each["depth"], each["model"], each["status"]) for each in calls]


MIDDLE_CALLS = [(1, "middle", "succeeded"), (2, "echo", "succeeded"), (2, "echo", "succeeded")]
