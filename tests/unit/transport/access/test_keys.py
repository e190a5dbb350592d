"""The lines of a file of keys."""

from __future__ import annotations

import hashlib

import pytest

from geartrain.domain.principal import Principal
from geartrain.transport.access.guard import ANY_MODEL, Grant
from geartrain.transport.access.keys import (
    NEVER,
    Key,
    check_models,
    digest_of,
    new_key,
    read_lines,
    read_time,
    write_line,
    write_time,
)
from geartrain.transport.access.options import AccessError

DIGEST = hashlib.sha256(b"secret").hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()


def read(text: str) -> list[Key | None]:
    return read_lines(text, "keys")


def test_line_has_a_name_scopes_and_a_digest() -> None:
    assert read(f"ada predict,read sha256:{DIGEST}") == [Key("ada", ("predict", "read"), digest_of("secret"))]


def test_digest_may_stand_as_sha256sum_prints_it() -> None:
    assert read(f"ada  predict\t{DIGEST.upper()}") == [Key("ada", ("predict",), digest_of("secret"))]


def test_line_may_have_models_and_an_end() -> None:
    (key,) = read(f"ada admin {DIGEST} models=ec*,pets expires=2027-01-31")
    assert key == Key("ada", ("admin",), digest_of("secret"), ("ec*", "pets"), 1801353600.0)


def test_comments_and_blank_lines_are_passed_over() -> None:
    keys = read(f"# who may come in\n\n   \nada predict {DIGEST}\n  # the end")
    assert [key and key.name for key in keys] == [None, None, None, "ada", None]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ada predict", "keys, line 1: a key has the form NAME SCOPE,… sha256:DIGEST"),
        (f"\n\na/b predict {DIGEST}", "keys, line 3: 'a/b' is no name of a key; write up to 64 letters"),
        (f"ada predikt {DIGEST}", "there is no scope 'predikt'; the scopes are predict, read, admin"),
        (f"ada open {DIGEST}", "there is no scope 'open'"),
        (f"ada predict, {DIGEST}", "there is no scope ''"),
        ("ada predict abc", "the third word is no SHA-256; write sha256: and 64 hexadecimal digits"),
        ("ada predict gt_AAAA", "the third word is the key itself; write its SHA-256 there"),
        (f"ada predict {DIGEST} modles=a", "'modles=a' is no option of a key; write models=PATTERN"),
        (f"ada predict {DIGEST} models=", "'' is no pattern of models"),
        (f"ada predict {DIGEST} models=a models=b", "an option is given twice"),
        (f"ada predict {DIGEST} expires=soon", "'soon' is no date; write one such as 2027-01-31"),
        (f"ada predict {DIGEST}\nada read {OTHER}", "keys, line 2: line 1 has the same name; remove one of the two"),
        (f"ada predict {DIGEST}\n\nbob read {DIGEST}", "keys, line 3: line 1 has the same digest"),
    ],
)
def test_wrong_line_is_named_with_what_to_do(text: str, said: str) -> None:
    with pytest.raises(AccessError) as caught:
        read(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        Key("ada", ("predict",), digest_of("a")),
        Key("a.b@c-d", ("predict", "read", "admin"), digest_of("b"), ("ec*", "pets"), 1801353600.0),
        Key("b", ("read",), digest_of("c"), (ANY_MODEL,), 1801353601.0),
    ],
)
def test_written_lines_are_read_as_they_were(key: Key) -> None:
    assert read(write_line(key)) == [key]


def test_plain_line_says_no_more_than_it_has_to() -> None:
    assert write_line(Key("ada", ("predict",), digest_of("secret"))) == f"ada predict sha256:{DIGEST}"


def test_times_are_in_utc() -> None:
    assert read_time("2027-01-31") == read_time("2027-01-31T02:00:00+02:00") == 1801353600.0
    assert write_time(1801353600.0) == "2027-01-31"
    assert write_time(1801353661.5) == "2027-01-31T00:01:01Z"


def test_keys_are_long_and_never_the_same() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("gt_") and len(key) == 46 for key in keys)


@pytest.mark.parametrize("pattern", ["", "a b", "a,b", "a\nb", " a"])
def test_pattern_that_a_line_cannot_hold_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="is no pattern of models"):
        check_models([pattern])


def test_grant_is_what_the_line_says() -> None:
    grant = Key("ada", ("read",), b"", ("ec*",), NEVER).grant()
    principal = Principal("key:ada")
    assert grant == Grant("key 'ada'", frozenset({"read"}), ("ec*",), is_lasting=True, name="ada", principal=principal)


def test_s5_admin_sees_what_others_have_made() -> None:
    assert Key("root", ("predict", "admin"), b"").grant().principal == Principal("key:root", sees_all=True)
