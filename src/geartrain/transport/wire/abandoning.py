"""The exchange of a request that has none: it has not been made yet, or has nothing more to hear."""

from __future__ import annotations

import logging
from typing import Any, Final

from geartrain.transport.wire.exchange import Exchange, PartsExchange

logger = logging.getLogger(__name__)


class NoExchange:
    """Stands where there is no exchange."""

    def receive(self, body: Any) -> None:
        """Take nothing."""

    def abandon(self) -> None:
        """Abandon nothing."""


NO_EXCHANGE: Final = NoExchange()


def abandon(exchange: Exchange | PartsExchange) -> None:
    """Abandon an exchange, whatever it raises."""
    try:
        exchange.abandon()
    except Exception:
        logger.exception("a handler failed when its client had left")
