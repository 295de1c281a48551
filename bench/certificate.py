"""A certificate of its own for the brokers of a run, so that TLS can be measured beside plain connections."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from broker.perf.peer import Address

_OPENSSL: Final = "openssl"
_REQUEST: Final = (
    "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
    "-subj /CN=slotmq-bench -addext subjectAltName=IP:127.0.0.1"
)  # ECDSA on P-256, as public authorities issue them


@dataclass(frozen=True, slots=True)
class Certificate:
    """A self-signed certificate for 127.0.0.1 and its key, in PEM."""

    file: Path
    key_file: Path

    @classmethod
    def issue(cls, folder: Path) -> Certificate | None:
        """Return a new certificate, None without the program openssl."""
        if not shutil.which(_OPENSSL):
            return None
        made = cls(folder / "certificate.pem", folder / "key.pem")
        command = [_OPENSSL, *_REQUEST.split(), "-keyout", str(made.key_file), "-out", str(made.file)]
        done = subprocess.run(command, capture_output=True, check=False)
        return None if done.returncode else made

    def address(self, plain: Address, port: int) -> Address:
        """Return the address of a broker's port with TLS."""
        return replace(plain, port=port, tls=True, ca_file=str(self.file))

    def settings(self, port: int) -> dict[str, str]:
        """Return the settings of SlotMQ for a port with TLS."""
        return {
            "SLOTMQ_TLS__PORT": str(port),
            "SLOTMQ_TLS__CERTFILE": str(self.file),
            "SLOTMQ_TLS__KEYFILE": str(self.key_file),
        }

    def rabbitmq_lines(self, port: int) -> str:
        """Return the lines of rabbitmq.conf for a port with TLS."""
        files = {"cacertfile": self.file, "certfile": self.file, "keyfile": self.key_file}
        lines = [f"listeners.ssl.1 = 127.0.0.1:{port}", "ssl_options.verify = verify_none"]
        lines += ["ssl_options.fail_if_no_peer_cert = false"]
        return "\n".join([*lines, *(f"ssl_options.{name} = {path}" for name, path in files.items())]) + "\n"
