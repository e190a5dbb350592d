"""The pages that say which test drives which promise. Nothing is left open, and each test is there."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PROMISES = "Which test drives which promise"
DEFECTS = "Which test drives which defect"
REFERENCE = re.compile(r"`(tests/(?:\w+/)+\w+\.py)::(test_\w+)`")

Rows = list[list[str]]


class Page(NamedTuple):
    """A page: the documents whose promises it lists, with the least number of them, and another server's defects."""

    name: str
    documents: dict[str, int]
    defects: list[str]
    better: str  # the heading under which each defect is explained
    found: str  # the heading of what models and clients in use were found to rely on
    findings: list[str]


PAGES = [
    Page(
        "cog-compatibility.md",
        {"HTTP API": 40, "Prediction API": 40, "Container runtime": 40},
        [f"D{number}" for number in range(1, 32)],
        "What geartrain does better",
        "What real models rely on",
        [f"C{number}" for number in range(1, 11)],
    ),
    Page(
        "open-inference.md",
        {"HTTP/REST": 40, "GRPC": 30, "Generate extension": 18},
        [f"T{number}" for number in range(1, 20)],
        "What geartrain does better than Triton",
        "What real clients rely on",
        [f"O{number}" for number in range(1, 8)],
    ),
]
BOTH = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def section(page: str, title: str) -> str:
    """What stands under a heading, up to the next one of its level or above."""
    found = re.search(rf"^(#+) {re.escape(title)}\n", page, re.MULTILINE)
    assert found, f"there is no section {title!r}"
    rest = page[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def table(text: str) -> Rows:
    """The rows of the only table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert set(lines[1]) <= set("|-"), lines[1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@functools.cache
def names_in(path: str) -> frozenset[str]:
    """The names of the test functions of a module, which is not run."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def faults(rows: Rows) -> list[str]:
    """What is wrong with the rows of a table of two columns, the second of which names tests."""
    found = []
    for row in rows:
        if len(row) != 2 or not all(row):
            found.append(f"no two full cells: {row}")
            continue
        for each in row[1].split("<br>"):
            reference = REFERENCE.fullmatch(each.strip())
            if reference is None:
                found.append(f"no test is named by {each!r}, of {row[0]!r}")
            elif not (ROOT / reference[1]).is_file() or reference[2] not in names_in(reference[1]):
                found.append(f"there is no {each}, of {row[0]!r}")
    return found


def text_of(page: Page) -> str:
    return (ROOT / "docs" / page.name).read_text(encoding="utf-8")


@BOTH
def test_each_promise_has_a_test(page: Page) -> None:
    for document, least in page.documents.items():
        rows = table(section(section(text_of(page), PROMISES), document))
        assert len(rows) > least
        assert faults(rows) == []


@BOTH
def test_each_promise_is_listed_once(page: Page) -> None:
    for document in page.documents:
        promises = [row[0] for row in table(section(section(text_of(page), PROMISES), document))]
        assert sorted(set(promises)) == sorted(promises)


@BOTH
def test_each_defect_has_a_test_of_its_name(page: Page) -> None:
    rows = table(section(text_of(page), DEFECTS))
    assert [row[0] for row in rows] == page.defects
    assert faults(rows) == []
    for defect, tests in rows:
        for _, name in REFERENCE.findall(tests):
            assert re.match(rf"test_([dt]\d+_)*{defect.lower()}_", name), f"{name} is not named after {defect}"


@BOTH
def test_each_defect_is_explained(page: Page) -> None:
    explained = table(section(text_of(page), page.better))
    assert [row[0] for row in explained] == page.defects
    assert all(len(row) == 3 and all(row) for row in explained)


@BOTH
def test_each_finding_has_a_test_of_its_name(page: Page) -> None:
    rows = table(section(text_of(page), page.found))
    assert [row[0] for row in rows] == page.findings
    assert faults([row[1:] for row in rows]) == []
    for finding, _, tests in rows:
        for _, name in REFERENCE.findall(tests):
            assert re.match(rf"test_([co]\d+_)*{finding.lower()}_", name), f"{name} is not named after {finding}"


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("| a promise | |", "no two full cells"),
        ("| a promise | `tests/unit/test_budgets.py::test_nothing` |", "there is no"),
        ("| a promise | `tests/unit/test_nowhere.py::test_nothing` |", "there is no"),
        ("| a promise | later |", "no test is named"),
        ("| a promise | `tests/unit/test_budgets.py::test_module_is_within_its_budget`<br> |", "no test is named"),
    ],
)
def test_what_is_left_open_is_found(row: str, fault: str) -> None:
    (found,) = faults(table(f"| promise | driven by |\n|---|---|\n{row}\n"))
    assert fault in found
