"""The status page of models that call models: who calls whom, how often, and for how long."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from tests.support.browser import Page
from tests.support.servers import PATIENCE, ServerProcess, write_model

if TYPE_CHECKING:
    from selenium import webdriver

UPPER = "def run(text: str) -> str:\n    if text == 'bad': raise ValueError('no')\n    return text.upper()\n"


def test_the_graph_of_models_has_rates_and_times(driver: webdriver.Chrome, tmp_path: Path) -> None:
    write_model(tmp_path / "upper", UPPER)
    write_model(tmp_path / "join", "def run(text: str, mark: str = '!') -> str:\n    return text + mark\n")
    (tmp_path / "loud").mkdir()
    (tmp_path / "loud/geartrain.yaml").write_text("pipeline: [{model: upper, output: text}, join]\n")
    process = ServerProcess(str(tmp_path), grpc=("--grpc-port", "off"))
    try:
        url = f"{process.wait_for('listening')['url']}/"
        for _ in range(3):
            process.wait_for("ready")
        page = Page(driver, url)
        page.complaints()  # of pages before
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:

            def ask(text: str = "a") -> bool:
                answer = client.post("/models/loud/predictions", json={"input": {"text": text}})
                return bool(answer.json()["status"] == "succeeded")

            assert ask()
            page.open("status")
            page.until(lambda: len(page.all(".graph-model")) == 3, "three models")
            assert len(page.all(".graph-line")) == 2
            labels = "return [...document.querySelectorAll('.graph-label')].map((each) => each.textContent)"
            page.until(lambda: ask() and all("/s · " in label for label in page.script(labels)), "rates and times")
            assert not ask("bad")
            page.until(lambda: len(page.all(".graph-line.bad")) == 1, "a call that has failed")
            said = page.script("return document.querySelector('svg.graph').getAttribute('aria-label')")
            assert "loud calls upper" in said
            assert "1 failed" in said
            assert "loud" in page.text(".status-view .table-box tbody")
            page.choose_shown("#status-model", "join")
            page.until(lambda: len(page.all(".graph-model")) == 2, "the model and its caller")
            assert page.faults() == []
            assert not page.is_too_wide()
            assert page.complaints() == []
    finally:
        process.end()
