"""Makes the client that blocks of the one for asyncio: `client/client.py`, and `Wire` in `client/wires.py`.

python -m tools.make_client              # writes both
"""

from __future__ import annotations

import pathlib
import re
from typing import Final

CLIENT: Final = pathlib.Path(__file__).resolve().parents[1] / "src" / "geartrain" / "client"
MODULE: Final = CLIENT / "client.py"
WIRES: Final = CLIENT / "wires.py"

_DOCSTRING: Final = '"""The client that blocks. Made by `tools/make_client.py` of `async_client`: change that one."""\n'
_ONLY_HERE: Final = re.compile(r"^( *)# In the client that blocks: (.+)$", re.MULTILINE)
_NOTES: Final = re.compile(r"  # noqa: ASYNC\d+.*$", re.MULTILINE)
_WORDS: Final = (
    (r"\ban `async with`", "a `with`"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(Client|Handle|Iterator|Model|Stream|Wire)\b", r"\1"),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\ba(close|iter_bytes|next|read)\(", r"\1("),
    (r"\bimport Wire, Options\b", "import Options, Wire"),
    (r"\basyncio\.sleep\b", "time.sleep"),
    (r"\basyncio\.BoundedSemaphore\b", "threading.BoundedSemaphore"),
    (r"\bIt belongs to one event loop\.", "It may be used by several threads."),
    (r"\bclients on an event loop\.", "clients that block."),
)
_CLASS: Final = r"^class {}:\n.*?(?=^\S)"


def blocking(text: str) -> str:
    """Return code that blocks for code that awaits."""
    text = _NOTES.sub("", _ONLY_HERE.sub(r"\1\2", text))
    for pattern, replacement in _WORDS:
        text = re.sub(pattern, replacement, text)
    return text


def module() -> str:
    """Return the text of `client.py`."""
    _, _, rest = (CLIENT / "async_client.py").read_text(encoding="utf-8").partition("\n")
    return _DOCSTRING + blocking(rest)


def wires() -> str:
    """Return the text of `wires.py`, with `Wire` made of `AsyncWire`."""
    text = WIRES.read_text(encoding="utf-8")
    awaiting = re.search(_CLASS.format("AsyncWire"), text, re.MULTILINE | re.DOTALL)
    if awaiting is None:
        raise ValueError("there is no class AsyncWire")
    return re.sub(_CLASS.format("Wire"), lambda _: blocking(awaiting[0]), text, count=1, flags=re.MULTILINE | re.DOTALL)


if __name__ == "__main__":
    MODULE.write_text(module(), encoding="utf-8")
    WIRES.write_text(wires(), encoding="utf-8")
