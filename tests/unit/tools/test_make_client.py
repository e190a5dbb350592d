"""The client that blocks is the one for asyncio without its `await`."""

from __future__ import annotations

import pytest

from tools import make_client


def test_the_client_that_blocks_is_made_of_the_other_one() -> None:
    """`python -m tools.make_client` writes it."""
    assert make_client.MODULE.read_text(encoding="utf-8") == make_client.module()
    assert make_client.WIRES.read_text(encoding="utf-8") == make_client.wires()


@pytest.mark.parametrize(
    ("awaiting", "blocking"),
    [
        ("async def run(self) -> AsyncIterator[int]:", "def run(self) -> Iterator[int]:"),
        ("async with self._places:", "with self._places:"),
        ("return await anext(pieces)", "return next(pieces)"),
        ("raise StopAsyncIteration", "raise StopIteration"),
        ("async def __aenter__(self) -> Self:", "def __enter__(self) -> Self:"),
        ("x: float  # noqa: ASYNC109 - as of `Handle`", "x: float"),
        ("    # In the client that blocks: self._opened()", "    self._opened()"),
    ],
)
def test_what_becomes_of_a_line(awaiting: str, blocking: str) -> None:
    assert make_client.blocking(awaiting) == blocking
