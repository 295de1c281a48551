"""A pgbouncer in front of a PostgreSQL, for tests; it comes from Debian's package of that name."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.deadline import wait_until

SETTINGS = """
[databases]
* = host={server.hostname} port={server.port} user={server.username} password={server.password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
logfile =
{options}
"""
NEEDS_PGBOUNCER = pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="pgbouncer is not installed")


class Bouncer:
    """A running pgbouncer."""

    def __init__(self, folder: Path, postgres_url: str, *options: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        server = urlsplit(postgres_url)
        self.url = f"postgresql://slotmq@127.0.0.1:{self.port}{server.path}"
        file = folder / "pgbouncer.ini"
        file.write_text(SETTINGS.format(server=server, port=self.port, options="\n".join(options)))
        self._log = folder / "pgbouncer.log"
        self._command = ["pgbouncer", "--quiet", *(["--user", "nobody"] if os.geteuid() == 0 else []), str(file)]
        self.start()

    def start(self) -> None:
        """Start pgbouncer, and wait until it accepts connections."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        wait_until(self._is_ready, "pgbouncer listens")

    def stop(self) -> None:
        """End pgbouncer and all its connections."""
        self._process.kill()
        self._process.wait()

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
