"""Tests of the model beside this file: `pytest`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.testing import InvalidInputError, runner
from geartrain.testing.runs import Run

MODEL = Path(__file__).parent
DOCUMENTS = [
    "Bread is baked from flour, water and yeast.",
    "Paris is the capital of France.",
    "The capital of Germany is Berlin.",
]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with runner(MODEL) as run:  # setup() runs once
        yield run


def test_answer_comes_first(run: Run) -> None:
    first, second = run(query="What is the capital of France?", documents=DOCUMENTS, top=2)
    assert (first.index, second.index) == (1, 2)
    assert first.score > second.score
    assert run.metrics["documents"] == 3


def test_other_documents_do_not_change_a_score(run: Run) -> None:
    query = "How is bread made?"
    among = {each.index: each.score for each in run(query=query, documents=DOCUMENTS + ["word " * 60] * 40, top=99)}
    (alone,) = run(query=query, documents=DOCUMENTS[:1])
    assert len(among) == 43
    assert among[0] == pytest.approx(alone.score, abs=2e-4)


def test_empty_query_is_refused(run: Run) -> None:
    with pytest.raises(InvalidInputError, match="query"):
        run(query="", documents=DOCUMENTS)
    assert run(query="anything", documents=[]) == []
