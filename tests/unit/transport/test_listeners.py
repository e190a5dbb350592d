"""Which routes are on which port, and who can reach an address."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from geartrain.domain.errors import GeartrainError
from geartrain.server import listen
from geartrain.transport.routing import (
    GET,
    POST,
    Api,
    Params,
    Route,
    Router,
    exposure_warning,
    is_loopback,
    split_routes,
)
from geartrain.transport.wire.exchange import Answer, Decision, Head


class PlainApi:
    """Answers with a status alone."""

    name = "plain"
    shows_logs = True

    def refuse(self, error: GeartrainError) -> Answer:
        raise AssertionError(error)

    def not_found(self) -> Answer:
        return Answer(HTTPStatus.NOT_FOUND)

    def wrong_method(self, allowed: str) -> Answer:
        return Answer(HTTPStatus.METHOD_NOT_ALLOWED, (allowed.encode(),))


API: Api = PlainApi()


def accept(_head: Head, _params: Params) -> Decision:
    return Answer(HTTPStatus.OK)


ROUTES = (
    Route(GET, "/", accept, API, "read"),
    Route(GET, "/health-check", accept, API, "open"),
    Route(GET, "/v2/health/live", accept, API, "open"),
    Route(GET, "/v2/health/ready", accept, API, "open"),
    Route(GET, "/metrics", accept, API, "read"),
    Route(POST, "/predictions", accept, API, "predict"),
    Route(POST, "/shutdown", accept, API, "admin"),
    Route(POST, "/v2/repository/models/{model}/load", accept, API, "admin"),
    Route(GET, "/v2/systemsharedmemory/status", accept, API, "admin"),
)
HEALTH = {"/health-check", "/v2/health/live", "/v2/health/ready"}
ADMINISTRATION = {
    "/metrics",
    "/shutdown",
    "/v2/repository/models/{model}/load",
    "/v2/systemsharedmemory/status",
}


def status(routes: tuple[Route, ...], method: str, path: bytes) -> int:
    answer = Router(routes, API).begin(Head(method, path, b"", ()))
    assert isinstance(answer, Answer)
    return answer.status


def test_without_a_port_of_administration_all_routes_are_on_one() -> None:
    assert split_routes(ROUTES, has_admin_port=False) == (ROUTES, ())


def test_administration_and_metrics_move_and_health_is_on_both() -> None:
    public, admin = split_routes(iter(ROUTES), has_admin_port=True)
    assert {route.path for route in public} == {route.path for route in ROUTES} - ADMINISTRATION
    assert {route.path for route in admin} == ADMINISTRATION | HEALTH


@pytest.mark.parametrize(
    ("method", "path", "on_public", "on_admin"),
    [
        ("POST", b"/shutdown", 404, 200),
        ("GET", b"/metrics", 404, 200),
        ("POST", b"/v2/repository/models/x/load", 404, 200),
        ("GET", b"/v2/systemsharedmemory/status", 404, 200),
        ("GET", b"/health-check", 200, 200),
        ("POST", b"/predictions", 200, 404),
        ("GET", b"/", 200, 404),
    ],
)
def test_request_on_the_other_port_is_not_found(method: str, path: bytes, on_public: int, on_admin: int) -> None:
    public, admin = split_routes(ROUTES, has_admin_port=True)
    assert (status(public, method, path), status(admin, method, path)) == (on_public, on_admin)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.1", "::1", "::1%lo", "::ffff:127.0.0.1"])
def test_loopback_is_for_the_own_machine_alone(address: str) -> None:
    assert is_loopback(address)
    assert exposure_warning(address, has_keys=False) is None


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "", "10.0.0.1", "192.0.2.1", "2001:db8::1", "::ffff:10.0.0.1"])  # noqa: S104
def test_other_address_without_keys_is_warned_of(address: str) -> None:
    assert not is_loopback(address)
    said = exposure_warning(address, has_keys=False)
    assert said is not None
    assert "--keys" in said
    assert "docs/security.md" in said
    assert exposure_warning(address, has_keys=True) is None


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])  # noqa: S104
def test_warning_says_what_a_wildcard_means(address: str) -> None:
    assert "can reach any address of this machine" in str(exposure_warning(address, has_keys=False))
    assert "can reach 10.0.0.1 may" in str(exposure_warning("10.0.0.1", has_keys=False))


@pytest.mark.parametrize(("name", "expected"), [("localhost", True), ("127.1", True), ("", False), ("0", False)])
def test_name_is_judged_by_the_address_that_it_stands_for(name: str, *, expected: bool) -> None:
    with listen(name, 0) as listener:
        assert is_loopback(listener.getsockname()[0]) is expected
