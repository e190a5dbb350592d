"""Tests of the model beside this file: `pytest`."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from geartrain.testing import InvalidInputError, runner, serve
from geartrain.testing.runs import Run

MODEL = Path(__file__).parent
PROMPTS = ["The north wind", "Along the road came", "Then the sun shone", "So", "They agreed that whoever"]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with runner(MODEL) as run:  # setup() runs once
        yield run


def test_continues_the_text(run: Run) -> None:
    pieces = run(prompt="The north wind", max_tokens=12)
    assert "".join(pieces).startswith(" and the sun disputed which of them was the stronger.")
    assert run.metrics["generated_tokens"] == 12


def test_prompt_that_is_too_long_is_refused(run: Run) -> None:
    with pytest.raises(Exception, match="this model takes fewer than 256"):
        run(prompt="sun " * 300)
    with pytest.raises(InvalidInputError, match="prompt"):
        run(prompt="")


def test_each_text_of_a_batch_is_what_it_is_alone(run: Run) -> None:
    wanted = {(prompt, count): "".join(run(prompt=prompt, max_tokens=count)) for prompt in PROMPTS for count in (3, 40)}

    with serve(MODEL) as server, httpx.Client(base_url=server.url, timeout=60) as client:

        def ask(prompt: str, count: int) -> str:
            body = {"input": {"prompt": prompt, "max_tokens": count}}
            return "".join(client.post("/predictions", json=body).json()["output"])

        with ThreadPoolExecutor(len(wanted)) as threads:
            asked = {each: threads.submit(ask, *each) for each in wanted}
        assert {each: done.result() for each, done in asked.items()} == wanted
