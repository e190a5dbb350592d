"""Sends webhooks: which targets are accepted, redirects, time limits, retries."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit

from geartrain.outbound.connection import PeerError
from geartrain.outbound.host_limits import HostLimits
from geartrain.outbound.policy import AddressRefusedError
from geartrain.outbound.retries import Retries, clear_frames, retry
from geartrain.outbound.urls import target_fault
from geartrain.outbound.webhook_client import Target, WebhookClient, WebhookRequest

if TYPE_CHECKING:
    from geartrain.domain.predictions.webhook import Webhook
    from geartrain.outbound.policy import UrlPolicy

_SECONDS: Final = 30.0  # for one try, redirects included; observed Cog, section 13
_MOST_REDIRECTS: Final = 10
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_REPEATED: Final = frozenset({307, 308})  # with their method and body; the others become a GET
_TRY_AGAIN: Final = frozenset({429, 500, 502, 503, 504})
_EACH: Final = 16  # requests to one receiver at once
_TOGETHER: Final = 256  # requests to all of them
_LAST_RETRIES: Final = Retries(tries=100, first_pause=0.1, longest_pause=1.0, jitter=0.1, seconds=60.0)


class _RefusedError(Exception):
    def __init__(self, status: int) -> None:
        phrase = f" {HTTPStatus(status).phrase}" if status in set(HTTPStatus) else ""
        super().__init__(f"the receiver answered {status}{phrase}")
        self.status = status


class _RedirectsError(Exception):
    """The receiver redirects to nowhere, or too often."""


_PASSING = (OSError, PeerError)  # a time that is over is an OSError
_FAILURES = (*_PASSING, _RefusedError, _RedirectsError, AddressRefusedError, UnicodeError)


class WebhookSender:
    """Sends the webhooks of all predictions.

    The targets are clients' URLs, so every connection, also of a redirect, goes to an address that `policy` has passed.
    `token` is sent as `Authorization: Bearer …` to each of them, but not to where another host redirects to.
    """

    def __init__(
        self, policy: UrlPolicy, *, user_agent: str, token: str | None = None, retries: Retries | None = None
    ) -> None:
        self._policy = policy
        self._headers = (("content-type", "application/json"), ("accept", "*/*"), ("user-agent", user_agent))
        self._authorization = f"Bearer {token}" if token else ""
        self._retries = retries or Retries()
        self._limits = HostLimits(each=_EACH, together=_TOGETHER)
        self._client = WebhookClient(policy)
        self._ending = asyncio.Event()  # of the server

    def fault(self, url: str) -> str | None:
        """Return the fault of a target that shows without a connection, as a sentence; None if it is good."""
        return target_fault(url, self._policy)

    async def send(self, webhook: Webhook, body: Callable[[], Awaitable[bytes]]) -> str | None:
        """Try once; return why it did not arrive, None if it did. `body` is asked for when its turn has come."""
        try:
            await self._try(webhook, body)
        except _FAILURES as failure:
            clear_frames(failure)
            return _reason(failure)
        return None

    async def deliver(self, webhook: Webhook, body: bytes) -> str | None:
        """Try until it has arrived, or there is no hope of it; return why it did not arrive, None if it did.

        What may pass is tried again: a connection that fails, a receiver that takes too long, 429, 500, 502, 503, 504.
        """

        async def whole() -> bytes:
            return body

        async def work() -> None:
            await self._try(webhook, whole)

        try:
            try:
                await retry(work, self._has_time_for, self._retries, sleep=self._pause)
            except _FAILURES as failure:
                if not (self._ending.is_set() and _passes(failure)):
                    raise
                await retry(work, _passes, _LAST_RETRIES)
        except _FAILURES as failure:
            return _reason(failure)
        return None

    def end_pauses(self) -> None:
        """End the pauses, because the server is about to stop: try again at once, and pause no longer than a second."""
        self._ending.set()

    async def close(self) -> None:
        """Close every connection."""
        self._client.close()

    def _has_time_for(self, error: Exception) -> bool:
        """True if another try is worth its pause, which may be long."""
        return not self._ending.is_set() and _passes(error)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but no longer than until the server ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()

    async def _try(self, webhook: Webhook, body: Callable[[], Awaitable[bytes]]) -> None:
        receiver = urlsplit(webhook.url).netloc.rpartition("@")[2].lower()
        async with self._limits.enter(receiver), asyncio.timeout(_SECONDS):
            method, url, content = "POST", webhook.url, await body()
            authorization, target = self._authorization, Target.of(url)
            for _ in range(_MOST_REDIRECTS + 1):
                authorization = target.basic or authorization
                own = (("authorization", authorization),) if authorization else ()
                headers = (*self._headers, *own, *webhook.trace)
                reply = await self._client.send(WebhookRequest(method, target, headers, content))
                if reply.location is None or reply.status not in _REDIRECTS:
                    if not HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES:
                        raise _RefusedError(reply.status)
                    return
                url = self._redirected(url, reply.location)
                before, target = target, Target.of(url)
                if not _is_same_receiver(before, target):
                    authorization = ""
                if reply.status not in _REPEATED:
                    method, content = "GET", b""
        raise _RedirectsError(f"there are more than {_MOST_REDIRECTS} redirects")

    def _redirected(self, url: str, location: str) -> str:
        """Return the URL that `location` stands for in an answer from `url`."""
        with contextlib.suppress(ValueError):  # brackets that hold no address
            found = urljoin(url, location)
            if target_fault(found, self._policy) is None:
                return found
        raise _RedirectsError("the receiver redirects to a URL that is not accepted")


def _is_same_receiver(before: Target, after: Target) -> bool:
    """Return True for the same origin, or the same host over TLS now."""
    secured = ("https", before.host, 443) if before.origin == ("http", before.host, 80) else before.origin
    return after.origin in {before.origin, secured}


def _passes(error: Exception) -> bool:
    """True if a failure may pass if the webhook is sent again."""
    return error.status in _TRY_AGAIN if isinstance(error, _RefusedError) else isinstance(error, _PASSING)


def _reason(failure: Exception) -> str:
    if isinstance(failure, TimeoutError):
        return "the receiver took too long"
    if isinstance(failure, PeerError):
        return f"the receiver has not answered: {failure}"
    if isinstance(failure, OSError):
        return f"the receiver cannot be reached: {failure.strerror or failure}"
    return str(failure) or type(failure).__name__
