"""The output of `slotmq --version`: the version, and which packages have their hot modules compiled."""

from __future__ import annotations

import argparse
from typing import Any

from broker import __version__

__all__ = ["ShowVersion", "version_line"]


def version_line() -> str:
    """Return the line."""
    from broker.compiled import listed

    return f"slotmq {__version__} ({listed()})"


class ShowVersion(argparse.Action):
    """Prints the line and ends; imports only when it is used."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        """End with exit code 0."""
        print(version_line())
        parser.exit()
