"""The table of limits in docs/operations.md has the defaults of the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from geartrain.cli import serve
from geartrain.cli.options import parse_duration, parse_size
from geartrain.transport.grpc.options import DEFAULT_MAX_MESSAGE

PAGE: Final = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
ROWS: Final = re.findall(r"^\| [^|]+ \| ([^|]+) \| `(--[a-z-]+)` \|$", PAGE, re.MULTILINE)
PARAMETERS: Final = {name: each for each in typer.main.get_command(serve.app).params for name in each.opts}
NOT_GIVEN: Final = {"none", "a quarter of the memory"}


def read(text: str) -> Any:
    for parse in (int, parse_duration, parse_size):
        try:
            return parse(text)
        except (ValueError, typer.BadParameter):
            continue
    pytest.fail(f"{text!r} is no default")


def test_the_table_is_found() -> None:
    assert len(ROWS) > 20


@pytest.mark.parametrize(("default", "option"), ROWS)
def test_the_default_is_that_of_the_option(default: str, option: str) -> None:
    given = PARAMETERS[option].default
    if default in NOT_GIVEN:
        assert not given
    elif option == "--grpc-max-message-size":
        assert given is None
        assert read(default) == DEFAULT_MAX_MESSAGE
    else:
        assert given == read(default)


def test_every_limit_of_a_connection_has_a_row() -> None:
    limits = {name for name in PARAMETERS if name.startswith("--max-") or name.endswith(("-timeout", "-grace"))}
    assert limits <= {option for _, option in ROWS}
