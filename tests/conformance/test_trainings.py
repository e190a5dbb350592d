"""Trainings over HTTP: Cog's documents where they speak of them, observed Cog, section 20, and D19."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openapi_spec_validator
import pytest
import pytest_asyncio

from geartrain.domain.predictions.lifecycle import Health
from geartrain.domain.predictions.prediction import Prediction
from tests.server.trainings import ASYNC, CONFIG, RUN, TRAIN, url, write
from tests.support import modes
from tests.support.servers import LiveServer, Serve, eventually, write_model
from tests.support.wire import connection

if TYPE_CHECKING:
    import httpx

pytestmark = pytest.mark.asyncio(loop_scope="module")

COGS_EXAMPLE = """
    from cog import BasePredictor, File
    import io

    def train(data: str) -> File:
        return io.StringIO(data)
"""
PYDANTIC = """
    from pydantic import BaseModel
    from cog import Path

    class TrainingOutput(BaseModel):
        weights: Path

    def train(data: str) -> TrainingOutput:
        with open("weights", "w") as weights:
            weights.write(data)
        return TrainingOutput(weights=Path("weights"))
"""


def decoded(output: Any) -> Any:
    """An output with the content of its files in the place of their URLs."""
    if isinstance(output, dict):
        return {name: decoded(value) for name, value in output.items()}
    if isinstance(output, str) and output.startswith("data:"):
        return base64.b64decode(output.partition(",")[2])
    return output


class Trainer:
    """Speaks to the training endpoints of a server."""

    def __init__(self, server: LiveServer) -> None:
        self.server = server
        self.runs = server.of_trainings()
        self.client = server.client
        self.said, self.ended = self.runs.said, self.runs.ended
        self.open_gate = server.open_gate

    async def post(
        self, values: dict[str, Any], *, headers: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        response = await self.client.post("/trainings", json={"input": values, **more}, headers=headers)
        assert response.headers["content-type"] == "application/json"
        return response

    async def train(self, **values: Any) -> dict[str, Any]:
        """A training to its end."""
        response = await self.post({"data": "ab", **values})
        assert response.status_code == 200, response.text
        body: dict[str, Any] = response.json()
        return body

    async def begin(self, training_id: str, **values: Any) -> Prediction:
        """A training in the background that has begun to run."""
        response = await self.post({"data": "ab", **values}, headers=ASYNC, id=training_id)
        assert response.status_code == 202, response.text
        return await self.said(training_id, "training\n")

    def gate(self) -> str:
        """A gate for the model to wait at; see `open_gate`."""
        return str(self.server.root / "go")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveServer]:
    async with serve_shared(write(tmp_path_factory.mktemp("shared") / "model")) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def trainer(server: LiveServer) -> AsyncIterator[Trainer]:
    trainer = Trainer(server)
    yield trainer
    if not modes.current().is_replicated:
        workers = trainer.runs.workers
        await eventually(lambda: workers.health is not Health.READY or workers.permits.idle == 1)
        del trainer.runs.deployment.create
    (server.root / "go").unlink(missing_ok=True)


@pytest.fixture
def serve_trainer(serve: Serve, tmp_path: Path) -> Callable[..., contextlib.AbstractAsyncContextManager[Trainer]]:
    """Serve a model of the test's own; arguments as of `write`."""

    @contextlib.asynccontextmanager
    async def start(train: str = TRAIN, config: str = CONFIG, run: str = RUN, **options: Any) -> AsyncIterator[Trainer]:
        async with serve(write(tmp_path / "model", train, config, run), **options) as server:
            yield Trainer(server)

    return start


ServeTrainer = Callable[..., contextlib.AbstractAsyncContextManager[Trainer]]


# like predictions


@pytest.mark.one_server(reason="each replica prints what it does to set up its first training")
async def test_training_is_answered_as_a_prediction_is(trainer: Trainer) -> None:
    await trainer.train()
    response = await trainer.post({"data": "ab", "epochs": 2, "token": "s3cret"}, id="t1", context={"user": "u"})
    assert response.status_code == 200
    body = response.json()
    assert list(body) == sorted(body)
    assert body.pop("metrics").pop("epochs") == 2
    assert {name for name in body if name.endswith("_at")} == {"created_at", "started_at", "completed_at"}
    assert {name: value for name, value in body.items() if not name.endswith("_at")} == {
        "id": "t1",
        "input": {"data": "ab", "epochs": 2, "token": "**********"},
        "logs": "training\n",
        "output": {"epochs": 2, "weights": url("abab")},
        "status": "succeeded",
    }


