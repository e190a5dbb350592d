"""Whether a command has printed what a page shows; times, ids and the like may differ."""

from __future__ import annotations

import re
from typing import Final

# What stands for each of these in both texts. Nothing else may differ.
DIFFERS: Final = [
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\.\d+(\+00:00|Z)?", "<moment>"),
    (r"(?m)^date: .*$", "date: <moment>"),
    (r"(?m)^content-length: \d+$", "content-length: <n>"),  # of bodies that have times in them
    (r"(?m)^\d\d:\d\d:\d\d ", "<clock> "),
    (r"pred_[0-9a-f]{32}|pred_[0-9a-f]{16}", "<id>"),
    (r"(x-request-id: )[0-9a-f]{32}\b", r"\1<request>"),
    (r"\b00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]\b", "<trace>"),
    (r"\bgt_[\w-]{43}", "<key>"),
    (r'("(?:predict_time|run_ms|queue_ms|total_ms|ttft_ms|prepare_ms|deliver_ms)": ?)[\d.e-]+', r"\g<1>0"),
    (r'("created":)\d{10}', r"\1<moment>"),
    (r"(?m)(_seconds_sum\{.*\}) [\d.e-]+$", r"\1 <time>"),
    (r"([Rr]eady after|succeeded in|failed in|canceled in) [\d.]+ m?s", r"\1 <time>"),
    (r"[\d.]+ [GT]iB free", "<size> free"),
    (r"Python 3\.\d+\.\d+", "Python <version>"),
    (r"(/home/ada/[\w/.-]*?)?/?bin/python3?\b", "<python>"),
    (r"in \d+\.\d\ds\b", "in <time>"),
    (r"(\d\.\d{5})\d+(e-?\d+)?", r"\1\2"),  # the last digits of a sum depend on the processor
    (r"(?m) +│$", " │"),  # a path is as long as it is
]


def normalise(text: str) -> str:
    """Replace what may differ."""
    text = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
    for pattern, mark in DIFFERS:
        text = re.sub(pattern, mark, text)
    return text


def is_as_shown(shown: str, printed: str) -> bool:
    """Whether the text is what a page shows. `…` stands for any text in a line, and a line of it for any lines."""
    shown, printed = normalise(shown), normalise(printed)
    pattern = re.escape(shown)
    pattern = re.sub(r"(?m)^ *…$", r"(?s:.*)", pattern).replace("…", ".*")
    return re.fullmatch(pattern, printed) is not None


def count_nothing(text: str) -> str:
    """Leave out how far a model that counts has come."""
    text = re.sub(r"(counting \d+ of (\d+)\\n)+", r"counting to \2\\n", text)
    return re.sub(r"canceled at \d+|\"output\":\[[\d,]*\]", "as far as it came", text)
