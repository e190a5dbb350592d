"""Carries out what `asks` yields, over httpx: `Wire` blocks, `AsyncWire` awaits."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import httpx

from geartrain.authoring import __version__
from geartrain.client.asks import Reply, Send, Steps, Wait
from geartrain.client.errors import ClientError, TimedOutError, UnreachableError

R = TypeVar("R")
C = TypeVar("C")

_AT_ONCE: Final = 100  # requests; further ones wait
_OF_POOL: Final = 8  # requests at once: what httpx does for each grows with the connections of its pool
_BAD: Final = 400
_CUT: Final = "the stream has broken off before its end"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Address and settings of a server; see `Client`."""

    url: str
    key: str | None
    verify: bool | str | ssl.SSLContext
    timeout: float | None
    connect_timeout: float
    headers: Mapping[str, str]

    def of_httpx(self) -> dict[str, Any]:
        """Return the arguments of a client of httpx."""
        headers = {"user-agent": f"geartrain-client/{__version__}", **self.headers}
        if self.key is not None:
            headers["authorization"] = f"Bearer {self.key}"
        if isinstance(self.verify, str):
            context = ssl.create_default_context(cafile=self.verify)
        elif isinstance(self.verify, bool):
            context = httpx.create_ssl_context(verify=self.verify)
        else:
            context = self.verify
        return {
            "headers": headers,
            "verify": context,
            "timeout": httpx.Timeout(self.timeout, connect=self.connect_timeout, pool=None),
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=_OF_POOL),
        }


class _Pools(Generic[C]):
    """Clients of httpx, each with the connections of a few requests; one is made when all others have enough to do."""

    def __init__(self, kind: Callable[..., C], options: Options) -> None:
        settings = options.of_httpx()
        self._make: Callable[[], C] = partial(kind, **settings)
        self._lock = threading.Lock()
        self._busy = [0]  # requests, by pool
        self.all = [self._make()]

    @contextmanager
    def one(self) -> Iterator[C]:
        """Have a pool for one request."""
        with self._lock:
            index = next((index for index, count in enumerate(self._busy) if count < _OF_POOL), len(self._busy))
            if index == len(self._busy):
                self._busy.append(0)
                self.all.append(self._make())
            self._busy[index] += 1
        try:
            yield self.all[index]
        finally:
            with self._lock:
                self._busy[index] -= 1


class Wire:
    """Connections of clients that block."""

    def __init__(self, options: Options) -> None:
        self._url = options.url.rstrip("/")
        self._pools = _Pools(httpx.Client, options)
        self._places = threading.BoundedSemaphore(_AT_ONCE)

    def run(self, steps: Steps[R]) -> R:
        """Carry out a question to its end."""
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._do(step)
                except ClientError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            result: R = end.value
            return result

    def read(self, pieces: Iterator[bytes]) -> bytes:
        """Return the next piece of an answer that streams."""
        try:
            return next(pieces)
        except StopIteration:
            raise UnreachableError(_CUT) from None
        except httpx.HTTPError as error:
            raise error_of(error, self._url) from error

    def close(self) -> None:
        """Close the connections."""
        for http in self._pools.all:
            http.close()

    def _do(self, step: Send | Wait) -> Reply | httpx.Response | None:
        if isinstance(step, Wait):
            time.sleep(step.seconds)
            return None
        try:
            with self._places:
                with self._pools.one() as http, ExitStack() as files:
                    request = http.build_request(step.method, self._url + step.path, **_body(step, files))
                    response = http.send(request, stream=step.streams)
            if step.streams:
                if response.status_code < _BAD:
                    return response
                response.read()
        except httpx.HTTPError as error:
            raise error_of(error, self._url) from error
        return Reply(response.status_code, response.headers, response.content)


class AsyncWire:
    """Connections of clients on an event loop."""

    def __init__(self, options: Options) -> None:
        self._url = options.url.rstrip("/")
        self._pools = _Pools(httpx.AsyncClient, options)
        self._places = asyncio.BoundedSemaphore(_AT_ONCE)

    async def run(self, steps: Steps[R]) -> R:
        """Carry out a question to its end."""
        try:
            step = next(steps)
            while True:
                try:
                    answer = await self._do(step)
                except ClientError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            result: R = end.value
            return result

    async def read(self, pieces: AsyncIterator[bytes]) -> bytes:
        """Return the next piece of an answer that streams."""
        try:
            return await anext(pieces)
        except StopAsyncIteration:
            raise UnreachableError(_CUT) from None
        except httpx.HTTPError as error:
            raise error_of(error, self._url) from error

    async def close(self) -> None:
        """Close the connections."""
        for http in self._pools.all:
            await http.aclose()

    async def _do(self, step: Send | Wait) -> Reply | httpx.Response | None:
        if isinstance(step, Wait):
            await asyncio.sleep(step.seconds)
            return None
        try:
            async with self._places:
                with self._pools.one() as http, ExitStack() as files:
                    request = http.build_request(step.method, self._url + step.path, **_body(step, files))
                    response = await http.send(request, stream=step.streams)
            if step.streams:
                if response.status_code < _BAD:
                    return response
                await response.aread()
        except httpx.HTTPError as error:
            raise error_of(error, self._url) from error
        return Reply(response.status_code, response.headers, response.content)


def error_of(error: httpx.HTTPError, url: str) -> ClientError:
    """Return the client's exception for an error of httpx."""
    if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
        return TimedOutError(f"{url} has not answered in time")
    return UnreachableError(f"{url} cannot be reached: {str(error) or type(error).__name__}")


def _body(send: Send, files: ExitStack) -> dict[str, Any]:
    """Return the arguments for a request's body; files are open until it is sent."""
    if send.form is None:
        return {"content": send.content, "headers": send.headers}
    opened = []
    for name, upload in send.form.files:
        content = upload.opened()
        if isinstance(upload.content, Path):
            files.callback(content.close)  # type: ignore[union-attr] # a path is opened, bytes are themselves
        opened.append((name, (upload.name, content, upload.media_type)))
    return {"data": send.form.fields, "files": opened, "headers": send.headers}
