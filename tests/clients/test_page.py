"""The blocks of docs/openai-clients.md that show an output, as far as this environment has what they import."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.clients.asking import Server

PAGE = Path(__file__).parents[2] / "docs/openai-clients.md"
BLOCKS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)


def library_of(block: str) -> str:
    return str(re.findall(r"^(?:from|import) (\w+)", block, re.MULTILINE)[0])


@pytest.mark.parametrize(("block", "printed"), BLOCKS, ids=[library_of(block) for block, _ in BLOCKS])
def test_block(server: Server, capsys: pytest.CaptureFixture[str], block: str, printed: str) -> None:
    if importlib.util.find_spec(library_of(block)) is None:
        pytest.skip(f"{library_of(block)} is in another environment")
    told = block.replace("http://localhost:5000", server.url).replace('"none"', repr(server.key))
    told = told.replace("writer", "loud-writer")  # that of the page
    exec(compile(told, str(PAGE), "exec"), {})  # noqa: S102 - the block is ours
    assert capsys.readouterr().out.rstrip("\n") == printed.rstrip("\n")
