"""The PostgreSQL of the tests: it keeps what was committed, and it never outlives the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.postgres import require_server
from tests.deadline import wait_until
from tools.postgres_server import PostgresFailed, PostgresServer

PROJECT = Path(__file__).parents[2]


def test_a_server_that_cannot_start_says_why() -> None:
    """The error of a failed start has the server's own words, and the folder is removed."""
    require_server()
    with PostgresServer() as server:
        (server.folder / "data" / "postgresql.auto.conf").write_text("shared_preload_libraries = 'no_such_library'\n")
        with pytest.raises(PostgresFailed, match="no_such_library"):
            server.start()
    assert not server.folder.exists()


def test_the_server_ends_with_a_process_that_is_killed() -> None:
    """The server does not outlive a test run that is killed."""
    require_server()
    if sys.platform != "linux":
        pytest.skip("only Linux tells a process that its parent ended")
    program = """
import os
from tools.postgres_server import PostgresServer
server = PostgresServer().start()
print(server.folder, server.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=False)
    folder, pid = done.stdout.split()
    wait_until(lambda: not _runs(int(pid)), "the server ends")
    subprocess.run(["rm", "-rf", folder], check=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
