"""`slotmq completion`: scripts with which a shell completes commands, options, and names of objects.

A script runs `slotmq completion words` at each Tab, so that it always knows the installed commands.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from broker.cli.broker_folder import SettingsError
from broker.cli.broker_url import broker_of
from broker.cli.control_client import Unanswered, ask
from broker.cli.parser import BadUsage, add_command, add_group
from broker.cli.table import cell

SHELLS: Final = ("bash", "zsh", "fish")
NAMES_MAX: Final = 200
SILENCE_S: Final = 2.0
FILES, FOLDERS = ":files", ":folders"
PATHS: Final = {"FILE": FILES, "DIR": FOLDERS, "D": FOLDERS}  # by metavar
LISTED: Final = {"QUEUE": "queues", "EXCHANGE": "exchanges", "USER": "users", "V": "vhosts"}  # by metavar
NAMED: Final = ("queue", "exchange", "user", "vhost", "policy")  # commands after which a NAME is that of such an object
BROKER: Final = ("config", "data_dir", "url", "cafile")  # the options that choose the broker


def completions(parser: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[str]:
    """Yield the completions of the last word, as lines of the form that `script_of` describes."""
    *before, current = [word for word in words[:-1] if word != "="] + [words[-1].removeprefix("=")]
    try:
        position = CompletionPosition(parser)
        for word in before:
            position.advance(word)
        found = list(position.candidates(current))
    except (BadUsage, KeyError):  # an unknown command, or one whose extra is missing
        return
    yield from [line for line in found if line in (FILES, FOLDERS) or line.startswith(current)]


class CompletionPosition:
    """A position on the command line: the command before it, and the options and arguments that may follow."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._path: list[str] = []
        self._given: dict[str, str] = {}
        self._option: argparse.Action | None = None  # the option whose value follows
        self._only_arguments = False
        self._enter(parser)

    def advance(self, word: str) -> None:
        """Advance over a complete word. Raises: KeyError for an unknown command; BadUsage."""
        if self._option is not None:
            self._given[self._option.dest] = word
            self._option = None
        elif word == "--" and not self._only_arguments:
            self._only_arguments = True
        elif word.startswith("-") and not self._only_arguments:
            name, equals, value = word.partition("=")
            option = self._options.get(name)
            if option is not None and option.nargs != 0:
                self._given[option.dest] = value
                self._option = None if equals else option
        elif self._arguments:
            first = self._arguments[0]
            if isinstance(first, argparse._SubParsersAction):  # noqa: SLF001 - argparse has no other view of commands
                self._path.append(word)
                self._enter(first.choices[word])
            elif first.nargs not in ("*", "+"):
                self._arguments.pop(0)

    def candidates(self, current: str) -> Iterator[str]:
        if self._option is not None:
            yield from self._values(self._option, current)
        elif current.startswith("-") and not self._only_arguments:
            yield from (_line(name, _help(action)) for name, action in self._options.items() if name.startswith("--"))
        elif self._arguments:
            yield from self._values(self._arguments[0], current)

    def _enter(self, parser: argparse.ArgumentParser) -> None:
        if hasattr(parser, "own_parser"):  # a LazyParser, which imports the command's module on use
            parser = parser.own_parser()
        actions = parser._actions  # noqa: SLF001 - as above
        self._options = {name: action for action in actions for name in action.option_strings}
        self._arguments = [action for action in actions if not action.option_strings]

    def _values(self, action: argparse.Action, current: str) -> Iterator[str]:
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            helps = {choice.dest: _help(choice) for choice in action._choices_actions}  # noqa: SLF001 - as above
            yield from (_line(name, helps.get(name)) for name in action.choices)
        elif action.choices is not None:
            yield from map(str, action.choices)
        else:
            metavar = str(action.metavar)
            kind = LISTED.get(metavar.partition("|")[0].partition("[")[0])
            if metavar == "NAME":
                kind = next((f"{word}s" for word in self._path if word in NAMED), None)
            if metavar in PATHS:
                yield PATHS[metavar]
            elif kind is not None:
                yield from self._names("policies" if kind == "policys" else kind, current)

    def _names(self, kind: str, current: str) -> Iterator[str]:
        """Yield at most NAMES_MAX printable names that begin with `current`; none if the broker does not answer."""
        chosen = argparse.Namespace(insecure=False, **{name: self._given.get(name) for name in BROKER})
        vhost = None if kind in ("users", "vhosts") else self._given.get("vhost", "/")
        try:
            rows: Sequence[Mapping[str, Any]] = ask(broker_of(chosen), f"list_{kind}", silence_s=SILENCE_S, vhost=vhost)
        except (Unanswered, BadUsage, SettingsError):
            return
        names = [row["name"] for row in rows]
        yield from sorted(name for name in names if name.startswith(current) and name and name == cell(name))[
            :NAMES_MAX
        ]


def script_of(shell: str) -> str:
    """Return the script for a shell.

    The script must not evaluate the lines of `completion words`, because a queue may be named `$(reboot)`. A line is a
    candidate, which may be followed by a Tab and a description; or it is `:files` or `:folders`, and the shell
    completes paths.
    """
    return (Path(__file__).parent / "shells" / f"slotmq.{shell}").read_text()


def _line(name: str, description: str | None) -> str:
    return f"{name}\t{cell(description)}" if description and description != argparse.SUPPRESS else name


def _help(action: argparse.Action) -> str | None:
    return action.help % {**vars(action), "prog": ""} if action.help else None


def add_completion(commands: Any, all_commands: Callable[[], argparse.ArgumentParser]) -> None:
    """Add the commands. `all_commands` returns the parser of `slotmq`."""
    kinds = add_group(commands, "completion", "print a script that lets a shell complete slotmq commands and names")
    for shell in SHELLS:
        command = add_command(kinds, shell, f"print the script for {shell}; its first lines say where it goes")
        command.set_defaults(run=lambda arguments: print(script_of(arguments.shell), end=""), shell=shell)
    command = add_command(kinds, "words", "print what may follow; the scripts call it")
    command.add_argument("words", metavar="WORD", nargs="*", help="the words after slotmq, the last one incomplete")
    command.set_defaults(run=_words, all_commands=all_commands)


def _words(arguments: argparse.Namespace) -> None:
    for line in completions(arguments.all_commands(), arguments.words or [""]):
        print(line)
