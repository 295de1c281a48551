"""The user's name in a client's certificate, for the mechanism EXTERNAL, and how RabbitMQ writes such names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

__all__ = ["NameSource", "distinguished_name", "login_name"]

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


def login_name(certificate: Mapping[str, Any], source: NameSource, kind: str = "dns") -> str | None:
    """Return the name that a verified certificate logs in as, or None when it has no such name.

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
    """Return the name as text, the most special part first. Source: RFC 4514, rabbit_cert_info."""
    return ",".join(
        reversed(["+".join(f"{ATTRIBUTES.get(key, key)}={escaped(value)}" for key, value in part) for part in parts])
    )


def escaped(value: str) -> str:
    """Return the value with a backslash where a character would end it. Source: RFC 4514 section 2.4."""
    text = "".join("\\" + letter if letter in SPECIAL else letter for letter in value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    if len(value) > 1 and text.endswith(" "):
        text = text[:-1] + "\\ "
    return text
