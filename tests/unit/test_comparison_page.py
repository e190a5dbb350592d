"""The figures of `docs/comparison.md` are those of the tables in `benchmarks/README.md`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "comparison.md").read_text()
FIGURES = (ROOT / "benchmarks" / "README.md").read_text()


def cells(heading: str, server: str) -> list[str]:
    """The cells of the row of a server in the table below a heading."""
    table = re.split(rf"^#+ {re.escape(heading)}$", FIGURES, flags=re.MULTILINE)[1]
    row = re.search(rf"^\| {re.escape(server)} \|(.*)\|$", table, re.MULTILINE)
    assert row is not None
    return [cell.strip() for cell in row[1].split("|")]


@pytest.mark.parametrize(
    ("line", "heading", "server", "column"),
    [
        ("Cog: a model that does nothing, 1 connection", "A plain no-op, 1 slot, 1 connection", "coglet", 5),
        ("Cog: the same, async, 16 connections", "An async no-op, 32 slots, 16 connections", "coglet", 5),
        ("Triton: 4 numbers as JSON, 1 connection", "JSON, 4 numbers, 1 connection", "triton", 3),
        ("Triton: 600 kB over gRPC, 16 connections", "gRPC, 600 kB both ways, 16 connections", "triton", 3),
    ],
)
def test_m3_ratio_is_that_of_the_table(line: str, heading: str, server: str, column: int) -> None:
    ratio = cells(heading, server)[column].removesuffix(" ×")
    assert f"| {line} | {ratio} |" in PAGE


def test_m3_start_and_memory_are_those_of_the_table() -> None:
    (own_start, own_memory), (start, memory) = (
        cells("Start of `examples/hello`", name) for name in ("geartrain", "coglet")
    )
    wanted = f"seconds until ready, {own_start} against {start}; memory, {own_memory} MB against {memory}"
    assert wanted in PAGE


def test_m3_ratios_to_the_servers_in_python_are_those_of_the_text() -> None:
    text = " ".join(FIGURES.split())
    found = re.search(
        r"geartrain answered ([\d,]+) small requests in JSON a second with 1 connection.*?"
        r"MLServer ([\d,]+) and [\d,]+, and KServe's server \(0\.21\.0\) ([\d,]+)",
        text,
    )
    assert found is not None
    own, mlserver, kserve = (int(number.replace(",", "")) for number in found.groups())
    assert f"| MLServer: 4 numbers as JSON, 1 connection | {own / mlserver:.1f} |" in PAGE
    assert f"| KServe: 4 numbers as JSON, 1 connection | {own / kserve:.1f} |" in PAGE


def test_m3_ratios_of_batches_are_those_of_the_table() -> None:
    heading = "64 connections: at most 6,400/s"
    rates = (cells(heading, name)[0] for name in ("geartrain, Cog's API, 1 ms", "triton, 1 ms", "mosec, 1 ms"))
    own, triton, mosec = (int(rate.replace(",", "")) for rate in rates)
    assert f"each at its best setting | {own / triton:.1f}, {own / mosec:.1f}, " in PAGE
