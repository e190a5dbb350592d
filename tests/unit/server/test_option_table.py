"""The table of options, and what is made of it."""

from __future__ import annotations

import re
from functools import reduce
from math import inf
from pathlib import Path
from typing import Any, Final

import pytest

from geartrain.project.source import ModelSource
from geartrain.server.option_kinds import TEXTS, Option
from geartrain.server.option_table import BY_NAME, TABLE
from geartrain.server.options import ServeOptions, options_of
from tools import make_options

DOCS: Final = Path(__file__).parents[3] / "docs"
SOURCE: Final = ModelSource(name="pets", root=Path(), runner="run.py")
FIELDS: Final = [option for option in TABLE if option.field]
# Values for each kind, and those of the field.
CHANGED: Final[dict[str, tuple[Any, Any]]] = {
    "access_log": (BY_NAME["access_log"].kind.take("off"), BY_NAME["access_log"].kind.take("off")),
    "devices": (BY_NAME["devices"].kind.take("cpu"), BY_NAME["devices"].kind.take("cpu")),
}


def field_of(options: ServeOptions, option: Option) -> Any:
    return reduce(getattr, option.field.split("."), options)


def test_names_are_told_apart() -> None:
    assert len(BY_NAME) == len(TABLE)


@pytest.mark.parametrize("option", [each for each in FIELDS if each.default is not None], ids=lambda each: each.name)
def test_the_default_is_that_of_the_field(option: Option) -> None:
    expected = option.stored(option.default)
    assert field_of(ServeOptions(source=SOURCE), option) == expected
    assert field_of(options_of({option.name: option.default}, {"source": SOURCE}), option) == expected


@pytest.mark.parametrize("option", FIELDS, ids=lambda each: each.name)
def test_the_value_comes_to_the_field(option: Option) -> None:
    given, expected = CHANGED.get(option.name, (7, 7))
    assert field_of(options_of({option.name: given}, {"source": SOURCE}), option) == expected


def test_an_option_that_is_none_has_the_default_of_the_field() -> None:
    given = dict.fromkeys(BY_NAME)
    assert options_of(given, {"source": SOURCE, "find_again": None}) == ServeOptions(source=SOURCE)


def test_zero_is_no_limit() -> None:
    names = [option.name for option in TABLE if option.stored(0) != 0]
    options = options_of(dict.fromkeys(names, 0), {"source": SOURCE})
    assert len(names) > 5
    assert {field_of(options, BY_NAME[name]) for name in names} == {None, inf, 1 << 62}


def test_options_of_the_application_are_made_of_the_table() -> None:
    """`python -m tools.make_options` writes them."""
    assert make_options.PATH.read_text(encoding="utf-8") == make_options.text()


def test_options_of_the_application_have_a_type() -> None:
    assert [option.name for option in TABLE if option.is_hosted and not option.kind.annotation] == []
    assert TEXTS not in {option.kind for option in TABLE if option.is_hosted}


def test_every_option_of_the_command_line_is_in_its_page() -> None:
    page = (DOCS / "command-line.md").read_text(encoding="utf-8")
    told = set(re.findall(r"--[a-z0-9-]+", page))
    assert {option.flag for option in TABLE if not option.is_hidden} - told == set()


def test_every_option_of_the_application_is_in_its_page() -> None:
    page = (DOCS / "asgi.md").read_text(encoding="utf-8")
    rows = "\n".join(line for line in page.splitlines() if line.startswith("| `"))
    told = set(re.findall(r"`([a-z_]+)`", rows))
    assert {option.name for option in TABLE if option.is_hosted} - told == set()
