"""The other end of a connection, as the network sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Any, Final

__all__ = ["Peer", "TlsFacts", "is_loopback", "network_of"]

ADDRESSES_MAX: Final = 1024  # parsed addresses that are kept: the same hosts connect again and again


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """The outcome of a TLS handshake.

    Shapes: `certificate` is the client's, verified, as ssl.SSLSocket.getpeercert() describes it; empty when it has
    none.
    """

    protocol: str
    cipher: str
    certificate: Mapping[str, Any] = field(default_factory=dict)


class Peer:
    """A client's end of a connection, and ours; `verified` when this listener asks clients for certificates.

    `inside` is the user that a part of this process acts as; it needs no password, and `address` is its name. `origin`
    is that of another site's page in the client's browser, which has no right because of where that browser is.
    Cost: one per connection; to make a dataclass takes ten times as long.
    """

    __slots__ = ("address", "inside", "origin", "port", "server_address", "server_port", "tls", "verified")

    def __init__(
        self,
        address: str,
        port: int = 0,
        server_address: str = "",
        server_port: int = 0,
        tls: TlsFacts | None = None,
        verified: bool = False,
        inside: str = "",
        origin: str = "",
    ) -> None:
        self.address = address
        self.port = port
        self.server_address = server_address
        self.server_port = server_port
        self.tls = tls
        self.verified = verified
        self.inside = inside
        self.origin = origin

    @property
    def name(self) -> str:
        """The connection's name, as RabbitMQ prints it."""
        if self.inside:
            return self.address
        client = f"{bracketed(self.address)}:{self.port}"
        return f"{client} -> {bracketed(self.server_address)}:{self.server_port}"

    @property
    def certified(self) -> bool:
        """Whether a verified certificate of the client's may name its user."""
        return self.tls is not None and bool(self.tls.certificate) and not self.origin

    @property
    def network(self) -> str:
        """The address, or for IPv6 the network of one host, which may use all of its addresses."""
        return network_of(self.address)


def bracketed(address: str) -> str:
    """Return an address in the form that a port can follow."""
    return f"[{address}]" if ":" in address else address


@lru_cache(ADDRESSES_MAX)
def network_of(address: str) -> str:
    """Return an IPv4 address itself, and the network of an IPv6 address; return other text as it is."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    mapped = parsed.ipv4_mapped
    return f"{int(parsed) >> 64:x}::/64" if mapped is None else str(mapped)


@lru_cache(ADDRESSES_MAX)
def is_loopback(address: str) -> bool:
    """Return whether a peer's address is a loopback address; text that is not an address is not."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped.is_loopback
    return parsed.is_loopback
