"""Which addresses a client's URL may lead to."""

from __future__ import annotations

import pytest

from geartrain.outbound.policy import AddressRefusedError, UrlPolicy

PUBLIC = [
    "93.184.216.34",
    "1.1.1.1",
    "2606:4700:4700::1111",
    "::ffff:93.184.216.34",
    "64:ff9b::5db8:d822",  # NAT64 of 93.184.216.34
    "2002:5db8:d822::1",  # 6to4 of 93.184.216.34
]
INTERNAL = [
    "127.0.0.1",
    "127.9.9.9",
    "0.0.0.0",  # noqa: S104 - an address to refuse
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "100.64.0.1",  # carrier-grade NAT
    "192.0.2.1",  # documentation
    "198.18.0.1",  # benchmarking
    "192.88.99.1",  # a relay of 6to4
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fc00::1",
    "fd12:3456::1",
    "fec0::1",  # site-local, deprecated
    "2001:db8::1",  # documentation
    "2001::1",  # Teredo
    "64:ff9b:1::1",  # NAT64 for local use
    "100::1",  # discard
    "4000::1",
    "::ffff:10.0.0.1",
    "::ffff:127.0.0.1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",  # NAT64 of 127.0.0.1
    "2002:0a00:0001::1",  # 6to4 of 10.0.0.1
]
NEVER = [
    "169.254.169.254",
    "169.254.0.1",
    "fe80::1",
    "fe80::1%eth0",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "168.63.129.16",
    "100.100.100.200",
    "192.0.0.192",
    "fd00:ec2::254",
    "fd20:ce::254",
    "224.0.0.1",
    "239.255.255.250",
    "ff02::1",
    "::ffff:224.0.0.1",
]


@pytest.mark.parametrize("address", PUBLIC)
@pytest.mark.parametrize("allow_private", [False, True])
def test_public_addresses_pass(address: str, allow_private: bool) -> None:
    assert UrlPolicy(allow_private).refusal(address) is None


@pytest.mark.parametrize("address", INTERNAL)
def test_internal_addresses_pass_only_with_the_flag(address: str) -> None:
    refusal = UrlPolicy().refusal(address)
    assert refusal is not None
    assert "--allow-private-urls" in refusal
    assert UrlPolicy(allow_private=True).refusal(address) is None


@pytest.mark.parametrize("address", NEVER)
@pytest.mark.parametrize("allow_private", [False, True])
def test_metadata_link_local_and_multicast_never_pass(address: str, allow_private: bool) -> None:
    refusal = UrlPolicy(allow_private).refusal(address)
    assert refusal is not None
    assert "--allow-private-urls" not in refusal


@pytest.mark.parametrize("address", ["", "localhost", "1.2.3", "1.2.3.4.5", "12345"])
def test_what_is_no_address_does_not_pass(address: str) -> None:
    assert UrlPolicy(allow_private=True).refusal(address) is not None


def test_of_several_addresses_those_that_pass_are_kept_in_order() -> None:
    admitted = UrlPolicy().admit("mixed.test", ["10.0.0.1", "1.1.1.1", "::1", "93.184.216.34"])
    assert admitted == ["1.1.1.1", "93.184.216.34"]


def test_refusal_names_the_host_and_not_its_addresses() -> None:
    with pytest.raises(AddressRefusedError, match=r"^intranet\.test is a loopback, private") as caught:
        UrlPolicy().admit("intranet.test", ["10.1.2.3", "10.1.2.4"])
    assert "10.1.2" not in str(caught.value)


def test_host_without_address_is_refused() -> None:
    with pytest.raises(AddressRefusedError, match=r"nowhere\.test is a name without an address"):
        UrlPolicy().admit("nowhere.test", [])
