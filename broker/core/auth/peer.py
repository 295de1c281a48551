"""The other end of a connection, as the network sees it, and the user name in its certificate."""

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
ADDRESSES_MAX: Final = 1024  # parsed addresses that are kept: the same hosts connect again and again


def login_name(certificate: Mapping[str, Any], source: NameSource, kind: str = "dns") -> str | None:
    """Return the user name in a verified certificate, or None if it has none.

    Shapes: `certificate` as ssl.SSLSocket.getpeercert() has it; of several names of a kind the first counts.
    """
    if source == "distinguished_name":
        return distinguished_name(certificate.get("subject", ())) or None
    if source == "common_name":
        found = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    else:
        found = [value for key, value in certificate.get("subjectAltName", ()) if key == ALTERNATIVES[kind]]
    return found[0] if found and found[0] else None


def distinguished_name(parts: Names) -> str:
    """Return the name as text, the most specific part first. Source: RFC 4514, rabbit_cert_info."""
    return ",".join(
        reversed(["+".join(f"{ATTRIBUTES.get(key, key)}={escaped(value)}" for key, value in part) for part in parts])
    )


def escaped(value: str) -> str:
    """Return the value with special characters escaped by a backslash. Source: RFC 4514 section 2.4."""
    text = "".join("\\" + letter if letter in SPECIAL else letter for letter in value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    if len(value) > 1 and text.endswith(" "):
        text = text[:-1] + "\\ "
    return text


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """The outcome of a TLS handshake.

    Shapes: `certificate` is the client's, verified, as ssl.SSLSocket.getpeercert() describes it; empty when it has
    none.
    """

    protocol: str
    cipher: str
    certificate: Mapping[str, Any] = field(default_factory=dict)


class Peer(NamedTuple):
    """A client's end of a connection, and ours; `verified` when this listener asks clients for certificates.

    `inside` is the user that a part of this process acts as; it needs no password, and `address` is its name. `origin`
    is the origin of another site's page in the client's browser, which gains no rights from the browser's address. A
    `web` client uses WebSocket.
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
