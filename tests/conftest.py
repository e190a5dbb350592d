"""Lets pytest explain the assertions of the helpers as it explains those of the tests."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.support")
