"""Scopes and models of a grant."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.transport.access.guard import EVERYTHING, SCOPES, Grant
from geartrain.transport.routing import Scope

GRANT = Grant("key 'ada'", frozenset({"predict"}), ("ec*", "pets"))
ALL = Grant("key 'bob'", frozenset({"admin"}))


def refusal(check: Callable[[], None]) -> str:
    with pytest.raises(GeartrainError) as caught:
        check()
    assert caught.value.code is Code.FORBIDDEN
    return caught.value.message


def test_scope_includes_no_other() -> None:
    GRANT.check_scope("predict")
    assert refusal(lambda: GRANT.check_scope("read")) == "The key 'ada' does not have the scope 'read'."
    assert refusal(lambda: ALL.check_scope("predict")) == "The key 'bob' does not have the scope 'predict'."


def test_open_needs_no_scope() -> None:
    Grant("nobody", frozenset()).check_scope("open")


@pytest.mark.parametrize("model", ["ec", "ecg", "pets"])
def test_model_that_a_pattern_fits_is_allowed(model: str) -> None:
    GRANT.check_model(model)


@pytest.mark.parametrize("model", ["", "pet", "petsy", "EC", "xec"])
def test_other_models_are_not(model: str) -> None:
    assert refusal(lambda: GRANT.check_model(model)) == f"The key 'ada' is not for the model '{model}'."


def test_error_quotes_a_part_of_a_long_name() -> None:
    assert len(refusal(lambda: GRANT.check_model("x" * 5000))) < 300


def test_grant_without_patterns_is_for_no_model() -> None:
    assert refusal(lambda: Grant("token", frozenset({"read"}), ()).check_model("ec"))


def test_what_concerns_all_models_needs_a_grant_of_all() -> None:
    ALL.check_subject("all", None)
    assert "is for some models only" in refusal(lambda: GRANT.check_subject("all", "ec"))


def test_subject_decides_whether_the_model_counts() -> None:
    GRANT.check_subject("model", "ec")
    GRANT.check_subject("none", "other")
    GRANT.check_subject("model", None)  # there is no default model, so there is nothing to reach
    assert refusal(lambda: GRANT.check_subject("model", "other"))


def test_everything_is_everything() -> None:
    for scope in get_args(Scope):
        EVERYTHING.check_scope(scope)
    EVERYTHING.check_subject("all", None)
    EVERYTHING.check_model("any")
    assert set(SCOPES) == EVERYTHING.scopes
