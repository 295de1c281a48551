"""The checker on each version of PostgreSQL that a cluster supports, and through a pooler.

`.ci/postgres` installs what the machine has not.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.bouncer import NEEDS_PGBOUNCER, Bouncer
from tests.cluster.checker import faults
from tests.cluster.checker.run import Fault, Run
from tests.cluster.checker.system import System
from tests.cluster.proxy import Point
from tools.postgres_server import PostgresServer, installation

pytestmark = [pytest.mark.fault, pytest.mark.torture]

ROOT: Final = Path(__file__).parents[3]
INSTALLED: Final = ("/usr/lib/postgresql/{version}", f"{ROOT}/build/postgres-{{version}}/native")


def prefix_of(version: int) -> Path | None:
    """Return the installation of a version of PostgreSQL on this machine."""
    places = [Path(place.format(version=version)) for place in INSTALLED]
    for place in (*places, installation()):
        if place is not None and (program := place / "bin" / "postgres").is_file():
            said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
            if f" {version}." in said:
                return place
    return None


def suffer(system: System, seed: int) -> None:
    """Let what depends on the server happen: its restart, lost answers, cut connections, dead nodes."""
    run = Run(system, seed, progress=100)
    run.begin()
    chosen: list[Fault] = [
        faults.restart_postgres,
        lambda run: faults.at_call(run, "a", "commit", Point.DONE, "connection cut"),
        faults.kill_node,
        faults.cancel_call,
        faults.freeze_node,
        faults.cut_database,
        faults.restart_postgres,
    ]
    run.suffer(chosen, system.violations)
    run.end()


@pytest.mark.parametrize("version", [15, 16, 17, 18])
def test_a_version_of_postgresql(tmp_path: Path, version: int) -> None:
    """Two nodes keep their promises on it."""
    prefix = prefix_of(version)
    if prefix is None:
        pytest.skip(f"no PostgreSQL {version} here: .ci/postgres installs what Debian and npm have")
    with PostgresServer(prefix=prefix, durable=True) as server:
        server.start()
        system = System(tmp_path, "ab", server)
        try:
            system.start()
            suffer(system, version)
        finally:
            system.stop()


@NEEDS_PGBOUNCER
def test_a_pooler_in_session_mode(tmp_path: Path, durable_postgres: PostgresServer) -> None:
    """Two nodes keep their promises through pgbouncer, which the restarts of PostgreSQL leave running."""
    pooler = Bouncer(tmp_path, durable_postgres.url, "pool_mode = session", "max_client_conn = 100")
    system = System(tmp_path, "ab", durable_postgres)
    try:
        for proxy in system.proxies.values():
            proxy.redirect(pooler.url)
        system.start()
        suffer(system, 1)
    finally:
        system.stop()
        pooler.stop()
