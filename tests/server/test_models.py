"""Many models in one server: a process of its own, a folder of models, real workers."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openapi_spec_validator
import pytest

from tests.support.servers import ServerProcess, write_model

Start = Callable[..., ServerProcess]

ECHO = "def run(text: str = '') -> str:\n    return {answer!r} + text\n"
BROKEN = "class Runner:\n    def setup(self): raise ValueError('no weights')\n    def run(self) -> str: ...\n"
WAITING = """
    import os, time
    def run(text: str = "", seconds: float = 0.0) -> str:
        time.sleep(seconds)
        return str(os.getpid())
"""
MANY = 20


def echo(folder: Path, answer: str) -> Path:
    return write_model(folder, ECHO.format(answer=answer))


class Zoo:
    """A server of a folder of models."""

    def __init__(self, root: Path, *arguments: str) -> None:
        self.root = root
        self.process = ServerProcess(str(root), *arguments)
        self.url = self.process.wait_for("listening")["url"]
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def wait(self, *stages: str) -> list[dict[str, Any]]:
        """Wait for all of these, in whatever order they come."""
        waiting, found = list(stages), []
        while waiting:
            found.append(self.process.wait_for_one(*waiting))
            waiting.remove(found[-1]["message"])
        return found

    def ask(self, name: str, text: str = "", version: str = "") -> str:
        path = f"/models/{name}/versions/{version}/predictions" if version else f"/models/{name}/predictions"
        response = self.client.post(path, json={"input": {"text": text}})
        assert response.status_code == 200, response.text
        output: str = response.json()["output"]
        return output

    def get(self, path: str) -> Any:
        response = self.client.get(path)
        assert response.status_code == 200, response.text
        return response.json()

    def control(self, name: str, what: str) -> httpx.Response:
        return self.client.post(f"/v2/repository/models/{name}/{what}")

    def index(self) -> dict[tuple[str, str], tuple[str, str]]:
        found = self.client.post("/v2/repository/index").json()
        return {
            (each["name"], each.get("version", "")): (each.get("state", ""), each.get("reason", "")) for each in found
        }

    def close(self) -> None:
        self.client.close()
        self.process.end()


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zoo]:
    """Twenty models, one with versions, one that is broken, one that is wrong on disk."""
    root = tmp_path_factory.mktemp("zoo")
    for number in range(MANY):
        echo(root / f"m{number}", f"{number}:")
    for version in (1, 2, 10):
        echo(root / "versions" / str(version), f"v{version}:")
    write_model(root / "broken", BROKEN)
    write_model(root / "wrong", ECHO.format(answer=""))
    (root / "wrong" / "geartrain.yaml").write_text("replica: 2\n")
    (root / "notes").mkdir()
    zoo = Zoo(root)
    zoo.wait(*["ready"] * (MANY + 3))
    yield zoo
    zoo.close()


def test_twenty_models_answer_beside_two_that_cannot(zoo: Zoo) -> None:
    assert [zoo.ask(f"m{number}", "x") for number in range(MANY)] == [f"{number}:x" for number in range(MANY)]
    index = zoo.index()
    assert sum(state == "READY" for state, _ in index.values()) == MANY + 3
    assert index["broken", "1"] == ("UNAVAILABLE", "setup() failed: ValueError: no weights")
    state, reason = index["wrong", ""]
    assert state == "UNAVAILABLE"
    assert reason.endswith("there is no key `replica`; did you mean `replicas`?")
    assert zoo.client.get("/v2/health/ready").status_code == 400
    assert zoo.client.get("/v2/models/m3/ready").status_code == 200


def test_the_latest_version_is_the_default_and_each_can_be_asked(zoo: Zoo) -> None:
    assert [zoo.ask("versions", "x", version) for version in ("", "1", "2", "10")] == ["v10:x", "v1:x", "v2:x", "v10:x"]
    assert zoo.client.post("/models/versions/versions/3/predictions", json={}).status_code == 404
    assert zoo.client.post("/models/versions/versions/x/predictions", json={}).status_code == 404


def test_the_whole_of_cogs_api_is_there_for_each_model(zoo: Zoo) -> None:
    urls = zoo.get("/models/m1")
    assert urls["predictions_url"] == "/models/m1/predictions"
    assert "shutdown_url" not in urls
    assert zoo.get(urls["healthcheck_url"])["status"] == "READY"
    assert zoo.get("/models/versions/versions/2/openapi.json")["servers"] == [{"url": "/models/versions/versions/2"}]
    page = zoo.client.get(urls["docs_url"]).text
    assert '"/models/m1/openapi.json"' in page
    assert zoo.client.get("/models/m1/docs/static/swagger-ui.css").status_code == 200
    begun = zoo.client.put("/models/m1/predictions/mine", json={"input": {"text": "x"}})
    assert begun.json()["output"] == "1:x"
    assert zoo.get("/models/m1/predictions/mine")["output"] == "1:x"
    assert zoo.client.get("/models/m2/predictions/mine").status_code == 404
    assert zoo.client.post("/models/m1/predictions/mine/cancel").status_code == 404  # it is over
    wrong = zoo.client.post("/models/m1/predictions", json={"input": {"text": 3}})
    assert (wrong.status_code, wrong.json()["detail"][0]["loc"]) == (422, ["body", "input", "text"])
    assert zoo.client.post("/models/m1/shutdown").status_code == 404
    assert zoo.client.get("/models/nope/health-check").status_code == 404


def test_models_that_cannot_say_why(zoo: Zoo) -> None:
    health = zoo.get("/models/broken/health-check")
    assert health["status"] == "SETUP_FAILED"
    assert "ValueError: no weights" in health["setup"]["logs"]
    assert zoo.client.post("/models/broken/predictions", json={}).status_code == 503
    health = zoo.get("/models/wrong/health-check")
    assert (health["status"], "did you mean `replicas`" in health["setup"]["logs"]) == ("SETUP_FAILED", True)
    refused = zoo.client.post("/models/wrong/predictions", json={})
    assert (refused.status_code, "did you mean `replicas`" in refused.json()["error"]) == (503, True)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/predictions"), ("PUT", "/predictions/a"), ("GET", "/openapi.json")],
)
def test_the_root_names_the_way_to_the_models(zoo: Zoo, method: str, path: str) -> None:
    response = zoo.client.request(method, path)
    assert response.status_code == 404
    assert "--default-model" in response.json()["error"]
    assert f"/models/broken{path}" in response.json()["error"]


def test_the_reference_has_every_model_and_protocol(zoo: Zoo) -> None:
    page = zoo.client.get(zoo.get("/")["docs_url"])
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert '"/docs/openapi.json"' in page.text
    assert zoo.client.get("/docs/static/swagger-ui.css").status_code == 200
    document = zoo.get("/docs/openapi.json")
    openapi_spec_validator.validate(document)
    for path in ("/models/m1/predictions", "/v2/models/m1/infer", "/v2/models/m2/generate_stream", "/metrics"):
        assert path in document["paths"]
    about = document["info"]["description"]
    assert "Not loaded, and so not described here: broken" in about
    assert all(f"**{api}**" in about for api in ("Predictions", "Infer", "Generate", "This server"))
    assert zoo.client.post(path, json={}).status_code != 404


def test_the_health_of_all_is_that_of_the_worst(zoo: Zoo) -> None:
    health = zoo.get("/health-check")
    assert health["status"] == "SETUP_FAILED"
    assert health["models"]["m1"]["status"] == "READY"
    assert health["models"]["broken"]["status"] == "SETUP_FAILED"
    assert zoo.get("/")["models"]["m1"] == "/models/m1"
    assert {"name": "m1", "version": "1", "state": "READY"} in zoo.get("/models")["models"]


def test_t15_unload_and_load(zoo: Zoo) -> None:
    assert zoo.control("m2", "unload").status_code == 200
    assert zoo.index()["m2", "1"] == ("UNAVAILABLE", "unloaded")
    refused = zoo.client.post("/v2/models/m2/infer", json={"inputs": []})
    assert (refused.status_code, refused.json()["error"]) == (
        404,
        "Request for unknown model: 'm2' has no available versions",
    )
    assert zoo.get("/models/m2/health-check")["status"] == "UNKNOWN"
    assert "is not loaded" in zoo.client.post("/models/m2/predictions", json={}).json()["error"]
    assert zoo.control("m2", "load").status_code == 200
    assert zoo.ask("m2") == "2:"
    assert zoo.control("nope", "unload").status_code == 404


def test_load_of_what_is_new_and_of_what_fails(zoo: Zoo) -> None:
    missing = zoo.control("late", "load")
    assert (missing.status_code, missing.json()["error"]) == (
        404,
        "failed to load 'late', failed to poll from model repository",
    )
    write_model(zoo.root / "late", BROKEN)
    failed = zoo.control("late", "load")
    assert (failed.status_code, failed.json()["error"]) == (
        400,
        "load failed for model 'late': version 1 is at UNAVAILABLE state: setup() failed: ValueError: no weights;",
    )
    echo(zoo.root / "late", "late:")
    assert zoo.control("late", "load").status_code == 200
    assert zoo.ask("late") == "late:"
    write_model(zoo.root / "late", BROKEN)
    assert zoo.control("late", "load").status_code == 400
    assert zoo.ask("late") == "late:"  # by the one before
    state, reason = zoo.index()["late", "1"]
    assert (state, reason.startswith("reload failed: ")) == ("READY", True)


def test_metrics_count_for_each_version(zoo: Zoo) -> None:
    zoo.ask("versions", version="2")
    response = zoo.client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    values = dict(line.rsplit(" ", 1) for line in response.text.splitlines() if not line.startswith("#"))
    assert float(values['nv_inference_request_success{model="versions",version="2"}']) >= 1
    assert values['geartrain_slots{model="m5",version="1"}'] == "1.0"
    assert values['nv_inference_request_failure{model="m5",reason="REJECTED",version="1"}'] == "0.0"
    broken = [name for name in values if 'model="broken"' in name]
    assert broken == ['geartrain_model_load_failed{model="broken",version="1"}']


async def test_a_hundred_reloads_under_load_lose_no_request(zoo: Zoo) -> None:
    names = [f"m{number}" for number in range(10, 20)]
    statuses: Counter[int] = Counter()
    is_over = False

    async with httpx.AsyncClient(base_url=zoo.url, timeout=60) as client:

        async def load(name: str) -> None:
            while not is_over:
                body = {"input": {"text": "x"}}
                statuses[(await client.post(f"/models/{name}/predictions", json=body)).status_code] += 1

        async def reload(name: str) -> None:
            for number in range(10):
                (zoo.root / name / "note.txt").write_text("x" * number)  # what has not changed is not loaded again
                response = await client.post(f"/v2/repository/models/{name}/load")
                assert response.status_code == 200, response.text

        asking = [asyncio.ensure_future(load(name)) for name in names]
        await asyncio.gather(*map(reload, names))
        is_over = True
        await asyncio.gather(*asking)
    assert set(statuses) == {200}, statuses
    assert statuses[200] > 100


# a server of one's own


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Zoo]]:
    zoos: list[Zoo] = []

    def start(root: Path, *arguments: str) -> Zoo:
        zoos.append(Zoo(root, *arguments))
        return zoos[-1]

    yield start
    for zoo in zoos:
        zoo.close()


def test_only_what_is_asked_for_is_loaded_and_one_is_at_the_root(start: Callable[..., Zoo], tmp_path: Path) -> None:
    for name in ("cats", "dogs", "birds"):
        echo(tmp_path / name, f"{name}:")
    zoo = start(tmp_path, "--load", "dogs", "--default-model", "cats")
    zoo.wait("ready")
    assert zoo.ask("dogs") == "dogs:"
    assert zoo.client.get("/v2/health/ready").status_code == 200
    assert zoo.index()["cats", ""] == ("", "")
    assert zoo.get("/health-check")["status"] == "UNKNOWN"
    refused = zoo.client.post("/predictions", json={"input": {}})
    assert (refused.status_code, "'cats' is not loaded" in refused.json()["error"]) == (503, True)
    assert zoo.control("cats", "load").status_code == 200
    assert zoo.get("/health-check")["status"] == "READY"
    for answer in ("cats:", "lions:", "tigers:"):
        echo(tmp_path / "cats", answer)
        assert zoo.control("cats", "load").status_code == 200
        assert zoo.client.post("/predictions", json={"input": {"text": "x"}}).json()["output"] == f"{answer}x"
    assert zoo.control("cats", "unload").status_code == 200
    assert zoo.client.post("/predictions", json={"input": {}}).status_code == 503


def test_files_that_change_reload_their_model(start: Callable[..., Zoo], tmp_path: Path) -> None:
    echo(tmp_path / "cats", "old:")
    echo(tmp_path / "dogs", "dog:")
    zoo = start(tmp_path, "--reload")
    zoo.wait("ready", "ready", "watching")
    echo(tmp_path / "cats", "new:")
    assert zoo.wait("ready")[0]["model"] == "cats"
    assert zoo.ask("cats") == "new:"
    (tmp_path / "cats" / "run.py").write_text("def run(")
    assert "SyntaxError" in zoo.wait("reload-failed")[0]["text"]
    assert zoo.ask("cats") == "new:"
    echo(tmp_path / "birds", "bird:")
    assert zoo.wait("ready")[0]["model"] == "birds"
    shutil.rmtree(tmp_path / "dogs")
    assert zoo.wait("unloaded")[0]["model"] == "dogs"
    assert (zoo.ask("birds"), zoo.ask("cats")) == ("bird:", "new:")


def test_a_model_that_is_served_alone_is_reloaded_too(start: Callable[..., Zoo], tmp_path: Path) -> None:
    echo(tmp_path, "old:")
    zoo = start(tmp_path, "--reload")
    zoo.wait("ready", "watching")
    (tmp_path / "output.txt").write_text("what a model writes does not reload it")
    for answer in ("new:", "newer:"):
        echo(tmp_path, answer)
        assert "version" not in zoo.wait("ready")[0]
        assert zoo.client.post("/predictions", json={"input": {"text": "x"}}).json()["output"] == f"{answer}x"
    os.kill(zoo.process.popen.pid, signal.SIGTERM)
    assert zoo.process.popen.wait(10) == 0


async def test_a_replica_that_is_killed_fails_only_its_own(start: Callable[..., Zoo], tmp_path: Path) -> None:
    write_model(tmp_path / "model", WAITING)
    (tmp_path / "model" / "geartrain.yaml").write_text("replicas: 2\nslots: 1\n")
    zoo = start(tmp_path / "model", "--queue", "100", "--restart", "on-crash")
    zoo.wait("ready")
    async with httpx.AsyncClient(base_url=zoo.url, timeout=60) as client:

        async def ask(seconds: float) -> dict[str, Any]:
            response = await client.post("/predictions", json={"input": {"seconds": seconds}})
            assert response.status_code == 200, response.text
            body: dict[str, Any] = response.json()
            return body

        first, second = await asyncio.gather(ask(0.2), ask(0.2))
        assert first["output"] != second["output"]  # the least busy one first: one each
        running = [asyncio.ensure_future(ask(0.4)) for _ in range(6)]
        while (await client.get("/health-check")).json()["status"] != "BUSY":
            pass
        os.kill(int(first["output"]), signal.SIGKILL)
        bodies = [await each for each in running]
        failed = [body for body in bodies if body["status"] == "failed"]
        assert len(failed) == 1, failed
        assert "SIGKILL" in failed[0]["error"]
        others = {body["output"] for body in bodies if body["status"] == "succeeded"}
        assert second["output"] in others
        assert first["output"] not in others
        health = (await client.get("/health-check")).json()
        assert health["status"] == "READY"
        assert health["restarts"]["count"] == 1
        assert len(health["replicas"]) == 2
