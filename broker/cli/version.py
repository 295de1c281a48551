"""The output of `slotmq --version`: the version, and whether the hot modules are compiled."""

from __future__ import annotations

import argparse
from typing import Any

from broker import __version__

__all__ = ["ShowVersion", "version_line"]


def version_line() -> str:
    """Return the line."""
    from broker.compiled import kind  # imports the modules that it reports on

    return f"slotmq {__version__} ({kind()})"


class ShowVersion(argparse.Action):
    """Prints the line and ends; imports only when it is used."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        """End with exit code 0."""
        print(version_line())
        parser.exit()
