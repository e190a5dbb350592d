"""Rules for URLs that clients gave, and for the addresses they lead to: the guard against server-side request forgery.

The policy speaks of addresses, not of names: a name is resolved once, and the connection goes to the very address that
passed (see `network.GuardedBackend`), so a name that changes its answer between check and connection gains nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

import msgspec

from geartrain.outbound.files import clip_text

_NAT64 = IPv6Network("64:ff9b::/96")
_V4_COMPATIBLE = IPv6Network("::/96")
_RELAYS = IPv4Network("192.88.99.0/24")  # of 6to4, given up by RFC 7526; Python still calls them global
_V6_GLOBAL_UNICAST = IPv6Network("2000::/3")

# Addresses at which clouds give credentials to any process of the machine. Most use the local link, which is refused as
# a whole; these stand outside it.
_METADATA: tuple[IPv4Network | IPv6Network, ...] = (
    IPv4Network("168.63.129.16/32"),  # Azure
    IPv4Network("100.100.100.200/32"),  # Alibaba
    IPv4Network("192.0.0.192/32"),  # Oracle
    IPv6Network("fd00:ec2::/32"),  # AWS
    IPv6Network("fd20:ce::254/128"),  # Google
)

_NEVER = "an address of the local link, of a metadata service or of a group, which a URL may never lead to"
_INTERNAL = (
    "a loopback, private or otherwise internal address, which a URL may not lead to "
    "unless the server runs with --allow-private-urls"
)
_LONGEST_URL = 8192  # characters
_LONGEST_SHOWN = 100  # characters of a value in a sentence
_ADDRESS = re.compile(r"[0-9.]+|.*:.*")  # a numeric host, not a name
_NO_NAME = re.compile(r'[\x00-\x20"%<>\\^`{|}\x7f]')  # characters that no host has


class AddressRefusedError(Exception):
    """A host none of whose addresses may be connected to; the text is a sentence for the client."""


class UrlPolicy(msgspec.Struct, frozen=True):
    """The rule for addresses: public ones pass; internal ones only if `allow_private`.

    Addresses of the local link (169.254.0.0/16 and fe80::/10, where metadata services are), known metadata services
    elsewhere, and multicast groups never pass.
    """

    allow_private: bool = False

    def refusal(self, address: str) -> str | None:
        """Return the reason against connections to a numeric `address`, as the end of a sentence; None if allowed.

        An IPv6 address that carries an IPv4 one (mapped, compatible, 6to4, NAT64) must pass as both.
        """
        try:
            outer = ip_address(address)
        except ValueError:
            return "no address of the internet"
        carried = _carried(outer)
        if _never(outer) or (carried is not None and _never(carried)):
            return _NEVER
        if self.allow_private:
            return None
        # A mapped or translated address is no global one by itself: what it carries is where it leads.
        public = _public(outer) if carried is None else _public(carried)
        return None if public else _INTERNAL

    def admit(self, host: str, addresses: Sequence[str]) -> list[str]:
        """The `addresses` of `host` that may be connected to, in their order.

        Raises AddressRefusedError: none may; the sentence does not tell the addresses, which a client has no need
            to know.
        """
        refusals = {address: self.refusal(address) for address in addresses}
        admitted = [address for address, refusal in refusals.items() if refusal is None]
        if not admitted:
            reason = next(iter(refusals.values()), "a name without an address")
            raise AddressRefusedError(f"{host} is {reason}")
        return admitted


def _carried(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that an IPv6 address only wraps."""
    if isinstance(address, IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64 or (address in _V4_COMPATIBLE and int(address) > 1):  # :: and ::1 are themselves
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return None


def _never(address: IPv4Address | IPv6Address) -> bool:
    return address.is_link_local or address.is_multicast or any(address in network for network in _METADATA)


def _public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address) and address not in _V6_GLOBAL_UNICAST:
        return False
    return address.is_global and not address.is_reserved and address not in _RELAYS


def target_fault(url: str, policy: UrlPolicy) -> str | None:
    """Return the fault of a target URL that shows without a connection, as a sentence; None if it is good."""
    if len(url) > _LONGEST_URL:
        return f"the URL is {len(url)} characters long; at most {_LONGEST_URL} are accepted"
    scheme, colon, _ = url.partition(":")
    if not colon or scheme.lower() not in {"http", "https"}:
        return f'"{clip_text(url, _LONGEST_SHOWN)}" is no http: or https: URL'
    fault = http_fault(url)
    if fault is not None:
        return fault
    host = urlsplit(url).hostname or ""
    if not _ADDRESS.fullmatch(host):
        return host_fault(host)
    refusal = policy.refusal(host)
    return None if refusal is None else f"{host} is {refusal}"


def http_fault(url: str) -> str | None:
    """Return the fault of an http(s) URL's text, as a sentence; None if it is good."""
    try:
        parts = urlsplit(url)
        well_formed = bool(parts.hostname) and (parts.port or 1) > 0 and url.isprintable()
    except ValueError:  # a port that is none, brackets that hold no address
        well_formed = False
    return None if well_formed else f'"{clip_text(url, _LONGEST_SHOWN)}" is a malformed URL'


def host_fault(host: str) -> str | None:
    """Return the reason for which `host` is neither a name nor an address, as a sentence; None if it is one."""
    try:
        if ":" not in host:  # otherwise it is an IPv6 address, which has been in brackets
            host.encode("idna")
        possible = not _NO_NAME.search(host)
    except ValueError:  # a label that is empty or too long
        possible = False
    return None if possible else f'"{clip_text(host, _LONGEST_SHOWN)}" cannot be the name of a host'
