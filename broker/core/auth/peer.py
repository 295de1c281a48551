"""The remote end of a connection: its address, its TLS handshake, and the user name in its certificate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Any, Final, Literal, NamedTuple

NameSource = Literal["distinguished_name", "common_name", "subject_alternative_name"]

# OpenSSL's names of attributes -> RFC 4514's and RabbitMQ's.
ATTRIBUTES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "dnQualifier": "DNQUALIFIER",
    "domainComponent": "DC",
    "emailAddress": "EMAILADDRESS",
    "generationQualifier": "GENERATIONQUALIFIER",
    "givenName": "GIVENNAME",
    "initials": "INITIALS",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "pseudonym": "PSEUDONYM",
    "serialNumber": "SERIALNUMBER",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "surname": "SN",
    "title": "TITLE",
    "userId": "UID",
}
SPECIAL: Final = frozenset(',+"\\<>;')
ALTERNATIVES: Final = {"dns": "DNS", "email": "email", "uri": "URI", "ip": "IP Address", "other_name": "othername"}

Names = Iterable[Iterable[tuple[str, str]]]  # relative distinguished names, each of one attribute or more
ADDRESSES_MAX: Final = 1024  # results that are cached: a few hosts make most connections


def login_name(certificate: Mapping[str, Any], source: NameSource, kind: str = "dns") -> str | None:
    """Return the user name in a verified certificate, or None if there is none.

    Shapes: `certificate` is as ssl.SSLSocket.getpeercert() returns it. The first of several names of a kind is used.
    """
    if source == "distinguished_name":
        return distinguished_name(certificate.get("subject", ())) or None
    if source == "common_name":
        found = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    else:
        found = [value for key, value in certificate.get("subjectAltName", ()) if key == ALTERNATIVES[kind]]
    return found[0] if found and found[0] else None


def distinguished_name(parts: Names) -> str:
    """Return a distinguished name as text, the most specific part first. Source: RFC 4514, rabbit_cert_info."""
    return ",".join(
        reversed(["+".join(f"{ATTRIBUTES.get(key, key)}={escaped(value)}" for key, value in part) for part in parts])
    )


def escaped(value: str) -> str:
    """Return a value with special characters escaped by a backslash. Source: RFC 4514 section 2.4."""
    text = "".join("\\" + letter if letter in SPECIAL else letter for letter in value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    if len(value) > 1 and text.endswith(" "):
        text = text[:-1] + "\\ "
    return text


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """The outcome of a TLS handshake.

    Shapes: `certificate` is the client's verified certificate, as ssl.SSLSocket.getpeercert() returns it, or empty.
    """

    protocol: str
    cipher: str
    certificate: Mapping[str, Any] = field(default_factory=dict)


class Peer(NamedTuple):
    """The addresses of the two ends of a connection. `verified` is set if the listener asks clients for certificates.

    `inside` is set for a connection of a part of this process: it is the user as which the part acts, without a
    password, and `address` is the part's name. `origin` is the origin of another site's page in the client's browser:
    such a page gains no rights from the browser's address. `web` is set for a client over WebSocket.
    """

    address: str
    port: int = 0
    server_address: str = ""
    server_port: int = 0
    tls: TlsFacts | None = None
    verified: bool = False
    inside: str = ""
    origin: str = ""
    web: bool = False

    @property
    def name(self) -> str:
        """The connection's name, as RabbitMQ prints it."""
        if self.inside:
            return self.address
        client = f"{bracketed(self.address)}:{self.port}"
        return f"{client} -> {bracketed(self.server_address)}:{self.server_port}"

    @property
    def certified(self) -> bool:
        """Whether the client has a verified certificate that may name its user; not for another site's page."""
        return self.tls is not None and bool(self.tls.certificate) and not self.origin

    @property
    def network(self) -> str:
        """The IPv4 address, or the /64 network of an IPv6 address, because one host may have the whole network."""
        return network_of(self.address)


def bracketed(address: str) -> str:
    """Return an address, an IPv6 address in brackets, so that a port can follow."""
    return f"[{address}]" if ":" in address else address


@lru_cache(ADDRESSES_MAX)
def network_of(address: str) -> str:
    """Return the /64 network of an IPv6 address, the IPv4 address of a mapped one, and other text as it is."""
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
    """Return whether a peer's address is a loopback address; False for text that is not an address."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped.is_loopback
    return parsed.is_loopback
