"""What examples/ holds does what the pages say."""

from __future__ import annotations

import base64
import io
import json
import re
import wave
from pathlib import Path

import pytest
from PIL import Image

from geartrain import Client, testing
from geartrain.domain.predictions.events import Completed, Output
from tests.support.servers import Serve
from tests.support.waiting import event_of

ROOT = Path(__file__).parents[2]


async def test_digits_reads_its_pictures(serve: Serve) -> None:
    page = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
    found = re.search(r"image=@examples/digits/three.png\n.*\n(\{\n[^}]*\})", page)
    assert found
    shown = json.loads(found[1])
    async with serve(ROOT / "examples/digits") as server:
        for name, digit in (("three", 3), ("seven", 7)):
            picture = base64.b64encode((ROOT / f"examples/digits/{name}.png").read_bytes()).decode()
            body = await server.predict({"image": f"data:image/png;base64,{picture}"})
            assert body["status"] == "succeeded", body
            assert body["output"]["digit"] == digit
            assert body["output"]["probabilities"][digit] > 0.9
            if digit == shown["digit"]:
                assert body["output"]["probabilities"] == pytest.approx(shown["probabilities"], abs=0.02)
        body = await server.predict({"image": "data:image/png;base64,bm8gcGljdHVyZQ=="})
        assert body["status"] == "failed"
        assert "cannot identify image file" in body["error"]


async def test_hello_greets(serve: Serve) -> None:
    async with serve(ROOT / "examples/hello") as server:
        assert (await server.predict())["output"] == "Hello, world!"
        assert (await server.predict({"name": "Ada"}))["output"] == "Hello, Ada!"


async def test_speech_speaks(serve: Serve) -> None:
    async with serve(ROOT / "examples/speech") as server:
        lengths = []
        for speed in (1, 2):
            body = {"model": server.deployment.name, "input": "good day", "voice": "high", "speed": speed}
            response = await server.client.post("/v1/audio/speech", json=body)
            assert response.headers["content-type"] == "audio/wav"
            with wave.open(io.BytesIO(response.content)) as sound:
                lengths.append(sound.getnframes())
        assert lengths == [8 * 1280, 8 * 640]


async def test_slow_counter_can_be_canceled(serve: Serve) -> None:
    async with serve(ROOT / "examples/slow_counter") as server:
        assert (await server.predict({"up_to": 3, "pause": 0}))["output"] == [1, 2, 3]
        headers = {"Prefer": "respond-async"}
        await server.client.post("/predictions", json={"id": "c", "input": {"pause": 60}}, headers=headers)
        prediction = server.predictions.find("c")
        assert prediction is not None
        await event_of(prediction, Output)
        await server.client.post("/predictions/c/cancel")
        await event_of(prediction, Completed)
        assert (prediction.status, prediction.chunks) == ("canceled", [b"1"])
        assert prediction.logs == "counting 1 of 10\ncanceled at 1\n"


async def test_thumbnails_are_as_wide_as_they_shall_be(serve: Serve) -> None:
    picture = base64.b64encode((ROOT / "examples/digits/three.png").read_bytes()).decode()
    async with serve(ROOT / "examples/thumbnails") as server:
        body = await server.predict({"image": f"data:image/png;base64,{picture}", "widths": [8, 300]})
        assert body["status"] == "succeeded", body
        for url, width in zip(body["output"], (8, 300), strict=True):
            with Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,")))) as thumbnail:
                assert thumbnail.width == width


async def test_centroid_learns_what_it_then_knows(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ROOT / "examples/centroid"
    points = (model / "points.csv").read_text(encoding="utf-8")
    async with serve(model) as server:
        assert (await server.predict({"petal": [1.4, 0.2]}))["output"]["label"] == "setosa"
        data = base64.b64encode(points.replace("setosa", "iris").encode()).decode()
        response = await server.client.post("/trainings", json={"input": {"data": f"data:text/csv;base64,{data}"}})
        trained = response.json()
        assert (trained["status"], trained["output"]["points"], trained["metrics"]["labels"]) == ("succeeded", 9, 3)
    weights = tmp_path / "weights"
    weights.write_bytes(base64.b64decode(trained["output"]["weights"].partition(",")[2]))
    async with serve(model, environ={"COG_WEIGHTS": str(weights)}) as server:
        assert (await server.predict({"petal": [1.4, 0.2]}))["output"] == {"distance": 0.033, "label": "iris"}


def test_a_page_is_read_by_two_models_in_a_row() -> None:
    folder = ROOT / "examples/pipeline"
    with testing.serve(folder) as server, Client(server.url) as client:
        read = client.model("read_page").predict(image=folder / "page.png")
    assert read["digits"] == [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    assert len(read["boxes"]) == 10
