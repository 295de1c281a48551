"""The shared parts of the commands' parsers: one-line errors, common options, and the types of their values."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from broker import __version__
from broker.cli.table import cell
from broker.core.definitions.json_text import read_json
from broker.quantities import duration_ms, size_bytes

Run = Callable[[argparse.Namespace], int | None]
"""A function that runs a command and returns its exit code, or None for 0."""

DEFAULT_VHOST = "/"
LOGIN = re.compile(r"//[^\s@]*@")  # the login in a URL, which error messages should not show


def name_and_text(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE. Raises: ArgumentTypeError."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"'{text}' should be NAME=VALUE")
    return name, value


def name_and_value(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE, where VALUE may be JSON: `n=3` is a number; `n="3"` and `n=three` are texts.

    Raises: ArgumentTypeError.
    """
    name, value = name_and_text(text)
    try:
        return name, read_json(value.encode())
    except ValueError:
        return name, value


class BadUsage(Exception):
    """The arguments cannot be used; the text is one line for the user."""


class TableEntry(argparse.Action):
    """Add a pair to the table of an option that can be repeated. Raises: BadUsage for a repeated name."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        (name, value), table = values, getattr(namespace, self.dest)
        if name in table:
            raise BadUsage(f"{option_string} {name} is given twice")
        setattr(namespace, self.dest, {**table, name: value})


def add_table(command: Any, name: str, meaning: str, entry: Callable[[str], Any] = name_and_value, **more: Any) -> None:
    """Add an option whose NAME=VALUE pairs form a table; `more` is for argparse."""
    add_value(command, name, "NAME=VALUE", meaning, action=TableEntry, default={}, type=entry, **more)


def add_arguments_option(command: argparse.ArgumentParser, example: str) -> None:
    """Add the option for the arguments of a queue, an exchange or a binding."""
    meaning = f"such as {example}; the value is JSON if it parses, else text; can be repeated"
    add_table(command, "--argument", meaning, dest="arguments")


def size(text: str) -> int:
    """Parse a size such as 10GB. Raises: ArgumentTypeError."""
    try:
        return size_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' {error}") from None


def time_ms(text: str, plain_ms: int = 1) -> int:
    """Parse a time such as 7d; a number without a unit is multiplied by `plain_ms`. Raises: ArgumentTypeError."""
    try:
        return duration_ms(text, plain_ms=plain_ms)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' {error}") from None


def time_s(text: str) -> float:
    """Parse a time such as 90 (seconds) or 5m. Raises: ArgumentTypeError."""
    return time_ms(text, plain_ms=1000) / 1000


def version_line() -> str:
    """Return the version, and which packages are compiled."""
    from broker.compiled import listed

    return f"slotmq {__version__} ({listed()})"


class ShowVersion(argparse.Action):
    """Print the version and exit. Unlike the action that argparse has for this, build the text only on use."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        print(version_line())
        parser.exit()


class OneLineParser(argparse.ArgumentParser):
    """A parser that reports errors in one line, and accepts options anywhere among a command's arguments."""

    _intermixed = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse arguments; an optional argument may follow an option, as in `publish q --quiet body`."""
        if self._intermixed or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._intermixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixed = False

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2."""
        self.exit(2, f"{self.prog}: {cell(LOGIN.sub('//***@', message))} (see {self.prog} --help)\n")


class LazyParser(OneLineParser):
    """A placeholder for the parser of a command until the command is used."""

    name = ""
    program = ""
    add: Callable[[str, Any], None] | None = None

    def defer(self, name: str, program: str, add: Callable[[str, Any], None]) -> None:
        """Create the command's parser on use, by `add(name, commands)`; its usage begins with `program`."""
        self.name, self.program, self.add = name, program, add

    def own_parser(self) -> argparse.ArgumentParser:
        """Create and return the command's own parser, or return this one if `defer` was not called."""
        if self.add is None:
            return self
        own = OneLineParser(prog=self.program).add_subparsers(prog=self.program)
        self.add(self.name, own)
        parser: argparse.ArgumentParser = own.choices[self.name]
        return parser

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        own = self.own_parser()
        return super().parse_known_args(args, namespace) if own is self else own.parse_known_args(args, namespace)


def add_command(commands: Any, name: str, summary: str, *words: str) -> argparse.ArgumentParser:
    """Add a command and return its parser. Each of `words` adds an argument: QUEUE, or queue=NAME to show NAME."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    for word in words:
        argument, _, metavar = word.partition("=")
        command.add_argument(argument.lower(), metavar=metavar or word)
    return command


def add_group(commands: Any, name: str, summary: str) -> Any:
    """Add a group of commands, such as `slotmq user`, and return its subparsers."""
    return add_command(commands, name, summary).add_subparsers(title="commands", metavar="COMMAND", required=True)


def add_broker(command: argparse.ArgumentParser) -> None:
    """Add the options that choose the broker: on this machine, or over HTTP."""
    add_folder(command)
    command.add_argument("--url", metavar="URL", help="a broker's HTTP API, such as http://guest@localhost:15672")
    add_value(command, "--cafile", "FILE", "the authority that signed the certificate of an https:// URL")
    add_switch(command, "--insecure", "accept any certificate of an https:// URL")


def add_folder(command: argparse.ArgumentParser) -> None:
    """Add the options that choose the data folder."""
    command.add_argument("--config", metavar="FILE", type=Path, help="settings file (TOML)")
    command.add_argument("--data-dir", metavar="D", help="data folder (default ./data)")


def add_value(command: argparse._ActionsContainer, name: str, metavar: str, meaning: str, **more: Any) -> None:
    """Add an argument or an option that takes a value; `more` is for argparse."""
    command.add_argument(name, metavar=metavar, help=meaning, **more)


def add_list(command: argparse._ActionsContainer, name: str, metavar: str, meaning: str, **more: Any) -> None:
    """Add an option with a value that can be repeated; `more` is for argparse."""
    add_value(command, name, metavar, meaning, action="append", default=[], **more)


def add_switch(command: argparse._ActionsContainer, name: str, meaning: str) -> None:
    """Add an option without a value."""
    command.add_argument(name, action="store_true", help=meaning)


def finish(command: argparse.ArgumentParser, run: Run, *, json: bool = False, vhost: bool = False) -> None:
    """Add the common options of a command that sends a request to the broker, and set the function that runs it."""
    if json:
        add_json(command)
    if vhost:
        command.add_argument("--vhost", metavar="V", default=DEFAULT_VHOST, help=f"default {DEFAULT_VHOST}")
    add_broker(command)
    command.set_defaults(run=run)


def add_any_vhost(command: argparse.ArgumentParser) -> None:
    """Add the option that restricts the output to one vhost."""
    command.add_argument("--vhost", metavar="V", help="only this vhost; default all")


def add_json(command: argparse.ArgumentParser) -> None:
    """Add the option for JSON output."""
    add_switch(command, "--json", "print the broker's answer as JSON")
