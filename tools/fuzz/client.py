"""Sends a mix in its pieces, and reads all answers."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from typing import Final

import msgspec

from tools.fuzz.mixes import Mix, judge

_TIMEOUT: Final = 40.0  # seconds
_CONTINUE: Final = 100
_ALL: Final = 1_000_000
_REFUSALS: Final = frozenset({400, 408, 413, 414, 417, 431, 501, 505})


class Seen(msgspec.Struct):
    """An answer. Header names and values are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


async def run_mix(address: tuple[str, int], mix: Mix) -> list[Seen] | str:
    """Return the answers to a mix, or what was wrong with their framing."""
    verdict = judge(mix.data)
    bodiless = {index for index, request in enumerate(verdict.requests) if request.method == "HEAD"}
    if verdict.rest.startswith(b"HEAD "):
        bodiless.add(len(verdict.requests))
    client = _Client(bodiless)
    try:
        async with asyncio.timeout(_TIMEOUT):
            await client.connect(address)
            sending = asyncio.ensure_future(client.send(mix))
            ends = verdict.end in {"error", "close"}
            answers = await client.read(_ALL if ends else len(verdict.requests))
            await sending
            if not ends:  # it has its answers, and says that it will send no more
                client.send_end()
                answers += await client.read(_ALL)
    except TimeoutError:
        return "the connection does not end, or an answer does not come"
    except ValueError as error:
        return f"an answer is not whole: {error!r}"
    finally:
        client.close()
    return answers


class _Client:
    """A connection. A reset is an end: what came before it counts."""

    def __init__(self, bodiless: set[int]) -> None:
        """`bodiless`: the positions of answers to HEAD."""
        self._bodiless = bodiless
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._come = b""
        self._finals = 0

    async def connect(self, address: tuple[str, int]) -> None:
        await self._loop.sock_connect(self._socket, address)

    def close(self) -> None:
        self._socket.close()

    async def send(self, mix: Mix) -> None:
        with contextlib.suppress(ConnectionError):  # whatever was wrong has been said in an answer
            for piece in mix.pieces:
                await self._loop.sock_sendall(self._socket, piece)
                await asyncio.sleep(0)

    def send_end(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    async def read(self, most: int) -> list[Seen]:
        """Read so many answers, or fewer if the connection ends."""
        answers: list[Seen] = []
        wanted = self._finals + most
        while self._finals < wanted:
            head = await self._take_head()
            if not head:
                break
            answer = _parse(head)
            if answer.status != _CONTINUE:
                length = int(answer.headers["content-length"])
                if self._finals not in self._bodiless:
                    answer.body = await self._take(length)
                elif answer.status in _REFUSALS:  # of a head that was not understood, or of what came behind it
                    answer.body = await self._rest(length)
                self._finals += 1
            answers.append(answer)
        return answers

    async def _take_head(self) -> bytes:
        while (end := self._come.find(b"\r\n\r\n")) < 0:
            if not await self._more():
                if self._come:
                    raise ValueError(self._come)
                return b""
        return await self._take(end + 4)

    async def _take(self, size: int) -> bytes:
        while len(self._come) < size:
            if not await self._more():
                msg = f"{len(self._come)} of {size} bytes"
                raise ValueError(msg)
        taken, self._come = self._come[:size], self._come[size:]
        return taken

    async def _rest(self, length: int) -> bytes:
        """Take a body that is there or not, at the end of a connection."""
        while await self._more():
            pass
        return await self._take(min(length, len(self._come)))

    async def _more(self) -> bool:
        try:
            data = await self._loop.sock_recv(self._socket, 65_536)
        except ConnectionError:
            return False
        self._come += data
        return bool(data)


def _parse(head: bytes) -> Seen:
    line, *lines = head.decode("latin-1").lower().split("\r\n")
    found = re.fullmatch(r"http/1\.1 ([1-5][0-9][0-9]) .+", line)
    if found is None:
        raise ValueError(line)
    return Seen(int(found[1]), dict(each.split(": ", 1) for each in lines if each), b"")
