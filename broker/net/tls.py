"""TLS: a context from the settings, replaced when the settings or their files change.

The broker does not start with unusable files; a running broker keeps its context if the new files are unusable.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from broker.amqp.errors import BrokerError
from broker.core.auth.peer import Peer, TlsFacts
from broker.event_log import get_logger
from broker.settings.access import Tls

END: Final = "-----END CERTIFICATE-----"
BEGIN: Final = "-----BEGIN CERTIFICATE-----"
VERSION: Final = 0xA0  # the optional version field
UTC_TIME: Final = 0x17  # a year of two digits; in the other form it has four
LONG: Final = 0x80  # the length is in the following octets
FIELDS_BEFORE_VALIDITY: Final = 3  # serial number, signature algorithm, issuer
VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

_log = get_logger()


def expiries(path: str) -> list[datetime]:
    """Return when each certificate of a PEM file expires. *Blocking*: reads the file.

    Raises: ValueError for a file without a certificate, or with a malformed certificate; OSError.
    """
    pieces = Path(path).read_text("ascii", "replace").split(END)[:-1]
    certificates = [piece[piece.index(BEGIN) :] + END for piece in pieces if BEGIN in piece]
    if not certificates:
        raise ValueError(f"{path} contains no certificate")
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
        _tag, _begins, at = _element(validity, 0)
        tag, text, _end = _element(validity, at)
    except (IndexError, ValueError):
        raise ValueError("a certificate cannot be read") from None
    moment = text.decode("ascii", "replace").removesuffix("Z")
    if tag == UTC_TIME:  # RFC 5280, 4.1.2.5.1: the years 1950 to 2049
        moment = f"{'19' if moment[:2] >= '50' else '20'}{moment}"
    return datetime.strptime(moment, "%Y%m%d%H%M%S").replace(tzinfo=UTC)


def _element(der: bytes, at: int) -> tuple[int, bytes, int]:
    """Return the tag, the content and the end of the element at an offset. Source: X.690, 8.1."""
    size = der[at + 1]
    start = at + 2
    if size & LONG:
        octets = size & ~LONG
        size = int.from_bytes(der[start : start + octets], "big")
        start += octets
    if start + size > len(der):
        raise ValueError("an element is cut short")
    return der[at], der[start : start + size], start + size


class TlsUnusable(BrokerError):
    """A file of the TLS settings cannot be used, for the reason in the text."""


class Handshake(ssl.SSLObject):
    """An SSLObject that logs why a handshake failed, because the event loop does not report it."""

    def do_handshake(self) -> None:
        """Continue the handshake. Raises: as SSLObject."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except (ssl.SSLError, ssl.CertificateError) as error:
            _log.warning("tls.handshake_failed", reason=getattr(error, "verify_message", "") or openssl_reason(error))
            raise


class TlsContext:
    """The TLS context for new connections.

    Raises: TlsUnusable, from the constructor and `load`.
    Invariant: a failed reload does not change `context`.
    """

    def __init__(self, settings: Tls) -> None:
        self._settings = settings
        self._seen = self._marks()
        self.context = build(settings)

    def changed(self) -> bool:
        """Return whether one of the files has changed since the last check or load. Cost: one stat per file."""
        marks = self._marks()
        if marks == self._seen:
            return False
        self._seen = marks
        return True

    def load(self, settings: Tls) -> None:
        """Load the settings and the files that they name. Raises: TlsUnusable, changing nothing."""
        self.context = build(settings)
        self._settings = settings
        self._seen = self._marks()
        _log.info("tls.reloaded", certfile=str(settings.certfile))

    def reload(self) -> bool:
        """Reload the files; return False and log an error when they cannot be used."""
        try:
            self.load(self._settings)
        except TlsUnusable as error:
            _log.error("tls.not_reloaded", reason=str(error))
            return False
        return True

    def _marks(self) -> list[tuple[int, int, int] | None]:
        """Return what identifies the version of each file, or None for a missing file."""
        marks: list[tuple[int, int, int] | None] = []
        for path in (self._settings.certfile, self._settings.keyfile, self._settings.cafile):
            try:
                stat = Path(path).stat() if path else None
            except OSError:
                stat = None
            marks.append(None if stat is None else (stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return marks


def build(settings: Tls) -> ssl.SSLContext:
    """Return a context for the server's side.

    Only the authorities in `cafile` are trusted: the system's would accept anyone with a purchased certificate.
    Raises: TlsUnusable naming the setting and the file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = Handshake
    context.minimum_version = VERSIONS[settings.min_version]
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_RENEGOTIATION
    password = settings.key_password.get_secret_value()
    keyfile = settings.keyfile or settings.certfile  # one file may contain both
    readable("tls.certfile", settings.certfile)
    readable("tls.keyfile", keyfile)
    try:
        # Always with a password: without one, OpenSSL would ask for it on the terminal.
        context.load_cert_chain(settings.certfile, keyfile, password=lambda: password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise TlsUnusable(f"tls.certfile {settings.certfile}, tls.keyfile {keyfile}: {openssl_reason(error)}") from None
    if settings.cafile:
        readable("tls.cafile", settings.cafile)
        try:
            context.load_verify_locations(settings.cafile)
        except (ssl.SSLError, OSError) as error:
            raise TlsUnusable(f"tls.cafile {settings.cafile}: {openssl_reason(error)}") from None
    if settings.verify == "peer":
        context.verify_mode = ssl.CERT_REQUIRED if settings.fail_if_no_peer_cert else ssl.CERT_OPTIONAL
    return context


def readable(setting: str, path: str) -> None:
    """Check that the file can be read, because OpenSSL does not name an unreadable file. Raises: TlsUnusable."""
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise TlsUnusable(f"{setting} {path}: {error.strerror}") from None


def openssl_reason(error: Exception) -> str:
    """Return OpenSSL's reason without its source location, or the usual reason if OpenSSL gives none."""
    reason = getattr(error, "reason", None)
    if reason is None:
        return "not a certificate or key in PEM, or its password is wrong"
    return str(reason).lower().replace("_", " ")


def peer_of(transport: Any) -> Peer:
    """Return the peer of an accepted socket, with the facts of its TLS connection, if any."""
    client = transport.get_extra_info("peername") or ("", 0)
    server = transport.get_extra_info("sockname") or ("", 0)
    address, server_address = sys.intern(client[0]), sys.intern(server[0])  # shared by all connections of a host
    connection = transport.get_extra_info("ssl_object")
    origin, web = transport.get_extra_info("origin") or "", transport.get_extra_info("web") is True
    if connection is None:
        return Peer(address, client[1], server_address, server[1], origin=origin, web=web)
    verified = connection.context.verify_mode is not ssl.CERT_NONE
    cipher = connection.cipher()
    certificate: Mapping[str, Any] = (connection.getpeercert() if verified else None) or {}
    facts = TlsFacts(connection.version() or "", cipher[0] if cipher else "", certificate)
    return Peer(address, client[1], server_address, server[1], facts, verified, origin=origin, web=web)
