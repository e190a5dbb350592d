"""The pages on the architecture and on mechanisms name nothing that is not there."""

from __future__ import annotations

import pathlib
import re

from geartrain.transport.wire.http1 import CONNECTION_STEPS

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "src/geartrain"
PAGE = (ROOT / "docs/architecture.md").read_text()
MECHANISMS = (ROOT / "docs/mechanisms.md").read_text()
MOST_WORDS = 40
PATH = re.compile(r"`([\w./*]+(?:\.py|\.proto|/))`")


def missing(page: str) -> list[str]:
    """Return the paths that lead nowhere. One may be relative to the package, to the root, or to the path before it."""
    found = []
    for line in page.splitlines():
        folder = PACKAGE
        for name in PATH.findall(line):
            places = [place for base in (PACKAGE, ROOT, folder) for place in base.glob(name.rstrip("/"))]
            if places:
                folder = places[0].parent
            else:
                found.append(name)
    return found


def test_paths_are_there() -> None:
    assert len(PATH.findall(PAGE)) > 100
    assert missing(PAGE) == []
    assert missing(MECHANISMS) == []


def test_few_words_have_to_be_learned() -> None:
    table = PAGE[PAGE.index("| word |") :].partition("\n\n")[0]
    words = [word for row in table.splitlines()[2:] for word in row.split("|")[1].split(",")]
    assert 30 <= len(words) <= MOST_WORDS


def test_path_that_is_not_there_is_found() -> None:
    assert missing("`transport/wire/heads.py`, `chunks.py`, `gone.py` and `domain/gone/`") == [
        "gone.py",
        "domain/gone/",
    ]


def test_states_of_a_connection_are_those_of_its_table() -> None:
    table = MECHANISMS[MECHANISMS.index("| state |") :].partition("\n\n")[0]
    states = re.findall(r"^\| ([a-z]+) \|", table, re.MULTILINE)[1:]  # below the head
    assert states == [state.value for state in CONNECTION_STEPS]
