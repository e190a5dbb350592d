"""Changes of a `geartrain.yaml` leave the rest of the file as it is."""

from __future__ import annotations

from typing import Any

import pytest

from geartrain.project.settings_edit import edit

MARK = "found: "
FILE = """\
# my model
replicas: 2  # two
batching:
  # small
  max_size: 8
  max_delay: 0.002
queue: "10"
"""


@pytest.mark.parametrize(
    ("text", "changes", "wanted"),
    [
        (FILE, {"replicas": 4}, FILE.replace("replicas: 2", "replicas: 4")),
        (FILE, {"batching.max_size": 64}, FILE.replace("max_size: 8", "max_size: 64")),
        (FILE, {"batching.max_delay": None}, FILE.replace("  max_delay: 0.002\n", "")),
        (FILE, {"slots": 3}, FILE + "slots: 3\n"),
        (FILE, {"slots": None, "openai.serve": None}, FILE),
        ("", {"batching.max_size": 4, "batching.max_delay": 0.001}, "batching:\n  max_size: 4\n  max_delay: 0.001\n"),
        ("batching: {max_size: 4}\n", {"batching.max_size": 8}, "batching: {max_size: 8}\n"),
        ("batching:\n  max_size: 4\nreplicas: 3\n", {"batching.max_size": None}, "replicas: 3\n"),
        ("# only a comment\n", {"replicas": None}, "# only a comment\n"),
        ("replicas: 3", {"replicas": 2}, "replicas: 2\n"),
    ],
)
def test_changes(text: str, changes: dict[str, Any], wanted: str) -> None:
    assert edit(text, changes) == wanted


def test_comments_take_the_place_of_those_before() -> None:
    once = edit(FILE, {"replicas": 3}, comments=("100 a second", "before, 80"), mark=MARK)
    assert once == FILE.replace("replicas: 2", "replicas: 3") + "# found: 100 a second\n# found: before, 80\n"
    twice = edit(once, {"replicas": 4}, comments=("120 a second",), mark=MARK)
    assert twice == FILE.replace("replicas: 2", "replicas: 4") + "# found: 120 a second\n"
    assert edit("", {}, comments=("x",), mark=MARK) == "# found: x\n"
