"""Models written with `from cog import …`, in the older and the newer style, run unchanged."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from geartrain.domain.predictions.events import Completed, Output
from tests.support.servers import LiveServer, Serve
from tests.support.waiting import event_of

MODELS = Path(__file__).parents[1] / "models"


def data_url(text: str) -> str:
    return f"data:text/plain;base64,{base64.b64encode(text.encode()).decode()}"


@pytest.fixture
async def older(serve: Serve) -> AsyncIterator[LiveServer]:
    async with serve(MODELS / "cog_older") as server:
        yield server


@pytest.fixture
async def newer(serve: Serve) -> AsyncIterator[LiveServer]:
    async with serve(MODELS / "cog_newer") as server:
        yield server


@pytest.fixture
async def concurrent(serve: Serve) -> AsyncIterator[LiveServer]:
    async with serve(MODELS / "cog_async") as server:
        yield server


async def test_older_style_gets_every_kind_of_input(older: LiveServer) -> None:
    body = await older.predict(
        {
            "text": "you",
            "voice": "loud",
            "times": 2,
            "weights": [1, 2.5],
            "options": {"b": 1, "a": None},
            "attachment": data_url("twelve bytes"),
            "notes": data_url("first\nsecond"),
        }
    )
    assert body["status"] == "succeeded"
    lines = ["GOOD MORNING, YOU", "GOOD MORNING, YOU", "sum 3.5", "options ['a', 'b']", "12 bytes", "first"]
    assert body["output"] == [data_url(line) for line in lines]
    assert body["logs"] == "wrote 6 files\n"


async def test_older_style_has_its_defaults(older: LiveServer) -> None:
    body = await older.predict({"text": "you"})
    assert body["output"] == [data_url("Good morning, you")]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"text": ""}, '"" is shorter than 1 character'),
        ({"text": "x", "voice": "shy"}, '"shy" is not one of ["loud","quiet","plain"]'),
        ({"text": "x", "times": 9}, "9 is greater than the maximum of 5"),
        ({"text": "x", "weights": ["1"]}, '"1" is not of type "number"'),
    ],
)
async def test_older_style_has_its_constraints(older: LiveServer, wrong: dict[str, Any], message: str) -> None:
    response = await older.client.post("/predictions", json={"input": wrong})
    assert response.status_code == 422
    assert [error["msg"] for error in response.json()["detail"]] == [message]


async def test_newer_style_yields_a_text_in_pieces(newer: LiveServer) -> None:
    values = {"prompt": "Hi There", "case": "upper", "separator": "-", "token": "abc"}
    body = await newer.predict(values)
    assert body["output"] == ["HI", "-THERE"]
    assert body["logs"] == "token ********** has 3 characters\n"
    assert body["metrics"]["words"] == 2
    assert body["metrics"]["cog"] is True
    assert body["input"] == {**values, "token": "**********"}


async def test_newer_style_cleans_up_when_it_is_canceled(newer: LiveServer) -> None:
    headers = {"Prefer": "respond-async"}
    await newer.client.post("/predictions", json={"id": "w", "input": {"prompt": "a b", "pause": 60}}, headers=headers)
    prediction = newer.predictions.find("w")
    assert prediction is not None
    await event_of(prediction, Output)
    assert (await newer.client.post("/predictions/w/cancel")).status_code == 200
    await event_of(prediction, Completed)
    assert (prediction.status, prediction.chunks, prediction.logs) == ("canceled", [b'"a"'], "cleaned up\n")
    assert (await newer.health())["status"] == "READY"


async def test_newer_style_shows_its_choices(newer: LiveServer) -> None:
    schemas = (await newer.client.get("/openapi.json")).json()["components"]["schemas"]
    assert schemas["case"]["enum"] == ["upper", "lower"]
    assert schemas["separator"]["enum"] == [" ", "-", "_"]
    assert schemas["Output"]["x-cog-array-display"] == "concatenate"


@pytest.mark.one_server(reason="the predictions have to be in one worker")
async def test_async_style_runs_predictions_together(concurrent: LiveServer) -> None:
    bodies = await asyncio.gather(
        *(concurrent.predict({"labels": [f"l{index}"], "wait_for": 4, "shift": 0.5 + index}) for index in range(4))
    )
    assert sorted(body["output"]["running"] for body in bodies) == [1, 2, 3, 4]
    for index, body in enumerate(bodies):
        assert body["output"]["boxes"] == [{"label": f"l{index}", "left": 0, "top": index}]
        assert body["output"]["summary"] == f"l{index}"
        assert body["logs"] == f"found 1 of ['l{index}']\n"
