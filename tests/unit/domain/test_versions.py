"""What versions may be called, and their order."""

from __future__ import annotations

import pytest

from geartrain.domain.versions import is_version, order_of


@pytest.mark.parametrize("text", ["1", "10", "0", "v1", "v0.1.0", "1.2.3-rc.1+build", "2024-11-05", "1" * 100])
def test_versions(text: str) -> None:
    assert is_version(text)


@pytest.mark.parametrize("text", ["", "v", "vv1", "latest", "-1", "1_0", "1/2", "1 ", "²", "1" * 102])
def test_no_versions(text: str) -> None:
    assert not is_version(text)


def test_the_order_is_that_of_the_numbers_in_them() -> None:
    versions = ["1", "v1.2", "2", "v9.0", "v10.0", "10.0.1", "11-a", "11-b"]
    assert sorted(versions, key=order_of) == versions
