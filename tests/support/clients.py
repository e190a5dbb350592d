"""Clients of a server of a test, let in as the mode wants it."""

from __future__ import annotations

import httpx

from tests.support import modes


def asyncio_client(url: str, timeout: float = 60) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=timeout, **modes.current().client_options)


def blocking_client(url: str, timeout: float = 60) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=timeout, **modes.current().client_options)
