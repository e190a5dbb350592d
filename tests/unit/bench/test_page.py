"""The report as a page, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser

import msgspec
import pytest

from geartrain.bench.page import to_html
from geartrain.bench.results import Fault, Report, to_csv, to_json
from geartrain.bench.server_figures import ServerFigures
from geartrain.bench.texts import duration
from tests.unit.bench.results import distribution, failing, level, report

FIGURES = ServerFigures(queue=distribution(0.001), run=distribution(0.004), batch=distribution(3.5))
WHOLE = msgspec.structs.replace(
    report(
        level(1, 100, server=FIGURES),
        failing(2, 150.5, Fault("failed", 7, "<script>alert(1)</script>"), server=FIGURES),
        level(500, 20, kind="rate"),
        model='a<b>"c"',
    ),
    advice=("Use <more>.",),
)
EMPTY = report(failing(1, 1e-9, Fault("HTTP 409", 3, "busy")))


class _Page(HTMLParser):
    """The elements of a page, which have to be closed in the order in which they were opened."""

    VOID = frozenset({"meta"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.mark.parametrize("whole", [WHOLE, EMPTY, report()])
def test_page_is_whole_and_loads_nothing(whole: Report) -> None:
    text = to_html(whole).decode()
    page = _Page(text)
    assert not {name for name, _ in page.elements} & {"script", "link", "img", "iframe", "a"}
    assert not re.search(r"url\(|@import|https?://(?!127)", text)
    assert "default-src 'none'" in text


def test_text_from_elsewhere_is_text() -> None:
    text = to_html(WHOLE).decode()
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "a&lt;b&gt;&quot;c&quot;" in text
    assert "Use &lt;more&gt;." in text


def test_charts_have_names_and_descriptions() -> None:
    text = to_html(WHOLE).decode()
    page = _Page(text)
    charts = page.all("svg")
    assert len(charts) == 6  # of the rate there are no figures of the server, so two of four are missing
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for chart in charts:
        assert chart["role"] == "img"
        assert set((chart["aria-labelledby"] or "").split()) <= set(ids)
    assert "in the queue" in text


def test_charts_stay_within_their_frame() -> None:
    for values in ((1e-5, 1e-5), (0.001, 3000.0), (7.0, 7.0)):
        text = to_html(report(*[level(place, rate) for place, rate in enumerate(values, start=1)])).decode()
        for points in re.findall(r'points="([^"]*)"', text):
            for point in points.split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= 640
                assert 0 <= y <= 300


def test_both_schemes_of_colours_are_there() -> None:
    assert to_html(WHOLE).decode().count("light-dark(") >= 10


def test_csv_has_a_line_for_each_level() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(WHOLE).decode())))
    assert [(row["concurrency"], row["rate_asked"]) for row in rows] == [("1", ""), ("2", ""), ("", "500")]
    assert (rows[1]["failed"], rows[1]["rate"], rows[1]["queue_mean_s"]) == ("7", "150.500", "0.001000")
    assert (rows[2]["queue_mean_s"], rows[2]["batch_mean"]) == ("", "")


def test_json_can_be_read_back() -> None:
    assert msgspec.json.decode(to_json(WHOLE), type=Report) == WHOLE
    assert json.loads(to_json(WHOLE))["levels"][0]["latency"]["p50"] == 0.01


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0 µs"), (0.000042, "42 µs"), (0.00421, "4.21 ms"), (1.5, "1.5 s"), (3600, "3600 s")]
)
def test_times_are_readable(seconds: float, text: str) -> None:
    assert duration(seconds) == text
