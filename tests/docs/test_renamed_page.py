"""docs/renamed.md: what it calls gone is gone, and what it names instead is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

import geartrain
from geartrain.apis import metrics
from geartrain.project.checks import _OLDER_NAMES
from tests.support.pages import ROOT
from tools.site.reference import help_of

PAGE: Final = (ROOT / "docs/renamed.md").read_text(encoding="utf-8")
HELP: Final = help_of("serve")


def rows(title: str) -> list[tuple[str, str]]:
    part = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    found = [tuple(cell.strip() for cell in line.strip("| ").split("|")) for line in part.splitlines() if "| `" in line]
    return [(row[0], row[-1]) for row in found]


def names(text: str) -> list[str]:
    return re.findall(r"`([\w.-]+)(?:\(\))?:?`", text)


def is_there(name: str) -> bool:
    if name.startswith("--"):
        return re.search(rf"{name}(?![\w-])", HELP) is not None
    families = Path(metrics.__file__).read_text(encoding="utf-8")
    return f'"{name.removesuffix("_total")}"' in families


@pytest.mark.parametrize(("before", "now"), rows("What is gone"))
def test_what_is_gone_is_gone(before: str, now: str) -> None:
    old = names(before)[0]
    new = [name for name in names(now) if name.startswith(("--", "geartrain_"))]
    assert new
    assert all(is_there(name) for name in new), new
    if old.startswith("--"):
        assert not is_there(old)
    else:
        assert new == [f"{old}_total"]


def test_every_older_name_is_on_the_page() -> None:
    older = dict(rows("Older names that still work"))
    listed = {name for before in older for name in names(before)} - {"cog.yaml"}
    assert listed == {*_OLDER_NAMES, "predict"}
    for before, now in older.items():
        if names(before)[0] in geartrain.__all__:
            assert names(now)[0] in geartrain.__all__
