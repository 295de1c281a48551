"""The shared parts of the commands' parsers: one-line errors, the data folder, the vhost, the output format."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, NoReturn

from broker.cli.table import cell

__all__ = [
    "BadUsage",
    "OneLineParser",
    "add_broker",
    "add_command",
    "add_folder",
    "add_group",
    "add_json",
    "add_vhost",
]

DEFAULT_VHOST = "/"
LOGIN = re.compile(r"//[^\s@]*@")  # the password of a URL among unknown arguments


class BadUsage(Exception):
    """The arguments cannot be used; the text is one line for the user."""


class OneLineParser(argparse.ArgumentParser):
    """Reports errors in one line; `--help` has the rest."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        self.exit(2, f"{self.prog}: {cell(LOGIN.sub('//***@', message))} (see {self.prog} --help)\n")


def add_command(commands: Any, name: str, summary: str) -> argparse.ArgumentParser:
    """Return the parser of a new command."""
    made: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    return made


def add_group(commands: Any, name: str, summary: str) -> Any:
    """Return the subparsers of a new group, such as `slotmq user add`."""
    return add_command(commands, name, summary).add_subparsers(title="commands", metavar="COMMAND", required=True)


def add_broker(command: argparse.ArgumentParser) -> None:
    """Add the options that choose the broker: one on this machine, or any over HTTP."""
    add_folder(command)
    command.add_argument("--url", metavar="URL", help="a broker's HTTP API, such as http://guest@localhost:15672")
    command.add_argument(
        "--cafile", metavar="FILE", help="the authority that signed the certificate of an https:// URL"
    )
    command.add_argument("--insecure", action="store_true", help="accept any certificate of an https:// URL")


def add_folder(command: argparse.ArgumentParser) -> None:
    """Add the options that choose the data folder."""
    command.add_argument("--config", metavar="FILE", type=Path, help="settings file (TOML)")
    command.add_argument("--data-dir", metavar="D", help="data folder (default ./data)")


def add_vhost(command: argparse.ArgumentParser) -> None:
    """Add the option for the vhost."""
    command.add_argument("--vhost", metavar="V", default=DEFAULT_VHOST, help=f"default {DEFAULT_VHOST}")


def add_json(command: argparse.ArgumentParser) -> None:
    """Add the option for JSON output."""
    command.add_argument("--json", action="store_true", help="print the broker's answer as JSON")
