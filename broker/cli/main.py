"""The command line: parse the arguments, run one command, and turn an error into one line and an exit code.

`exit_codes` documents the exit codes.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing takes longer than a health check
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any, Final

MODULES: Final = (  # in the order of `slotmq --help`; each defines add_<name>(commands)
    "lifecycle", "doctor", "listing", "top", "taps", "trace", "resources", "users", "vhosts",
    "messages", "retained", "moving", "definitions", "migrate", "perf", "pipeline", "cluster", "overlay",
)  # fmt: skip
REMOTE: Final = ("--url", "--cafile", "--insecure")
NOT_WINDOWS: Final = "SlotMQ does not run on Windows: use WSL 2 or a Linux container"


def build_parser(command: str = "") -> argparse.ArgumentParser:
    """Return the parser of `slotmq`. Each command sets `run`, which takes the arguments and returns the exit code.

    For the command `serve`, the modules of most other commands are not imported, so that a broker starts sooner.
    """
    from broker.cli.parser import OneLineParser, ShowVersion
    from broker.cli.running import add_running

    parser = OneLineParser(prog="slotmq", description="SlotMQ, an AMQP 0-9-1 topic broker.", allow_abbrev=False)
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_running(commands)
    if command != "serve":
        _add_others(commands)
    return parser


def _add_others(commands: Any) -> None:
    from importlib import import_module

    from broker.cli.completion import add_completion

    add_completion(commands, build_parser)
    for name in MODULES:
        getattr(import_module(f"broker.cli.{name}"), f"add_{name}")(commands)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if sys.platform == "win32":  # the store needs `flock` and syncs of folders
        print(f"slotmq: {NOT_WINDOWS}", file=sys.stderr)
        return 2
    try:
        if words[:1] == ["health"] and not _is_remote(words):
            from broker.cli.health import health

            return health(words[1:])
        if words[:1] == ["serve"]:
            from broker.signals import exit_on_stop_signals

            exit_on_stop_signals()  # until `serve` handles signals
        return _run(words)
    except KeyboardInterrupt:
        from broker.cli.exit_codes import INTERRUPTED_CODE

        return INTERRUPTED_CODE


def _is_remote(words: Sequence[str]) -> bool:
    """Return whether a health check may have to use HTTP, which `broker.cli.health` does not support."""
    import os

    from broker.cli.client_variables import URL_VARIABLE

    return URL_VARIABLE in os.environ or any(word.partition("=")[0] in REMOTE for word in words)


def _run(words: Sequence[str]) -> int:
    from broker.cli.broker_folder import SettingsError
    from broker.cli.control_client import Unanswered
    from broker.cli.parser import BadUsage
    from broker.cli.standard_streams import exit_at_once, open_standard_streams
    from broker.cli.table import failed

    open_standard_streams()
    try:
        try:
            arguments = build_parser("".join(words[:1])).parse_args(words)
            code: int = arguments.run(arguments) or 0
        finally:
            sys.stdout.flush()  # the interpreter's own flush at exit could not report a failure
    except (BadUsage, SettingsError) as error:
        for problem in getattr(error, "problems", [str(error)]):
            failed(problem)
        return 2
    except Unanswered as error:
        return failed(str(error), 1)
    except BrokenPipeError:  # `slotmq list queues | head`
        exit_at_once(1)
    except OSError as error:  # standard output cannot be written; commands report errors of their own files
        failed(f"cannot write: {error.strerror or error}", 1)
        exit_at_once(1)
    return code