async def test_generated_ids_look_as_those_of_predictions(trainer: Trainer) -> None:
    ids = {(await trainer.train())["id"] for _ in range(2)}
    assert len(ids) == 2
    assert all(training_id.startswith("pred_") for training_id in ids)


async def test_training_in_the_background(trainer: Trainer) -> None:
    response = await trainer.post({"data": "ab", "gate": trainer.gate()}, headers=ASYNC, id="b1")
    assert response.status_code == 202
    body = response.json()
    assert (body["id"], body["status"], "output" in body) == ("b1", "starting", False)
    training = await trainer.said("b1", "training\n")
    assert (await trainer.client.get("/trainings/b1")).json()["status"] == "processing"
    trainer.open_gate()
    await trainer.ended(training.id)
    body = (await trainer.client.get("/trainings/b1")).json()
    assert (body["status"], body["output"]) == ("succeeded", {"epochs": 1, "weights": url("ab")})
    unknown = await trainer.client.get("/trainings/b2")
    assert unknown.status_code == 404
    assert unknown.json()["error"].startswith("No such training")


async def test_put_runs_a_training_and_joins_one_that_runs(trainer: Trainer) -> None:
    first = await trainer.client.put("/trainings/p1", json={"input": {"data": "a"}})
    assert (first.status_code, first.json()["id"]) == (200, "p1")
    training = await trainer.begin("p2", gate=trainer.gate())
    for headers in ({}, ASYNC):
        again = await trainer.client.put("/trainings/p2", json={"input": {"data": 7}}, headers=headers)
        assert again.status_code == 202
        assert (again.json()["status"], again.json()["logs"]) == ("processing", training.logs)
    trainer.open_gate()
    await trainer.ended(training.id)
    assert list(trainer.runs._admitted) == ["p1", "p2"]


async def test_put_with_another_id_in_the_body(trainer: Trainer) -> None:
    response = await trainer.client.put("/trainings/x", json={"id": "y", "input": {"data": "a"}})
    assert response.status_code == 422
    msg = "training ID must match the ID supplied in the URL"
    assert response.json() == {"detail": [{"loc": ["body", "id"], "msg": msg, "type": "value_error"}]}
    assert (await trainer.client.put("/trainings/x", json={"id": "x", "input": {"data": "a"}})).status_code == 200


@pytest.mark.one_server(reason="another replica has a free slot")
async def test_one_training_at_a_time(trainer: Trainer) -> None:
    training = await trainer.begin("o1", gate=trainer.gate())
    for response in (
        await trainer.post({"data": "a"}),
        await trainer.client.put("/trainings/o2", json={"input": {"data": "a"}}),
    ):
        assert response.status_code == 409
        assert response.json() == {
            "error": "At capacity - all prediction slots busy (--queue lets requests wait)",
            "status": "failed",
        }
    same = await trainer.post({"data": "a"}, id="o1")
    assert same.status_code == 409
    assert same.json()["error"].startswith("Training 'o1' is still running.")
    assert (await trainer.server.predict({"text": "p"}))["output"] == "predicted p"
    assert (await trainer.server.health())["status"] == "READY"
    trainer.open_gate()
    await trainer.ended(training.id)


