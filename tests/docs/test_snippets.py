"""Every command and every block of Python of the documentation is carried out, and prints what the page shows."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.docs.excused import COUNTED, NOT_COMPARED, NOT_RUN
from tests.docs.reader import Reader, is_shell
from tests.support.pages import ROOT, blocks, commands

MISSING: Final = [program for program in ("curl", "jq") if shutil.which(program) is None]

pytestmark = [
    pytest.mark.timeout(480),  # servers and commands: on a machine that is busy they take long
    pytest.mark.skipif(bool(MISSING), reason=f"the pages need {' and '.join(MISSING)}"),
]

PAGES: Final = [*sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_page_does_what_it_shows(page: str, pytestconfig: pytest.Config) -> None:
    with tempfile.TemporaryDirectory(prefix="gt-") as parent:  # a short path, which no traceback folds
        folder = Path(parent, "ada")
        folder.mkdir()
        Reader(page, folder, writes=pytestconfig.getoption("--write-snippets")).read()


def texts(page: str) -> Iterator[str]:
    for block in blocks(page):
        yield block.text
        if is_shell(block):
            yield from (f"{command.text}\n" for command in commands(block))


@pytest.mark.parametrize(("page", "start"), [*NOT_RUN, *NOT_COMPARED, *COUNTED])
def test_excuse_is_needed(page: str, start: str) -> None:
    assert [text for text in texts(page) if text.startswith(start)], f"{page} has nothing that begins so: {start}"
    reason = {**NOT_RUN, **NOT_COMPARED, **COUNTED}[page, start]
    assert len(reason.split()) > 3, reason
    assert [
        path for path in re.findall(r"(?:tests|tools)/[\w/]+(?:\.\w+)?", reason) if not (ROOT / path).exists()
    ] == []
