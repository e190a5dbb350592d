"""The calls of models that a prediction has made, as `GET /predictions/{id}/calls` tells them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from typer.testing import CliRunner

from geartrain.cli import predictions
from geartrain.domain.predictions.prediction import MAX_CALLS
from geartrain.transport.access.keys import Key, add_key, digest_of, new_key
from tests.support import modes
from tests.support.nested_calls import CROWD, ECHO, GROUPED, MIDDLE, MIDDLE_CALLS, OUTER, Live, outline
from tests.support.servers import PATIENCE, ServerProcess, write_model

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    root = tmp_path_factory.mktemp("calls")
    file, keys = root / "keys", {}
    for name in ("ada", "bob"):
        keys[name] = new_key()
        add_key(file, Key(name, ("predict", "read"), digest_of(keys[name])))
    models = {
        "echo": ECHO,
        "middle": MIDDLE,
        "outer": OUTER,
        "cached": OUTER,
        "brief": OUTER,
        "grouped": GROUPED,
        "crowd": CROWD,
    }
    for name, text in models.items():
        write_model(root / "models" / name, text)
    (root / "models/cached/geartrain.yaml").write_text("cache: true\n")
    (root / "models/brief/geartrain.yaml").write_text("timeout: 1s\n")
    (root / "models/steps").mkdir()
    (root / "models/steps/geartrain.yaml").write_text("pipeline: [{model: echo, output: text}, middle]\n")
    process = ServerProcess(str(root / "models"), "--keys", str(file))
    try:
        url = process.wait_for("listening")["url"]
        for _ in range(8):
            process.wait_for("ready")
        live = Live(url, keys)
        yield live
        await live.ada.aclose()
        await live.bob.aclose()
    finally:
        process.end()


async def test_calls_have_order_depth_and_times(live: Live) -> None:
    path = await live.put("outer", way="tree")
    found = await live.shown(path)
    calls = found["calls"]
    assert outline(calls) == [*MIDDLE_CALLS, (1, "echo", "succeeded"), *MIDDLE_CALLS]
    assert (found["id"], found["model"], found["status"], found["left_out"]) == (
        path.rpartition("/")[2],
        "outer",
        "succeeded",
        0,
    )
    first, second, _, third, fourth, _, last = calls
    assert {each["parent"] for each in (first, third, fourth)} == {found["id"]}
    assert (second["parent"], last["parent"]) == (first["id"], fourth["id"])
    moments = ["created_at", "started_at", "completed_at"]
    for each in calls:
        assert sorted(each[name] for name in moments) == [each[name] for name in moments]
        assert found["started_at"] <= each["created_at"] < each["completed_at"] <= found["completed_at"]
        assert each["version"] == "1"
        assert "error" not in each
    assert first["completed_at"] <= third["created_at"] <= third["completed_at"] <= fourth["created_at"]


async def test_calls_at_the_same_time_stay_with_their_callers(live: Live) -> None:
    calls = await live.calls("outer", way="both")
    assert outline(calls) == [*MIDDLE_CALLS, *MIDDLE_CALLS]
    assert [calls.index(each) for each in calls if each["parent"] == calls[3]["id"]] == [4, 5]


async def test_steps_of_a_pipeline_are_calls(live: Live) -> None:
    assert outline(await live.calls("steps", text="a")) == [(1, "echo", "succeeded"), *MIDDLE_CALLS]


GROUPED_CALLS = [(1, "echo", "failed"), *MIDDLE_CALLS]


@contextlib.asynccontextmanager
async def gathering(live: Live, gate: Path) -> AsyncIterator[None]:
    """The model `grouped` is busy: what comes meanwhile shares a run afterwards."""
    path = await live.put("grouped", later=True, text=str(gate))
    await live.until(path, lambda found: found["status"] == "processing")
    try:
        yield
    finally:
        gate.touch()  # noqa: ASYNC240 - it takes no time
    await live.until(path, is_over)


async def waiting(live: Live, count: int) -> None:
    """Wait until so many predictions wait for `grouped`."""
    line = re.compile(rf'^geartrain_predictions_waiting\{{model="grouped".*\}} {count}[.]0$', re.MULTILINE)
    async with asyncio.timeout(PATIENCE):
        while not line.search((await live.ada.get("/metrics")).text):  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.02)


def is_over(found: dict[str, Any]) -> bool:
    return "completed_at" in found


async def test_each_member_of_a_batch_has_the_calls_of_their_run(live: Live, tmp_path: Path) -> None:
    url, body = "/models/grouped/predictions", {"input": {"text": "c"}}
    async with asyncio.TaskGroup() as group, gathering(live, tmp_path / "go"):
        paths = [await live.put("grouped", later=True, text=text) for text in "ab"]
        group.create_task(live.ada.post(url, json=body))  # nobody can ask for its calls
        await waiting(live, 3)
    first, second = [(await live.until(path, is_over))["calls"] for path in paths]
    assert outline(first) == GROUPED_CALLS
    assert [each.get("shared") for each in first] == [3, 3, None, None]  # each run of `middle` is for one call
    assert first[0]["error"] == "ValueError: no such thing"
    ids = [path.rpartition("/")[2] for path in paths]
    assert [each["parent"] for each in first] == [ids[0], ids[0], first[1]["id"], first[1]["id"]]
    assert second == [{**each, "parent": ids[1]} if each["parent"] == ids[0] else each for each in first]


async def test_errors_of_calls_for_several_keys_are_shown_to_none(live: Live, tmp_path: Path) -> None:
    keys = [live.ada, live.ada, live.bob]
    async with gathering(live, tmp_path / "go"):
        paths = [await live.put("grouped", later=True, by=key, text="a") for key in keys]
    for key, path in zip(keys, paths, strict=True):
        calls = (await live.until(path, is_over, by=key))["calls"]
        assert outline(calls) == GROUPED_CALLS
        assert [each.get("shared") for each in calls] == [3, 3, None, None]
        assert "several keys" in calls[0]["error"]
        assert "no such thing" not in calls[0]["error"]
    assert (await live.bob.get(f"{paths[0]}/calls")).status_code == HTTPStatus.NOT_FOUND


async def test_calls_by_a_batch_of_calls_are_below_each_of_these(live: Live, tmp_path: Path) -> None:
    async with gathering(live, tmp_path / "go"):
        paths = [await live.put("crowd", later=True, text="a") for _ in range(3)]
        for path in paths:
            await live.until(path, lambda found: outline(found["calls"]) == [(1, "grouped", "starting")])
    found = [(await live.until(path, is_over))["calls"] for path in paths]
    deeper = [(depth + 1, model, status) for depth, model, status in GROUPED_CALLS]
    for calls in found:
        assert outline(calls) == [(1, "grouped", "succeeded"), *deeper]
        assert [each.get("shared") for each in calls] == [None, 3, 3, None, None]
        assert [each["parent"] for each in calls[1:3]] == [calls[0]["id"]] * 2
    assert len({calls[0]["id"] for calls in found}) == len(found)
    assert len({calls[2]["id"] for calls in found}) == 1


async def test_a_prediction_without_calls_has_an_empty_list(live: Live) -> None:
    assert await live.calls("outer", way="none") == []


async def test_failures_have_their_errors(live: Live) -> None:
    raised, refused, unknown, after = await live.calls("outer", way="failures")
    assert (raised["status"], raised["error"]) == ("failed", "ValueError: no such thing")
    assert raised["started_at"] <= raised["completed_at"]
    for each, error in ((refused, "text"), (unknown, "nobody")):
        assert each["status"] == "failed"
        assert error in each["error"]
        assert not {"id", "version", "started_at"} & each.keys()
        assert each["created_at"] <= each["completed_at"]
    assert after["status"] == "succeeded"
    found = await live.shown(await live.put("outer", way="uncaught"))
    assert (found["status"], outline(found["calls"])) == ("failed", [(1, "echo", "failed")])


async def test_a_call_that_its_caller_cancels(live: Live) -> None:
    path = await live.put("outer", way="job")  # which does not wait for the end of what it cancels
    found = await live.until(path, lambda found: "completed_at" in found["calls"][0])
    (call,) = found["calls"]
    assert (call["status"], "error" in call) == ("canceled", False)


async def test_calls_of_a_prediction_that_runs_and_is_canceled(live: Live) -> None:
    path = await live.put("outer", later=True, way="slow")
    found = await live.until(path, lambda found: [each["status"] for each in found["calls"]][1:] == ["processing"])
    assert "completed_at" not in found
    first, second = found["calls"]
    assert first["status"] == "succeeded"
    assert second["created_at"] <= second["started_at"]
    assert "completed_at" not in second
    await live.ada.post(f"{path}/cancel")
    await live.until(path, lambda found: found["status"] == "canceled")
    call = (await live.until(path, lambda found: "completed_at" in found["calls"][1]))["calls"][1]
    assert (call["status"], call["started_at"]) == ("canceled", second["started_at"])


async def test_calls_of_a_prediction_whose_time_is_up(live: Live) -> None:
    path = await live.put("brief", way="slow")
    found = await live.shown(path)
    assert found["status"] == "failed"
    assert found["calls"][0]["status"] == "succeeded"
    call = (await live.until(path, lambda found: "completed_at" in found["calls"][1]))["calls"][1]
    assert call["status"] == "canceled"


@pytest.mark.without_store(reason="the cache has no predictions that a store knows")
async def test_an_answer_from_the_cache_has_called_nothing(live: Live) -> None:
    assert outline(await live.calls("cached", way="tree")) == [
        *MIDDLE_CALLS,
        (1, "echo", "succeeded"),
        *MIDDLE_CALLS,
    ]
    assert await live.calls("cached", way="tree") == []


@pytest.mark.without_store(reason="the cache has no predictions that a store knows")
async def test_equal_requests_that_share_a_run_have_its_calls_while_it_goes_on(live: Live) -> None:
    def is_in_second(found: dict[str, Any]) -> bool:
        return outline(found["calls"]) == [(1, "echo", "succeeded"), (1, "echo", "processing")]

    first, second = [await live.put("cached", later=True, way="slow") for _ in range(2)]
    shown = [await live.until(path, is_in_second) for path in (first, second)]
    assert shown[0]["calls"][1]["id"] == shown[1]["calls"][1]["id"]
    await live.ada.post(f"{first}/cancel")
    assert is_in_second(await live.until(first, is_over))  # it goes on for the other one
    assert (await live.shown(second))["status"] == "processing"
    await live.ada.post(f"{second}/cancel")
    ended = await live.until(second, lambda found: "completed_at" in found["calls"][1])
    assert (ended["status"], ended["calls"][1]["status"]) == ("canceled", "canceled")


async def test_calls_beyond_the_bound_are_counted(live: Live) -> None:
    found = await live.shown(await live.put("outer", way="many"))
    assert (len(found["calls"]), found["left_out"]) == (MAX_CALLS, 300 - MAX_CALLS)


async def test_calls_are_told_to_the_key_that_made_the_prediction(live: Live) -> None:
    path = await live.put("outer", way="tree")
    unknown = await live.bob.get(f"{path}0/calls")
    assert unknown.status_code == HTTPStatus.NOT_FOUND
    assert (await live.bob.get(f"{path}/calls")).content == unknown.content
    assert (await live.bob.get(f"{path}/calls")).status_code == HTTPStatus.NOT_FOUND
    assert (await live.shown(path))["calls"]
    versioned = path.replace("/models/outer/", "/models/outer/versions/1/")
    assert (await live.ada.get(f"{versioned}/calls")).status_code == HTTPStatus.OK


def printed(live: Live, path: str) -> Any:
    """The result of `geartrain predictions show`."""
    key = live.ada.headers["authorization"].partition(" ")[2]
    url, _, name = path.partition("/predictions/")
    address = f"{live.ada.base_url}".rstrip("/")
    return CliRunner().invoke(predictions.app, ["show", f"{address}{url}", name, "--key", key])


async def test_the_command_line_shows_calls_as_a_table(live: Live, tmp_path: Path) -> None:
    if modes.current().scheme != "http":
        pytest.skip("the command line asks no server whose certificate is made up")

    path = await live.put("outer", way="failures")
    shown = printed(live, path)
    assert json.loads(shown.stdout)["id"] == path.rpartition("/")[2]
    head, *rows = shown.stderr.splitlines()
    assert head.split() == ["MODEL", "STATUS", "AFTER", "TIME", "ERROR"]
    assert [row.split()[:2] for row in rows] == [
        ["echo", "failed"],
        ["echo", "failed"],
        ["nobody", "failed"],
        ["echo", "succeeded"],
    ]
    assert rows[0].endswith(" s  ValueError: no such thing")
    _, *rows = printed(live, await live.put("outer", way="tree")).stderr.splitlines()
    assert [row.partition(" succeeded")[0].rstrip() for row in rows] == [
        "middle",
        "  echo",
        "  echo",
        "echo",
        "middle",
        "  echo",
        "  echo",
    ]
    assert printed(live, await live.put("outer", way="many")).stderr.splitlines()[-1] == f"and {300 - MAX_CALLS} more"
    assert printed(live, await live.put("outer", way="none")).stderr == ""
    async with gathering(live, tmp_path / "go"):
        paths = [await live.put("grouped", later=True, text="a") for _ in range(3)]
    await live.until(paths[-1], is_over)
    _, *rows = printed(live, paths[-1]).stderr.splitlines()
    assert [row.partition("  0.")[0].rstrip().split("  ")[-1].strip() for row in rows] == [
        "failed, for 3",
        "succeeded, for 3",
        "succeeded",
        "succeeded",
    ]
