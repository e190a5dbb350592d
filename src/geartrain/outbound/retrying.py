"""stamina, with a log record of each retry: by itself it would print to stdout."""

from __future__ import annotations

import logging

from stamina import retry_context
from stamina.instrumentation import RetryDetails, set_on_retry_hooks

__all__ = ["retry_context"]

logger = logging.getLogger(__name__)


def _log(details: RetryDetails) -> None:
    fields = {"tries": details.retry_num, "seconds": round(details.wait_for, 3), "reason": repr(details.caused_by)}
    logger.debug("a request will be tried again", extra=fields)


set_on_retry_hooks((_log,))
