"""When certificates end, read from their PEM files."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from broker.net.tls import expiries

PASTS = datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(2050, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("ends", [*PASTS, datetime(2030, 2, 3, 4, 5, 6, tzinfo=UTC)], ids=str)
def test_the_end_of_a_certificate(tmp_path: Path, ends: datetime) -> None:
    """The end is read in both forms of time; a file may have a chain, and a text around it."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", not_after=ends)
    path = tmp_path / "chain.pem"
    path.write_bytes(b"a note\n" + issued.cert_chain_pems[0].bytes() + authority.cert_pem.bytes())
    first, second = expiries(str(path))
    assert first == ends
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    [known] = context.get_ca_certs()
    assert second.timestamp() == ssl.cert_time_to_seconds(str(known["notAfter"]))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no certificate",
        "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
        "x\n-----END CERTIFICATE-----\n",
    ],
)
def test_what_is_no_certificate(tmp_path: Path, text: str) -> None:
    """A file without a certificate, and one that is cut short, are refused in one line."""
    path = tmp_path / "cert.pem"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"certificate"):
        expiries(str(path))
