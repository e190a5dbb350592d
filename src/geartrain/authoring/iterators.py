"""Return types of a `run()` that yields text meant to be read as one piece.

To a type checker they are the plain iterators, since a generator function must be allowed to return them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    ConcatenateIterator = Iterator
    AsyncConcatenateIterator = AsyncIterator
else:
    Item = TypeVar("Item")

    class ConcatenateIterator(Iterator[Item], Generic[Item]):
        """An iterator of strings whose reader joins them: tokens of a text, for example."""

    class AsyncConcatenateIterator(AsyncIterator[Item], Generic[Item]):
        """`ConcatenateIterator` for an async generator."""
