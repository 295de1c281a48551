"""The expiry dates of PEM certificates."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final

__all__ = ["expiries"]

END: Final = "-----END CERTIFICATE-----"
BEGIN: Final = "-----BEGIN CERTIFICATE-----"
SEQUENCE: Final = 0x30
VERSION: Final = 0xA0  # the optional version field
UTC_TIME: Final = 0x17  # two digits of the year; the other form has four
LONG: Final = 0x80  # the length is in the octets that follow
FIELDS_BEFORE_VALIDITY: Final = 3  # serial number, signature algorithm, issuer


def expiries(path: str) -> list[datetime]:
    """Return when each certificate of a PEM file expires. *Blocking*: reads the file.

    Raises: ValueError for a file without a certificate, or with one that cannot be read; OSError.
    """
    pieces = Path(path).read_text("ascii", "replace").split(END)[:-1]
    certificates = [piece[piece.index(BEGIN) :] + END for piece in pieces if BEGIN in piece]
    if not certificates:
        raise ValueError(f"{path} holds no certificate")
    return [_expiry(ssl.PEM_cert_to_DER_cert(certificate)) for certificate in certificates]


def _expiry(der: bytes) -> datetime:
    """Return when a certificate expires. Source: RFC 5280, 4.1: Certificate, TBSCertificate, Validity."""
    try:
        _tag, certificate, _end = _element(der, 0)
        _tag, body, _end = _element(certificate, 0)
        tag, _version, at = _element(body, 0)
        if tag != VERSION:
            at = 0
        for _ in range(FIELDS_BEFORE_VALIDITY):
            at = _element(body, at)[2]
        _tag, validity, _end = _element(body, at)
        _begins, ends = islice(_elements(validity), 2)
    except (IndexError, ValueError):
        raise ValueError("a certificate cannot be read") from None
    tag, text = ends
    moment = text.decode("ascii", "replace").removesuffix("Z")
    if tag == UTC_TIME:  # RFC 5280, 4.1.2.5.1: the years 1950 to 2049
        moment = f"{'19' if moment[:2] >= '50' else '20'}{moment}"
    return datetime.strptime(moment, "%Y%m%d%H%M%S").replace(tzinfo=UTC)


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at < len(der):
        tag, content, at = _element(der, at)
        found.append((tag, content))
    return found


def _element(der: bytes, at: int) -> tuple[int, bytes, int]:
    """Return the tag and the content of the element at an offset, and where it ends. Source: X.690, 8.1."""
    size = der[at + 1]
    start = at + 2
    if size & LONG:
        octets = size & ~LONG
        size = int.from_bytes(der[start : start + octets], "big")
        start += octets
    if start + size > len(der):
        raise ValueError("an element is cut short")
    return der[at], der[start : start + size], start + size
