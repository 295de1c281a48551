"""No test depends on how fast the machine is, or on what else runs there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.conftest import DEFAULT_PORTS
from tests.deadline import DEADLINE_S

HERE = Path(__file__).parents[2]
TEST = """
import errno, socket, pytest
from tests.conftest import DEFAULT_PORTS

@pytest.mark.parametrize("port", DEFAULT_PORTS)
def test_it(port):
    with socket.socket() as wanted, pytest.raises(OSError) as refused:
        wanted.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        wanted.bind(("127.0.0.1", port))
        wanted.listen()
    assert refused.value.errno == errno.EADDRINUSE
"""


def test_hypothesis_measures_no_time() -> None:
    """Every property has as much time as it needs, also those without settings of their own."""
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check


@pytest.mark.parametrize("processes", ["0", "2"])
def test_default_ports_can_be_taken(tmp_path: Path, processes: str) -> None:
    """With TEST_PORTS_TAKEN no broker of a test gets a default port, in no process of the run."""
    (tmp_path / "test_it.py").write_text(TEST)
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_configure\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", processes, "--import-mode=importlib"]
    environment = {"PYTHONPATH": str(HERE), "PATH": os.environ["PATH"], "TEST_PORTS_TAKEN": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert f"{len(DEFAULT_PORTS)} passed" in done.stdout, done.stdout