@pytest.mark.parametrize(
    ("values", "loc", "msg", "kind"),
    [
        ({}, "data", "Field required", "value_error.missing"),
        ({"data": 7}, "data", '7 is not of type "string"', "value_error"),
        ({"data": "a", "epochs": 10}, "epochs", "10 is greater than the maximum of 9", "value_error"),
        ({"data": "a", "text": "b"}, "text", None, "value_error.extra"),  # an input of predictions
    ],
)
async def test_wrong_input(trainer: Trainer, values: dict[str, Any], loc: str, msg: str | None, kind: str) -> None:
    response = await trainer.post(values)
    assert response.status_code == 422
    (error,) = response.json()["detail"]
    assert (error["loc"], error["type"]) == (["body", "input", loc], kind)
    assert msg is None or error["msg"] == msg


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [("{bad", "application/json", 400), ("{}", "text/plain", 415), ('{"id":5}', "application/json", 422)],
)
async def test_wrong_body(trainer: Trainer, body: str, content_type: str, status: int) -> None:
    response = await trainer.client.post("/trainings", content=body, headers={"content-type": content_type})
    assert response.status_code == status


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json;q=0.5, text/event-stream"])
@pytest.mark.parametrize("prefer", [{}, ASYNC])
async def test_trainings_do_not_stream(trainer: Trainer, accept: str, prefer: dict[str, str]) -> None:
    headers = {"accept": accept, **prefer}
    for response in (
        await trainer.post({"data": "a"}, headers=headers),
        await trainer.client.put("/trainings/s1", json={"input": {"data": "a"}}, headers=headers),
        await trainer.client.put("/trainings/s1", json={"id": "s2"}, headers=headers),
    ):
        assert response.status_code == 406
        assert response.content == b'{"error":"Training endpoints do not support streaming responses."}'
    assert not trainer.runs._admitted


async def test_cancel(trainer: Trainer) -> None:
    training = await trainer.begin("c1", gate="/never")
    assert (await trainer.client.post("/predictions/c1/cancel")).status_code == 404
    for _ in range(2):
        response = await trainer.client.post("/trainings/c1/cancel")
        assert (response.status_code, response.content) in {(200, b"{}"), (404, b"{}")}
    assert (await trainer.ended(training.id)).status == "canceled"
    response = await trainer.client.post("/trainings/c1/cancel")
    assert (response.status_code, response.content) == (404, b"{}")
    assert (await trainer.train())["status"] == "succeeded"


async def test_client_that_hangs_up_cancels_its_training(trainer: Trainer) -> None:
    body = json.dumps({"id": "h1", "input": {"data": "a", "gate": "/never"}}).encode()
    async with connection(trainer.server.url) as wire:
        head = f"POST /trainings HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        await wire.send(f"{head}\r\n\r\n".encode() + body)
        training = await trainer.said("h1", "training\n")
        wire.hang_up()
    assert (await trainer.ended(training.id)).status == "canceled"


async def test_training_that_raises(trainer: Trainer) -> None:
    body = await trainer.train(mode="raise")
    assert (body["status"], body["error"]) == ("failed", "ValueError: nothing learned")
    assert body["logs"].endswith("ValueError: nothing learned\n")
    assert "output" not in body


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        pytest.param("/trainings", {"POST"}, marks=pytest.mark.without_store(reason="GET lists what the store knows")),
        ("/trainings/x", {"GET", "HEAD", "PUT"}),
        ("/trainings/x/cancel", {"POST"}),
    ],
)
async def test_wrong_method_is_405(server: LiveServer, path: str, methods: set[str]) -> None:
    for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"} - methods:
        response = await server.client.request(method, path)
        assert response.status_code == 405, method
        assert set(response.headers["allow"].split(", ")) == methods


@pytest.mark.parametrize("path", ["/trainings/", "/trainings//cancel", "/trainings/x/y", "/trainings/x/", "/Trainings"])
async def test_unknown_path_is_404(server: LiveServer, path: str) -> None:
    assert (await server.client.post(path)).status_code == 404


async def test_id_is_percent_decoded_once(trainer: Trainer) -> None:
    body = b'{"input":{"data":"a"}}'
    lines = [
        "PUT /trainings/r%2F3%20x HTTP/1.1",
        "host: t",
        "content-type: application/json",
        f"content-length: {len(body)}",
    ]
    async with connection(trainer.server.url) as wire:
        answer = await wire.ask("\r\n".join((*lines, "", "")).encode() + body)
        assert (answer.status, answer.json()["id"]) == (200, "r/3 x")


@pytest.mark.one_server(reason="links begin with the route prefix of the application")
async def test_discovery_names_the_endpoints(server: LiveServer) -> None:
    urls = (await server.client.get("/")).json()
    assert {name: url for name, url in urls.items() if name.startswith("trainings")} == {
        "trainings_url": "/trainings",
        "trainings_idempotent_url": "/trainings/{training_id}",
        "trainings_cancel_url": "/trainings/{training_id}/cancel",
    }
    assert urls["predictions_url"] == "/predictions"


