"""The names that clients may call the server by."""

from __future__ import annotations

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.transport.access.origins import HostPolicy, is_loopback, read_name

LOOPBACK = ["localhost", "pets.localhost", "127.0.0.1", "127.8.9.1", "[::1]", "LOCALHOST", "localhost."]
FOREIGN = ["evil.example", "localhost.evil.example", "evil-localhost", "0.0.0.0", "127.0.0.1.evil.example", "10.0.0.1"]  # noqa: S104


def is_served(policy: HostPolicy, host: str | None) -> bool:
    try:
        policy.check(None if host is None else host.encode("latin-1"))
    except GeartrainError as error:
        return error.code is not Code.FORBIDDEN
    return True


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1", "127.0.0.2", "Localhost"])
@pytest.mark.parametrize("port", ["", ":5000", ":"])
def test_loopback_address_serves_loopback_names(address: str, port: str) -> None:
    policy = HostPolicy(address, ())
    assert [is_served(policy, host + port) for host in LOOPBACK] == [True] * len(LOOPBACK)
    assert [is_served(policy, host + port) for host in FOREIGN] == [False] * len(FOREIGN)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.5", "models.example.com"])  # noqa: S104
def test_other_addresses_serve_any_name(address: str) -> None:
    policy = HostPolicy(address, ())
    assert all(is_served(policy, host) for host in LOOPBACK + FOREIGN)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])  # noqa: S104
def test_allowed_names_are_served_beside_those_of_the_loopback(address: str) -> None:
    policy = HostPolicy(address, ("models.example.com", "*.pets.example", "[2001:db8::1]"))
    for host in ("models.example.com", "MODELS.example.com:443", "a.pets.example", "[2001:db8::1]:80", *LOOPBACK):
        assert is_served(policy, host), host
    for host in ("example.com", "x.models.example.com", "pets.example", "evilpets.example", *FOREIGN):
        assert not is_served(policy, host), host


def test_any_name_can_be_allowed() -> None:
    assert is_served(HostPolicy("127.0.0.1", ("*",)), "evil.example")


@pytest.mark.parametrize("host", [None, ""])
def test_request_without_a_name_is_from_no_browser(host: str | None) -> None:
    assert is_served(HostPolicy("127.0.0.1", ()), host)


def test_error_quotes_a_part_of_a_long_name() -> None:
    with pytest.raises(GeartrainError) as caught:
        HostPolicy("127.0.0.1", ()).check(b"x" * 10_000)
    assert len(caught.value.message) < 400
    assert "start it with --allowed-host" in caught.value.message


@pytest.mark.parametrize("host", ["127.1", "[::1", "[evil]", "localhost:50:00", "é.example", "user@localhost"])
def test_odd_names_are_foreign(host: str) -> None:
    assert not is_served(HostPolicy("127.0.0.1", ()), host)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Models.Example.com", "models.example.com"),
        ("a.example.", "a.example"),
        ("*", "*"),
        ("*.a.example", "*.a.example"),
        ("2001:DB8::1", "[2001:db8::1]"),
        ("[::1]", "[::1]"),
        ("my_host", "my_host"),
    ],
)
def test_names_are_compared_in_one_form(text: str, name: str) -> None:
    assert read_name(text) == name


@pytest.mark.parametrize("text", ["", "http://a.example", "a.example:80", "a.*", "a b", "*a.example", "a/b"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no name of a host"):
        read_name(text)


def test_names_of_the_loopback() -> None:
    assert is_loopback("localhost")
    assert not is_loopback("")
