"""Pages of other sites, and those that are allowed."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.transport.access.origins import OriginPolicy, read_origin
from tests.unit.transport.access.parts import head

APP = "https://app.example.com"
EVIL = "http://evil.example"
NONE = OriginPolicy(())
SOME = OriginPolicy((APP, "http://localhost:3000"))
ANY = OriginPolicy(("*",))


def passes(policy: OriginPolicy, method: str = "POST", **headers: str) -> bool:
    try:
        policy.check(head(method, host="127.0.0.1:5000", **headers))
    except GeartrainError as error:
        return error.code is not Code.FORBIDDEN
    return True


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, True),  # curl and servers
        ({"sec_fetch_site": "same-origin", "origin": "http://127.0.0.1:5000"}, True),
        ({"sec_fetch_site": "none"}, True),  # the user, such as from a bookmark
        ({"sec_fetch_site": "cross-site", "origin": EVIL}, False),
        ({"sec_fetch_site": "cross-site"}, False),
        ({"sec_fetch_site": "same-site", "origin": "http://127.0.0.1:3000"}, False),
        ({"sec_fetch_site": "cross-site", "origin": "http://127.0.0.1:5000"}, False),
        ({"sec_fetch_site": "unheard-of", "origin": EVIL}, False),
        ({"sec_fetch_site": "unheard-of", "origin": "http://127.0.0.1:5000"}, True),
        # what older browsers send, and all of them over plain HTTP that is not the loopback's
        ({"origin": EVIL}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": "http://127.0.0.1:5000"}, True),
        ({"origin": "https://127.0.0.1:5000"}, True),  # a proxy with TLS in front
        ({"origin": "http://127.0.0.1"}, False),
        ({"origin": "http://127.0.0.1:5000.evil.example"}, False),
    ],
)
def test_page_of_another_site_changes_nothing(headers: dict[str, str], expected: bool) -> None:
    assert passes(NONE, **headers) is expected
    assert passes(NONE, "DELETE", **headers) is expected
    assert passes(NONE, "BREW", **headers) is expected


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_what_changes_nothing_is_not_refused(method: str) -> None:
    assert passes(NONE, method, sec_fetch_site="cross-site", origin=EVIL)


def test_refusal_names_the_page_and_the_option() -> None:
    with pytest.raises(GeartrainError, match=r"A page of 'http://evil\.example' may .* with --cors-origin"):
        NONE.check(head("POST", origin=EVIL, sec_fetch_site="cross-site"))
    with pytest.raises(GeartrainError, match="A page of another site may not"):
        NONE.check(head("POST", sec_fetch_site="cross-site"))


def test_default_port_need_not_be_written() -> None:
    for origin, host in (("https://a.example", "a.example:443"), ("http://a.example:80", "a.example")):
        NONE.check(head("POST", origin=origin, host=host))
    with pytest.raises(GeartrainError):
        NONE.check(head("POST", origin="http://a.example", host="a.example:443"))
    with pytest.raises(GeartrainError):
        NONE.check(head("POST", origin="http://a.example"))  # no Host to be the same


def test_allowed_pages_may_send_anything() -> None:
    assert passes(SOME, origin=APP, sec_fetch_site="cross-site")
    assert passes(SOME, origin="http://localhost:3000", sec_fetch_site="same-site")
    assert not passes(SOME, origin=EVIL, sec_fetch_site="cross-site")
    assert not passes(SOME, origin=APP + ".evil.example")
    assert passes(ANY, origin=EVIL, sec_fetch_site="cross-site")
    assert passes(ANY, origin="null")


def preflight(policy: OriginPolicy, **headers: str) -> dict[str, str] | None:
    answer = policy.preflight(head("OPTIONS", **headers))
    if answer is None:
        return None
    assert answer.status is HTTPStatus.NO_CONTENT
    assert not b"".join(map(bytes, answer.parts))
    return {name.decode(): value.decode() for name, value in answer.headers}


def test_preflight_of_an_allowed_page_is_answered() -> None:
    headers = preflight(SOME, origin=APP, access_control_request_method="POST")
    assert headers is not None
    assert headers["access-control-allow-origin"] == APP
    assert headers["access-control-allow-credentials"] == "true"
    assert headers["vary"] == "Origin"
    assert headers["access-control-max-age"] == "7200"
    assert {"POST", "PUT", "DELETE"} <= set(headers["access-control-allow-methods"].split(", "))
    wanted = {"Authorization", "Content-Type", "Prefer", "Inference-Header-Content-Length"}
    assert wanted <= set(headers["access-control-allow-headers"].split(", "))


def test_any_page_gets_no_credentials() -> None:
    headers = preflight(ANY, origin=EVIL, access_control_request_method="POST")
    assert headers is not None
    assert headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in headers


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": EVIL, "access_control_request_method": "POST"},
        {"origin": APP},
        {"access_control_request_method": "POST"},
        {},
    ],
)
def test_other_options_are_not_answered(headers: dict[str, str]) -> None:
    assert preflight(SOME, **headers) is None


def test_post_is_no_preflight() -> None:
    assert SOME.preflight(head("POST", origin=APP, access_control_request_method="POST")) is None


def test_answers_have_headers_for_allowed_pages_alone() -> None:
    assert dict(SOME.headers(APP.encode())) == {
        b"access-control-allow-origin": APP.encode(),
        b"access-control-allow-credentials": b"true",
        b"vary": b"Origin",
        b"access-control-expose-headers": b"Inference-Header-Content-Length, Retry-After, WWW-Authenticate, "
        b"X-Request-Id, X-Prediction-Id, Traceparent, Mcp-Session-Id",
    }
    assert SOME.headers(EVIL.encode()) == SOME.headers(None) == NONE.headers(APP.encode()) == ()
    assert dict(ANY.headers(EVIL.encode()))[b"access-control-allow-origin"] == b"*"


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://App.example.com/", APP),
        ("https://app.example.com:443", APP),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://[::1]:80", "http://[::1]"),
        ("http://a.example:443", "http://a.example:443"),
        ("*", "*"),
    ],
)
def test_origins_are_compared_as_browsers_write_them(text: str, origin: str) -> None:
    assert read_origin(text) == origin


@pytest.mark.parametrize("text", ["", "null", "app.example.com", "https://", "https://a.example/path", "https://*.a"])
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no origin"):
        read_origin(text)
