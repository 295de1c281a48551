"""What ARCHITECTURE.md names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`((?:\w+/)*\w+(?:\.py|/))`")


def test_every_file_that_the_page_names_exists() -> None:
    """Files and folders in the written parts of the page are below broker/."""
    written = re.sub(r"<!-- path.*?<!-- end -->", "", (ROOT / "ARCHITECTURE.md").read_text(), flags=re.DOTALL)
    named = NAMED.findall(written)
    assert len(named) > 30
    assert [path for path in named if not (ROOT / "broker" / path).exists()] == []
