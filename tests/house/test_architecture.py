"""ARCHITECTURE.md is true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`((?:\w+/)*\w+(?:\.py|/))`")


@pytest.mark.interpreted("the functions are traced, which compiled ones cannot be")
def test_the_tables_have_every_function_of_the_four_paths() -> None:
    """The tables equal, without exception, those that a trace of the running broker gives."""
    command = [sys.executable, "-m", "tools.house", "architecture", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    advice = "python -m tools.house architecture writes the tables anew"
    assert done.returncode == 0, f"{advice}:\n{done.stdout}{done.stderr}"


def test_every_file_that_the_page_names_exists() -> None:
    """Files and folders that the written parts of the page name exist below broker/."""
    written = re.sub(r"<!-- path.*?<!-- end -->", "", (ROOT / "ARCHITECTURE.md").read_text(), flags=re.DOTALL)
    named = NAMED.findall(written)
    assert len(named) > 30
    assert [path for path in named if not (ROOT / "broker" / path).exists()] == []
