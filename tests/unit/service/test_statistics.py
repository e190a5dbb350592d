"""The sums of a model version."""

from __future__ import annotations

import pytest

from geartrain.domain.predictions.prediction import PredictionRecord
from geartrain.domain.predictions.request_context import RequestContext
from geartrain.domain.predictions.statistics import Buckets, Histograms
from geartrain.service.statistics import Counts


def record(number: int, *, began: float = 3.0) -> PredictionRecord:
    """Return that of a prediction which was admitted at 1, had its files at 2, and began at 3."""
    request = RequestContext("r", f"00-{number:032x}-{'1' * 16}-01")
    made = PredictionRecord(f"p{number}", 1.0, 2.0, request, "m", "1", rows=2, input_size=7)
    made.began = began
    return made


def test_every_success_counts_once_whoever_reads_when() -> None:
    counts = Counts(histograms=Histograms(Buckets(seconds=(1.0, 10.0), bytes=(10.0,))))
    for number in range(1, 601):
        counts.add_success(record(number), 0.5, 20, at=9.0 if number == 590 else 5.0)
        if number == 100:
            assert counts.statistics("m", "1").success.count == 100
    assert counts.successes < 600
    found = counts.statistics("m", "1")
    seconds = 1_000_000_000
    assert (found.success.count, found.inference_count, found.last_inference) == (600, 1200, 5000)
    assert [round(each.ns / seconds) for each in (found.success, found.compute_input, found.queue)] == [2404, 600, 600]
    assert found.compute_infer.ns == 300 * seconds
    histograms = counts.histograms
    assert (histograms.total.counts, histograms.output_size.counts) == ([0, 600, 0], [0, 600])
    assert histograms.total.total == pytest.approx(2404)


def test_exemplars_are_the_latest_and_the_slowest() -> None:
    counts = Counts(histograms=Histograms(Buckets(seconds=(5.0, 10.0), bytes=(10.0,))))
    for number in range(1, 11):
        counts.add_success(record(number), 0.5, 20, at=9.0 if number == 4 else 5.0)
    counts.settle()
    found = {
        bucket: (value, request.trace_id, at)
        for bucket, (value, request, at) in counts.histograms.total.exemplars.items()
    }
    assert found == {0: (4.0, f"{10:032x}", 5.0), 1: (8.0, f"{4:032x}", 9.0)}


@pytest.mark.parametrize(("began", "runs"), [(3.0, 1), (0.0, 0)])
def test_a_fault_is_in_the_histograms_if_it_came_to_a_run(began: float, runs: int) -> None:
    counts = Counts()
    counts.add_fault("BACKEND", record(1, began=began), at=4.0)
    assert (counts.faults["BACKEND"], counts.fail_time, sum(counts.histograms.run.counts)) == (1, 3.0, runs)
    assert sum(counts.histograms.output_size.counts) == 0
    assert counts.latest == (4.0 if runs else 0.0)
