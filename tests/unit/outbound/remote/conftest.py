from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cloud import Cloud, running_cloud


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """A cloud whose endpoints and credentials are in the environment."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with running_cloud() as cloud:
        yield cloud
