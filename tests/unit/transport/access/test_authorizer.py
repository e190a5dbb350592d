"""The header `Authorization`."""

from __future__ import annotations

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.transport.access.guard import EVERYTHING, BearerAuthorizer, Everybody, Grant

ADA = Grant("key 'ada'", frozenset({"predict"}))
BOB = Grant("key 'bob'", frozenset({"predict"}))


class Source:
    def __init__(self, **grants: Grant) -> None:
        self._grants = grants

    def find(self, token: str) -> Grant | None:
        return self._grants.get(token)


AUTHORIZER = BearerAuthorizer([Source(one=ADA), Source(two=BOB)])


@pytest.mark.parametrize("value", ["Bearer one", "bearer one", "BEARER   one", " Bearer one "])
def test_scheme_has_no_case_and_spaces_are_free(value: str) -> None:
    assert AUTHORIZER.authorize([value]) is ADA


def test_every_source_is_asked() -> None:
    assert AUTHORIZER.authorize(["Bearer two"]) is BOB


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], "This server requires a key. Send it in a header: Authorization: Bearer KEY"),
        (["Bearer one", "Bearer one"], "Send one header Authorization, not 2"),
        (["Basic one"], "has to be of the form: Bearer KEY"),
        (["one"], "has to be of the form"),
        (["Bearer"], "has to be of the form"),
        (["Bearer "], "has to be of the form"),
        ([""], "has to be of the form"),
        (["Bearer three"], "is not known to this server, or was revoked"),
        (["Bearer one two"], "is not known"),
    ],
)
def test_what_is_no_key_is_refused(values: list[str], said: str) -> None:
    with pytest.raises(GeartrainError, match=said) as caught:
        AUTHORIZER.authorize(values)
    assert caught.value.code is Code.UNAUTHENTICATED
    assert "three" not in caught.value.message  # a key is in no error


def test_everybody_may_do_everything() -> None:
    assert Everybody().authorize([]) is EVERYTHING