async def test_webhook_of_a_training(trainer: Trainer) -> None:
    heard: list[dict[str, Any]] = []

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        heard.append(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(receive, "127.0.0.1", 0) as receiver:
        hook = f"http://127.0.0.1:{receiver.sockets[0].getsockname()[1]}/"
        response = await trainer.post(
            {"data": "ab"}, id="w1", webhook=hook, webhook_events_filter=["start", "completed"], headers=ASYNC
        )
        assert response.status_code == 202
        await eventually(lambda: len(heard) == 2)
    assert [(body["id"], body["status"]) for body in heard] == [("w1", "starting"), ("w1", "succeeded")]
    assert heard[1]["output"] == {"epochs": 1, "weights": url("ab")}


# the document


async def test_openapi_describes_trainings_without_setting_one_up(serve_trainer: ServeTrainer) -> None:
    async with serve_trainer() as trainer:
        document = (await trainer.client.get("/openapi.json")).json()
        assert not (trainer.server.root / "setups").exists()
        openapi_spec_validator.validate(document)
        assert {"/trainings", "/trainings/{training_id}", "/trainings/{training_id}/cancel"} < set(document["paths"])
        schemas = document["components"]["schemas"]
        assert schemas["TrainingInput"]["required"] == ["data"]
        assert list(schemas["TrainingInput"]["properties"]["epochs"].items()) >= [("default", 1)]
        assert schemas["TrainingOutput"]["properties"]["weights"]["format"] == "uri"
        assert {"TrainingRequest", "TrainingResponse", "Input", "PredictionRequest"} < set(schemas)
        assert schemas["TrainingRequest"]["properties"]["input"] == {"$ref": "#/components/schemas/TrainingInput"}


async def test_training_that_cannot_be_loaded_takes_nothing_from_predictions(serve_trainer: ServeTrainer) -> None:
    async with serve_trainer("import no_such_library\n") as trainer:
        document = (await trainer.client.get("/openapi.json")).json()
        assert "/predictions" in document["paths"]
        assert "/trainings" not in document["paths"]
        for _ in range(2):
            response = await trainer.post({})
            assert response.status_code == 503
            assert response.json()["error"].startswith("The training cannot be loaded: train.py:1: ModuleNotFoundError")
        assert (await trainer.client.post("/trainings/x/cancel")).status_code == 404
        assert (await trainer.server.predict({"text": "p"}))["output"] == "predicted p"


# its worker


async def test_worker_is_started_when_first_needed_and_kept(serve_trainer: ServeTrainer) -> None:
    async with serve_trainer() as trainer:
        assert trainer.server.trainings is not None
        assert trainer.server.trainings._loading is None
        await trainer.server.predict()
        assert not (trainer.server.root / "setups").exists()
        assert (await trainer.post({})).status_code == 422  # as it is known after loading
        assert not (trainer.server.root / "setups").exists()
        assert (await trainer.train())["logs"] == "setting up to train\ntraining\n"
        assert (await trainer.train())["logs"] == "training\n"
        assert (trainer.server.root / "setups").exists()
        assert "setting up to train" not in json.dumps(await trainer.server.health())


async def test_worker_without_work_ends(serve_trainer: ServeTrainer) -> None:
    async with serve_trainer(training_idle=0) as trainer:
        for _ in range(2):
            body = await trainer.train()
            assert body["logs"] == "setting up to train\ntraining\n"
            assert body["output"]["weights"] == url("ab")


async def test_cancel_during_setup(serve_trainer: ServeTrainer) -> None:
    async with serve_trainer() as trainer:
        (trainer.server.root / "slow setup").touch()
        assert (await trainer.post({"data": "a"}, headers=ASYNC, id="c")).status_code == 202
        training = await trainer.said("c", "setting up to train\n")
        assert (await trainer.client.post("/trainings/c/cancel")).status_code == 200
        assert (await trainer.ended(training.id)).status == "canceled"
        trainer.server.open_gate("go")
        assert (await trainer.train())["status"] == "succeeded"


async def test_setup_that_fails_fails_the_training(serve_trainer: ServeTrainer) -> None:
    async with serve_trainer() as trainer:
        bad = trainer.server.root / "bad setup"
        bad.touch()
        body = await trainer.train()
        assert (body["status"], body["error"]) == ("failed", "setup() failed: RuntimeError: no base model")
        assert body["logs"].startswith("setting up to train\n")
        assert body["logs"].endswith("RuntimeError: no base model\n")
        assert (await trainer.server.health())["status"] == "READY"
        bad.unlink()
        assert (await trainer.train())["status"] == "succeeded"


async def test_setup_that_takes_too_long(serve_trainer: ServeTrainer) -> None:
    async with serve_trainer(setup_timeout=1) as trainer:
        (trainer.server.root / "slow setup").touch()
        body = await trainer.train()
        assert (body["status"], body["error"]) == ("failed", "worker setup timed out after 1 seconds")


async def test_worker_that_dies_takes_one_training_with_it(serve_trainer: ServeTrainer) -> None:
    async with serve_trainer() as trainer:
        body = await trainer.train(mode="die")
        assert (body["status"], body["error"]) == ("failed", "Worker crashed: exited with code 3")
        assert (await trainer.server.health())["status"] == "READY"
        assert (await trainer.server.predict({"text": "p"}))["output"] == "predicted p"
        assert (await trainer.train())["logs"] == "setting up to train\ntraining\n"


async def test_concurrency_of_predictions_is_not_that_of_trainings(serve_trainer: ServeTrainer) -> None:
    run = "async def run(text: str = '') -> str:\n        return text"
    config = "run: run.py:run\ntrain: train.py:Trainer\nconcurrency:\n  max: 4\n"
    async with serve_trainer(config=config, run=run) as trainer:
        assert trainer.server.workers.permits.size == 4
        assert (await trainer.train())["status"] == "succeeded"
        assert trainer.runs.workers.permits.size == 1


# D19: training endpoints run the training, or are not there


@pytest.mark.parametrize("path", ["/trainings", "/trainings/x", "/trainings/x/cancel"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
async def test_d19_no_training_no_endpoints(serve: Serve, tmp_path: Path, method: str, path: str) -> None:
    async with serve(write_model(tmp_path / "model", RUN)) as server:
        response = await server.client.request(method, path, json={"input": {"text": "a"}})
        assert response.status_code == 404
        assert set(response.json()) == {"error"}
        sse = await server.client.request(method, path, headers={"accept": "text/event-stream"})
        assert sse.status_code == 404
        assert not any("training" in name for name in (await server.client.get("/")).json())
        assert not any("raining" in name for name in (await server.client.get("/openapi.json")).json()["paths"])
        assert not (server.root / "predicted").exists()


async def test_d19_trainings_never_predict(serve_trainer: ServeTrainer) -> None:
    async with serve_trainer() as trainer:
        assert (await trainer.post({"text": "a"})).status_code == 422
        await trainer.train()
        await trainer.client.put("/trainings/x", json={"input": {"data": "a"}})
        await trainer.post({"data": "a"}, headers=ASYNC, id="y")
        await trainer.ended("y")
        assert not (trainer.server.root / "predicted").exists()
        await trainer.server.predict()
        assert (trainer.server.root / "predicted").read_text() == "x"


async def test_d19_train_mode_never_trains_for_a_prediction(serve_trainer: ServeTrainer) -> None:
    async with serve_trainer(mode="train") as trainer:
        for method, path in (
            ("POST", "/predictions"),
            ("PUT", "/predictions/x"),
            ("POST", "/predictions/x/cancel"),
            ("GET", "/predictions/x"),
        ):
            response = await trainer.client.request(method, path, json={"input": {"data": "a"}})
            assert response.status_code == 404
            assert set(response.json()) == {"error"}
        assert not trainer.runs._admitted
        assert not (trainer.server.root / "weights.bin").exists()
        assert not (trainer.server.root / "predicted").exists()


# train mode


async def test_train_mode_sets_the_training_up_at_once(serve_trainer: ServeTrainer) -> None:
    async with serve_trainer(mode="train") as trainer:
        assert (await trainer.server.health())["setup"]["logs"] == "setting up to train\n"
        body = await trainer.train(epochs=2)
        assert (body["logs"], body["output"]) == ("training\n", {"epochs": 2, "weights": url("abab")})
        assert (await trainer.post({"data": "a"}, headers={"accept": "text/event-stream"})).status_code == 406
        urls = (await trainer.client.get("/")).json()
        assert "trainings_url" in urls
        assert "predictions_url" not in urls
        document = (await trainer.client.get("/openapi.json")).json()
        openapi_spec_validator.validate(document)
        assert "/trainings" in document["paths"]
        assert "/predictions" not in document["paths"]
        assert document["components"]["schemas"]["TrainingInput"]["required"] == ["data"]


async def test_train_mode_health_is_that_of_the_training(serve_trainer: ServeTrainer) -> None:
    train = TRAIN + (
        "\n        def healthcheck(self) -> bool:\n            return not LocalPath('unhealthy').exists()\n"
    )
    async with serve_trainer(train, mode="train") as trainer:
        assert (await trainer.server.health())["status"] == "READY"
        training = await trainer.begin("b", gate=trainer.gate())
        assert (await trainer.server.health())["status"] == "BUSY"
        assert (await trainer.post({"data": "a"})).status_code == 409
        trainer.open_gate()
        await trainer.ended(training.id)
        (trainer.server.root / "unhealthy").touch()
        assert (await trainer.server.health())["status"] == "UNHEALTHY"


async def test_train_mode_with_a_training_that_cannot_be_set_up(
    serve_trainer: ServeTrainer, setup_ends: Callable[[LiveServer], Any]
) -> None:
    async with serve_trainer("def train() -> str: 1 1", mode="train", ready=False) as trainer:
        await setup_ends(trainer.server)
        assert (await trainer.server.health())["status"] == "SETUP_FAILED"
        assert (await trainer.post({})).status_code == 503
        assert (await trainer.client.get("/openapi.json")).status_code == 503


async def test_healthcheck_is_of_predictions_alone(serve_trainer: ServeTrainer) -> None:
    train = TRAIN + "\n        def healthcheck(self) -> bool:\n            return False\n"
    async with serve_trainer(train) as trainer:
        await trainer.train()
        assert (await trainer.server.health())["status"] == "READY"


# forms of a training


@pytest.mark.parametrize(
    ("reference", "train", "output"),
    [
        ("train.py:train", "def train(data: str) -> str:\n    return data * 2", "abab"),
        ("train.py", "def train(data: str) -> str:\n    return data * 2", "abab"),
        ("train:train", "async def train(data: str) -> str:\n    return data", "ab"),
        ("train.py:T", "class T:\n    def train(self, data: str) -> int:\n        return len(data)", 2),
        ("train.py", "class Trainer:\n    async def train(self, data: str) -> int:\n        return len(data)", 2),
        ("train.py:train", COGS_EXAMPLE, b"ab"),
        ("train.py:train", "from cog import Path\ndef train(data: Path) -> Path:\n    return data", b"ab"),
        ("train.py:train", "def train(data: str):\n    yield from data", ["a", "b"]),
        ("train.py:train", PYDANTIC, {"weights": b"ab"}),
    ],
)
async def test_forms_of_a_training(serve_trainer: ServeTrainer, reference: str, train: str, output: Any) -> None:
    async with serve_trainer(train, f"run: run.py:Runner\ntrain: {reference}\n") as trainer:
        body = await trainer.train(data=url("ab") if "data: Path" in train else "ab")
        assert body["status"] == "succeeded", body
        assert decoded(body["output"]) == output


async def test_class_that_predicts_and_trains(serve_trainer: ServeTrainer) -> None:
    run = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def setup(self, weights: str = None) -> None:
            self.base = "base"

        def run(self, text: str = "") -> str:
            return f"{self.base} predicts"

        def train(self, data: str) -> str:
            return f"{self.base} learns {data}"
    """
    config = "run: run.py:Runner\ntrain: run.py:Runner\n"
    async with serve_trainer(run=run, config=config) as trainer:
        assert (await trainer.server.predict())["output"] == "base predicts"
        assert (await trainer.train())["output"] == "base learns ab"


async def test_class_without_train(serve_trainer: ServeTrainer) -> None:
    async with serve_trainer(config="run: run.py:Runner\ntrain: run.py:Runner\n") as trainer:
        response = await trainer.post({})
        assert response.status_code == 503
        assert "the class Runner has no train(): write the method train()" in response.json()["error"]
