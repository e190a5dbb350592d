"""The waterfall of a run in the playground: its calls of models, with their times, depths, states and errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.browser import PHONE, Page
from tests.support.servers import ServerProcess, write_model

if TYPE_CHECKING:
    from selenium import webdriver

ECHO = """
    import time

    def run(text: str, seconds: float = 0.0) -> str:
        time.sleep(seconds)
        if text == "bad":
            raise ValueError("no such thing")
        return text
"""
MIDDLE = """
    import geartrain

    class Runner(geartrain.BaseRunner):
        def run(self, text: str) -> str:
            return geartrain.models["echo"](text=text, seconds=0.2)
"""
OUTER = """
    import geartrain

    class Runner(geartrain.BaseRunner):
        def run(self, text: str) -> str:
            first = geartrain.models["middle"](text="a")
            return first + geartrain.models["echo"](text=text)
"""
ROWS = """
    return [...document.querySelectorAll(".waterfall tbody tr")].map((row) => {
        const bars = [...row.querySelectorAll("rect:last-child")].map((bar) => bar.getBoundingClientRect());
        const name = row.querySelector("th");
        return {
            model: name.textContent,
            indent: parseFloat(getComputedStyle(name).paddingLeft),
            left: bars[0].left,
            right: bars[0].right,
            state: row.querySelector(".sign").textContent,
            error: row.querySelector(".waterfall-error")?.textContent ?? "",
        };
    });
"""
GROUPED = """
    import asyncio, os, geartrain

    class Runner(geartrain.BaseRunner):
        @geartrain.batched(max_size=2)
        async def run(self, text: list[str]) -> list[str]:
            while text[0].startswith("/") and not os.path.exists(text[0]):
                await asyncio.sleep(0.005)
            return [await geartrain.models["echo"](text=text[0])] * len(text)
"""


@pytest.fixture
def page(driver: webdriver.Chrome, tmp_path: Path) -> Iterator[Page]:
    for name, text in {"echo": ECHO, "middle": MIDDLE, "outer": OUTER, "grouped": GROUPED}.items():
        write_model(tmp_path / name, text)
    process = ServerProcess(str(tmp_path), grpc=("--grpc-port", "off"))
    try:
        url = f"{process.wait_for('listening')['url']}/"
        for _ in range(4):
            process.wait_for("ready")
        page = Page(driver, url)
        page.complaints()  # of pages before
        yield page
        assert page.complaints() == []
    finally:
        process.end()


def run(page: Page, model: str, text: str, status: str = "Succeeded") -> None:
    page.open_model(model)
    page.write("text", text)
    page.run(status)
    page.tab("details")


def test_the_calls_of_a_run_are_a_waterfall(page: Page) -> None:
    run(page, "outer", "b")
    page.until(lambda: len(page.all(".waterfall tbody tr")) == 4, "the run and three calls")
    whole, middle, inner, last = page.script(ROWS)
    assert [row["model"] for row in (whole, middle, inner, last)] == ["outer", "middle", "echo", "echo"]
    assert whole["indent"] < middle["indent"] < inner["indent"]
    assert middle["indent"] == last["indent"]
    assert whole["left"] <= middle["left"] <= inner["left"] < inner["right"] <= middle["right"] + 1
    assert middle["right"] - 1 <= last["left"] < last["right"] <= whole["right"] + 1
    assert inner["right"] - inner["left"] > 0.5 * (whole["right"] - whole["left"])
    assert {row["state"] for row in (whole, middle, inner, last)} == {"Succeeded"}
    assert page.faults() == []
    assert not page.is_too_wide()


def test_a_call_that_has_failed_has_its_error(page: Page) -> None:
    run(page, "outer", "bad", "Failed")
    page.until(lambda: len(page.all(".waterfall-error")) == 1, "a call that has failed")
    rows = page.script(ROWS)
    assert [row["state"] for row in rows] == ["Failed", "Succeeded", "Succeeded", "Failed"]
    assert rows[3]["error"] == "ValueError: no such thing"
    assert page.faults() == []
    page.resize(PHONE)
    assert not page.is_too_wide()


def test_a_call_for_a_batch_says_so(page: Page, tmp_path: Path) -> None:
    def put(name: str, text: str) -> None:
        url = f"{page.url}models/grouped/predictions/{name}"
        answer = httpx.put(url, json={"input": {"text": text}}, headers={"prefer": "respond-async"})
        assert answer.status_code == HTTPStatus.ACCEPTED

    put("gate", str(tmp_path / "gate"))
    page.until(
        lambda: httpx.get(f"{page.url}models/grouped/predictions/gate").json()["status"] == "processing", "a run"
    )
    put("other", "a")
    page.open_model("grouped")
    page.write("text", "b")
    page.click("button.run")
    waiting = re.compile(r'^geartrain_predictions_waiting\{model="grouped".*\} 2[.]0$', re.MULTILINE)
    page.until(lambda: waiting.search(httpx.get(f"{page.url}metrics").text), "both in the queue")
    (tmp_path / "gate").touch()
    page.says(".result-head", "Succeeded")
    page.tab("details")
    page.until(lambda: "for a batch of 2" in page.text(".waterfall"), "the mark")
    assert page.faults() == []


def test_a_run_without_calls_has_no_waterfall(page: Page) -> None:
    run(page, "echo", "a")
    asked = "return performance.getEntriesByType('resource').some((each) => each.name.endsWith('/calls'))"
    page.until(lambda: page.script(asked), "an answer with no calls")
    assert page.all(".waterfall") == []
