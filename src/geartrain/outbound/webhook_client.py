"""One webhook by HTTP POST: redirects, time limits, retries.

Imports httpx and stamina, so it is itself imported only when the first webhook is sent.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import httpcore
import httpx

from geartrain.outbound.host_limits import HostLimits
from geartrain.outbound.network import open_guarded_client, read_rest
from geartrain.outbound.policy import AddressRefusedError
from geartrain.outbound.retries import Retries
from geartrain.outbound.retrying import retry_context

if TYPE_CHECKING:
    from geartrain.domain.predictions.webhook import Webhook
    from geartrain.outbound.policy import UrlPolicy

_SECONDS: Final = 30.0  # for one try, redirects included; observed Cog, section 13
_MOST_REDIRECTS: Final = 10
_TRY_AGAIN: Final = frozenset({429, 500, 502, 503, 504})
_EACH: Final = 16  # requests to one receiver at once
_TOGETHER: Final = 256  # requests to all of them
_IDLE_SECONDS: Final = 5.0  # without a request until the connections are closed
_LAST_RETRIES: Final = Retries(tries=100, first_pause=0.1, longest_pause=1.0, jitter=0.1, seconds=60.0)


class _RefusedError(Exception):
    def __init__(self, status: int) -> None:
        phrase = f" {HTTPStatus(status).phrase}" if status in set(HTTPStatus) else ""
        super().__init__(f"the receiver answered {status}{phrase}")
        self.status = status


class _RedirectsError(Exception):
    def __init__(self) -> None:
        super().__init__(f"there are more than {_MOST_REDIRECTS} redirects")


_PASSING = (TimeoutError, httpcore.TimeoutException, httpcore.NetworkError, httpcore.RemoteProtocolError)
_FAILURES = (
    *_PASSING,
    _RefusedError,
    _RedirectsError,
    AddressRefusedError,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
    httpx.HTTPError,  # a Location that is no URL
    httpx.InvalidURL,
)


class WebhookClient:
    """Sends webhooks over one pool of connections, which it closes when none has been sent for a while."""

    def __init__(
        self, policy: UrlPolicy, tls: ssl.SSLContext, *, headers: list[tuple[str, str]], retries: Retries
    ) -> None:
        self._policy = policy
        self._tls = tls
        self._headers = headers
        self._retries = retries
        self._limits = HostLimits(each=_EACH, together=_TOGETHER)
        self._client: httpx.AsyncClient | None = None
        self._users = 0
        self._idle: asyncio.TimerHandle | None = None
        self._closing: asyncio.Future[None] | None = None
        self._is_ending = False
        self._pauses: set[asyncio.Timeout] = set()  # of deliveries between two tries

    async def send(self, webhook: Webhook, body: Callable[[], bytes]) -> str | None:
        """Try once; return why it did not arrive."""
        try:
            await self._try(webhook, body)
        except _FAILURES as failure:
            return _reason(failure)
        return None

    async def deliver(self, webhook: Webhook, body: bytes) -> str | None:
        """Try until it has arrived or there is no hope; return why it did not arrive."""
        failure = await self._insist(
            webhook, body, self._retries, again=lambda error: not self._is_ending and _passes(error)
        )
        if failure is not None and self._is_ending and _passes(failure):
            failure = await self._insist(webhook, body, _LAST_RETRIES, again=_passes)
        return None if failure is None else _reason(failure)

    def end_pauses(self) -> None:
        """End every pause between two tries, and make no more long ones."""
        self._is_ending = True
        now = asyncio.get_running_loop().time()
        for pause in self._pauses:
            pause.reschedule(now)
        self._pauses.clear()

    async def close(self) -> None:
        """Close every connection."""
        if self._idle is not None:
            self._idle.cancel()
        self._let_go()
        if self._closing is not None:
            await self._closing

    async def _insist(
        self, webhook: Webhook, body: bytes, retries: Retries, *, again: Callable[[Exception], bool]
    ) -> Exception | None:
        attempts = retry_context(
            again,
            attempts=retries.tries,
            timeout=retries.seconds,
            wait_initial=retries.first_pause,
            wait_max=retries.longest_pause,
            wait_jitter=retries.jitter,
        )
        pause = asyncio.timeout(None)
        try:
            async with pause:
                async for attempt in attempts:
                    with attempt:
                        self._pauses.discard(pause)
                        try:
                            await self._try(webhook, lambda: body)
                        finally:
                            self._pauses.add(pause)
        except _FAILURES as failure:
            return failure
        finally:
            self._pauses.discard(pause)
        return None

    async def _try(self, webhook: Webhook, body: Callable[[], bytes]) -> None:
        receiver = urlsplit(webhook.url).netloc.rpartition("@")[2].lower()
        async with self._limits.enter(receiver), self._connections() as client, asyncio.timeout(_SECONDS):
            headers = [*self._headers, *webhook.trace]
            request = httpx.Request("POST", webhook.url, headers=headers, content=body())
            for _ in range(_MOST_REDIRECTS + 1):
                response = await client.send(request, stream=True)
                try:
                    if response.next_request is None and not response.is_success:
                        raise _RefusedError(response.status_code)
                    await read_rest(response)
                finally:
                    await response.aclose()
                if response.next_request is None:
                    return
                request = response.next_request
        raise _RedirectsError

    @asynccontextmanager
    async def _connections(self) -> AsyncIterator[httpx.AsyncClient]:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._client is None:
            self._client = open_guarded_client(self._policy, tls=self._tls, timeout=_SECONDS)
        self._users += 1
        try:
            yield self._client
        finally:
            self._users -= 1
            if not self._users:
                self._idle = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._let_go)

    def _let_go(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            self._closing = asyncio.ensure_future(client.aclose())


def _passes(error: Exception) -> bool:
    """Whether a failure may pass if the webhook is sent again."""
    return error.status in _TRY_AGAIN if isinstance(error, _RefusedError) else isinstance(error, _PASSING)


def _reason(failure: Exception) -> str:
    if isinstance(failure, TimeoutError | httpcore.TimeoutException):
        return "the receiver took too long"
    return str(failure) or type(failure).__name__
