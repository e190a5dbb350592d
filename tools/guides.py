"""What the pages `docs/migrate-*.md` show: files of `examples/migrate`, requests, and their answers.

`try_guides.py` sends the requests to the other servers and to geartrain, a test sends those to geartrain.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from typing import Any, Final

ROOT: Final = pathlib.Path(__file__).resolve().parents[1]
MODELS: Final = ROOT / "examples/migrate"
GUIDES: Final = ("cog", "triton", "mlserver", "litserve", "bentoml", "fastapi")

_FILE = re.compile(r"`([\w/.-]+)`[^\n`]*:\n\n```\w+\n(.*?)```", re.DOTALL)
_REQUEST = re.compile(
    r"curl -s localhost:\d+(/\S*) -H 'Content-Type: application/json' \\\n  -d '(.*?)'\n```\n\n```json\n(.*?)```",
    re.DOTALL,
)
_OF_ONE_RUN: Final = ("completed_at", "created_at", "id", "metrics", "started_at")


@dataclasses.dataclass(frozen=True)
class Shown:
    """A request of a page, and the answer below it."""

    path: str
    body: Any
    answer: Any


def page(guide: str) -> str:
    """Return the text of a guide."""
    return (ROOT / f"docs/migrate-{guide}.md").read_text(encoding="utf-8")


def files(guide: str) -> dict[str, str]:
    """Return the files that a guide shows, by their paths below its folder."""
    return {name: text for name, text in _FILE.findall(page(guide)) if (MODELS / guide / name).exists()}


def requests(guide: str, heading: str) -> list[Shown]:
    """Return the requests below a heading."""
    section = page(guide).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [Shown(path, json.loads(body), json.loads(answer)) for path, body, answer in _REQUEST.findall(section)]


def comparable(answer: Any) -> Any:
    """Return an answer without what is different each time, and with floats rounded to what a FP32 holds."""
    if isinstance(answer, dict):
        return {name: comparable(value) for name, value in answer.items() if name not in _OF_ONE_RUN}
    if isinstance(answer, list):
        return [comparable(value) for value in answer]
    return round(answer, 6) if isinstance(answer, float) else answer
