"""Addresses of clients, as limits count them."""

from __future__ import annotations

import ipaddress

_IPV6_PREFIX = 64
"""Bits that identify a client: whoever has one IPv6 address usually has a whole /64."""


def network_of(host: str) -> str:
    """Return an IPv4 address, or the network of an IPv6 address; other text as it is.

    A client with 2^64 addresses would otherwise have as many connections and attempts as it likes.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
