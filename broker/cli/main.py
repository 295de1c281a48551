"""The command line: reads the arguments, runs one command, and turns what went wrong into one line and an exit code.

Exit codes: 0 done; 1 the broker said no or failed; 2 wrong usage or settings, or the broker cannot start here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from broker import __version__
from broker.cli import config, serve, slots
from broker.cli.control_client import Unanswered
from broker.cli.settings_layers import SettingsError
from broker.cli.standard_streams import take_standard_streams

__all__ = ["main"]


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line; `--help` has the rest."""

    def error(self, message: str) -> NoReturn:
        """Ends with exit code 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of `slotmq`; each command sets `run`, which takes the arguments and returns the exit code."""
    parser = OneLineParser(prog="slotmq", description="SlotMQ, an AMQP 0-9-1 topic broker.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"slotmq {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    command = _command(commands, "serve", "run the broker until SIGTERM or SIGINT")
    _add_folder(command)
    command.add_argument("--host", metavar="H", help="address to listen on (default 127.0.0.1)")
    command.add_argument("--port", metavar="P", type=int, help="AMQP port (default 5672); 0 takes a free one")
    command.add_argument(
        "--no-sync", action="store_true", help="confirm without fdatasync: a power loss loses messages"
    )
    command.add_argument("--log-format", choices=("text", "json"), help="default: text on a terminal, JSON elsewhere")
    command.set_defaults(run=serve.run)

    command = _command(commands, "slots", "show the slots of a queue of the running broker")
    command.add_argument("queue", metavar="QUEUE")
    command.add_argument("--vhost", metavar="V", default="/", help="default /")
    command.add_argument("--json", action="store_true", help="the broker's answer as it is")
    _add_folder(command)
    command.set_defaults(run=slots.run)

    command = _command(commands, "config", "check or print settings")
    kinds = command.add_subparsers(title="commands", metavar="COMMAND", required=True)
    check = _command(kinds, "check", "say what is wrong in a settings file")
    check.add_argument("file", metavar="FILE", type=Path)
    check.set_defaults(run=config.check)
    example = _command(kinds, "example", "print a settings file with every key, its unit, default and limits")
    example.set_defaults(run=config.example)

    command = _command(commands, "version", "print the version")
    command.set_defaults(run=_version)
    return parser


def _command(commands: Any, name: str, summary: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    return made


def _add_folder(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", metavar="FILE", type=Path, help="settings file (TOML)")
    command.add_argument("--data-dir", metavar="D", help="data folder (default ./data)")


def _version(_arguments: argparse.Namespace) -> int:
    print(f"slotmq {__version__}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    take_standard_streams()
    arguments = build_parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except SettingsError as error:
        for problem in error.problems:
            _say(problem)
        return 2
    except Unanswered as error:
        _say(str(error))
        return 1
    except BrokenPipeError:  # `slotmq slots q | head`
        sys.stderr.close()
        return 1
    return code


def _say(problem: str) -> None:
    print(f"slotmq: {problem}", file=sys.stderr)
