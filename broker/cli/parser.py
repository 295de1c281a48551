"""What the commands' parsers have in common: one-line errors, the data folder, the vhost, the form of the output."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, NoReturn

from broker.cli.table import cell

__all__ = ["BadUsage", "OneLineParser", "add_command", "add_folder", "add_group", "add_json", "add_vhost"]

DEFAULT_VHOST = "/"
LOGIN = re.compile(r"//[^\s@]*@")  # of a URL among words that a command does not know


class BadUsage(Exception):
    """What was asked for cannot be; the text is one line for the user."""


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line; `--help` has the rest."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        self.exit(2, f"{self.prog}: {cell(LOGIN.sub('//***@', message))} (see {self.prog} --help)\n")


def add_command(commands: Any, name: str, summary: str) -> argparse.ArgumentParser:
    """Return the parser of a new command."""
    made: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    return made


def add_group(commands: Any, name: str, summary: str) -> Any:
    """Return what takes the commands of a new group, such as `slotmq user add`."""
    return add_command(commands, name, summary).add_subparsers(title="commands", metavar="COMMAND", required=True)


def add_folder(command: argparse.ArgumentParser) -> None:
    """Add what says which broker is meant."""
    command.add_argument("--config", metavar="FILE", type=Path, help="settings file (TOML)")
    command.add_argument("--data-dir", metavar="D", help="data folder (default ./data)")


def add_vhost(command: argparse.ArgumentParser) -> None:
    """Add the vhost of what is named."""
    command.add_argument("--vhost", metavar="V", default=DEFAULT_VHOST, help=f"default {DEFAULT_VHOST}")


def add_json(command: argparse.ArgumentParser) -> None:
    """Add the choice of JSON."""
    command.add_argument("--json", action="store_true", help="the broker's answer as it is")
