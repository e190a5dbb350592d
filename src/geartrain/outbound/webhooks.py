"""Sends webhooks: which targets are accepted, and one client for all of them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from geartrain.outbound.concurrency import off_loop
from geartrain.outbound.retries import Retries
from geartrain.outbound.urls import target_fault

if TYPE_CHECKING:
    from geartrain.domain.predictions.webhook import Webhook
    from geartrain.outbound.policy import UrlPolicy
    from geartrain.outbound.webhook_client import WebhookClient


class WebhookSender:
    """Sends the webhooks of all predictions, over one pool of connections that the first of them opens.

    The targets are clients' URLs, so every connection, also of a redirect, goes to an address that `policy` has passed.
    `token` is sent as `Authorization: Bearer …` to each of them, but not to where another host redirects to.
    """

    def __init__(
        self, policy: UrlPolicy, *, user_agent: str, token: str | None = None, retries: Retries | None = None
    ) -> None:
        self._policy = policy
        self._headers = [("content-type", "application/json"), ("accept", "*/*"), ("user-agent", user_agent)]
        if token:
            self._headers.append(("authorization", f"Bearer {token}"))
        self._retries = retries or Retries()
        self._client: WebhookClient | None = None
        self._opening = asyncio.Lock()
        self._is_ending = False

    def fault(self, url: str) -> str | None:
        """What is wrong with a target and can be told without a connection, as a sentence; None if nothing is."""
        return target_fault(url, self._policy)

    async def send(self, webhook: Webhook, body: Callable[[], bytes]) -> str | None:
        """Try once; return why it did not arrive, None if it did. `body` is asked for when its turn has come."""
        return await (self._client or await self._open()).send(webhook, body)

    async def deliver(self, webhook: Webhook, body: bytes) -> str | None:
        """Try until it has arrived, or there is no hope of it; return why it did not arrive, None if it did.

        What may pass is tried again: a connection that fails, a receiver that takes too long, 429, 500, 502, 503, 504.
        """
        return await (self._client or await self._open()).deliver(webhook, body)

    async def prepare(self) -> None:
        """Import what sends webhooks, before the first of them."""
        if self._client is None:
            await self._open()

    def end_pauses(self) -> None:
        """End the pauses, because the server is about to stop: try again at once, and pause no longer than a second."""
        self._is_ending = True
        if self._client is not None:
            self._client.end_pauses()

    async def close(self) -> None:
        """Close every connection."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _open(self) -> WebhookClient:
        async with self._opening:
            if self._client is None:
                make, tls = await off_loop(_load)
                self._client = make(self._policy, tls, headers=self._headers, retries=self._retries)
                if self._is_ending:
                    self._client.end_pauses()
            return self._client


def _load() -> tuple[type[WebhookClient], ssl.SSLContext]:
    from geartrain.outbound.network import tls_context
    from geartrain.outbound.webhook_client import WebhookClient  # late: it imports httpx and stamina, which cost 200 ms

    return WebhookClient, tls_context()
