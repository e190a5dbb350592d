"""Reads a body in pieces of a size that is told: the messages in it."""

from __future__ import annotations

import asyncio

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.tensors.tensor import Buffer
from geartrain.transport.wire.bodies import BufferBudget, PartsBody
from geartrain.transport.wire.exchange import Body


class GatheringReader:
    """Cuts the pieces of a body anew, and counts what it holds. See `MessageReader`."""

    def __init__(self, body: PartsBody, budget: BufferBudget, patience: float) -> None:
        """`patience`: seconds for which it waits until others have given back memory for bodies; 0 for no limit."""
        self._body = body
        self._budget = budget
        self._patience = patience
        self._rest: Buffer = b""  # has come, and was not asked for yet
        self._counted = 0  # bytes of the budget

    async def read(self) -> bytes:
        """Return the body so far, or the next piece. See `BodyReader`."""
        self.close()
        if self._rest:
            rest, self._rest = self._rest, b""
            return bytes(rest)
        return await self._body.read()

    async def gather(self, size: int) -> Body:
        """Return the next `size` bytes. See `MessageReader`.

        Raises `GeartrainError` (`QUEUE_FULL`) if there is no memory for them.
        """
        if self._counted:
            self.close()
        if not size:
            return b""
        rest = self._rest or await self._body.read_piece()
        if len(rest) >= size:
            self._rest = rest[size:]
            return bytes(rest[:size])
        return await self._grow(rest, size)

    def close(self) -> None:
        """Count nothing any more."""
        counted, self._counted = self._counted, 0
        if counted:
            self._budget.give_back(counted)

    async def _grow(self, first: Buffer, size: int) -> Body:
        grown = bytearray(first)
        self._rest = b""
        await self._take(len(first))
        while len(grown) < size:
            piece = await self._body.read_piece()
            if not piece:
                break
            wanted = size - len(grown)
            if len(piece) > wanted:
                piece, self._rest = piece[:wanted], piece[wanted:]
            grown += piece
            await self._take(len(piece))
        return grown

    async def _take(self, size: int) -> None:
        """Count bytes, and wait until there is room for more."""
        budget = self._budget
        budget.take(size)
        self._counted += size
        if not budget.is_spent:
            return
        room = asyncio.Event()
        try:
            async with asyncio.timeout(self._patience or None):
                while budget.is_spent:
                    room.clear()
                    budget.wait(self, room.set)
                    await room.wait()
        except TimeoutError:
            text = "The bodies of other requests take all the memory that there is for bodies."
            msg = f"{text} Try again later. The server's --max-buffered-size sets it."
            raise GeartrainError(Code.QUEUE_FULL, msg) from None
        finally:
            budget.leave(self)
