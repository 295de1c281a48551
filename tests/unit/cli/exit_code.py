"""Runs a command in the test's process."""

from __future__ import annotations

from broker.cli.main import main


def code_of(*argv: str) -> int:
    """Return the exit code of a command, returned or raised as SystemExit."""
    try:
        return main(argv)
    except SystemExit as end:
        return int(str(end.code))
