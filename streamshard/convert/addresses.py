"""Which addresses a URL that stands in somebody's data may lead to: those of the public internet.

A URL is text that someone else has written. Fetched from inside a company's or a cloud's network, it must not reach
what is reachable from there alone, such as the service that hands out a machine's credentials. Source of the lists:
IANA's registries of special-purpose IPv4 and IPv6 addresses (RFC 6890 and its updates).
"""

from __future__ import annotations

import ipaddress
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from streamshard.convert.problems import REFUSED_URL, RecordProblem

_SPECIAL = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
            "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
            "203.0.113.0/24", "224.0.0.0/3",
            # Azure's own service for its machines, in a public range.
            "168.63.129.16/32",
        ),
    )
)  # fmt: skip
_ASSIGNED6 = ipaddress.IPv6Network("2000::/3")
_SPECIAL6 = tuple(map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
# Where a network without IPv4 shows it: the last 32 bits are the IPv4 address.
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
_LOW_32 = (1 << 32) - 1


def is_public(address: str) -> bool:
    """Whether an IP address, in text, is public; one of IPv6 that holds one of IPv4 is judged by that.

    Raises:
        ValueError: no IP address.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped
        if inner is None and found in _TRANSLATED:
            inner = ipaddress.IPv4Address(int(found) & _LOW_32)
        if inner is None:
            return found in _ASSIGNED6 and not any(found in network for network in _SPECIAL6)
        found = inner
    return not any(found in network for network in _SPECIAL)


class PublicResolver(AbstractResolver):
    """Resolves names to public addresses alone. The connection goes to the very addresses that were judged here.

    Raises:
        RecordProblem: a name of other addresses only.
    """

    def __init__(self) -> None:
        self._resolver = ThreadedResolver()

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        public = [result for result in found if is_public(result["host"])]
        if not public:
            raise not_public(host, {result["host"] for result in found})
        return public

    async def close(self) -> None:
        await self._resolver.close()


def refuse_private_literal(host: str) -> None:
    """Judge a host that is written as an address, which no resolver sees.

    Raises:
        RecordProblem: it is not public.
    """
    try:
        public = is_public(host.strip("[]"))
    except ValueError:
        return
    if not public:
        raise not_public(host, set())


def not_public(host: str, addresses: set[str]) -> RecordProblem:
    """The problem of a host inside this network."""
    where = f" ({', '.join(sorted(addresses)[:3])})" if addresses else ""
    return RecordProblem(
        REFUSED_URL,
        f"host {host[:200]!r}{where} is not on the public internet; --fetch-private fetches from such hosts too",
    )
