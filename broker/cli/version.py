"""What `slotmq --version` and `slotmq version` print: the version, and whether the hot modules are compiled."""

from __future__ import annotations

import argparse
from typing import Any

from broker import __version__

__all__ = ["ShowVersion", "version_line"]


def version_line() -> str:
    """Return the line."""
    from broker.compiled import kind  # it imports what it tells of

    return f"slotmq {__version__} ({kind()})"


class ShowVersion(argparse.Action):
    """Prints the line and ends, without making every other command find out what it says."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        """End with exit code 0."""
        print(version_line())
        parser.exit()
