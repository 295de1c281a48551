"""The command line: parses the arguments, runs one command, and turns an error into one line and an exit code.

`exit_codes` says what each exit code means.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing's own costs a health check more than its question does
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any, Final

__all__ = ["main"]

REMOTE: Final = ("--url", "--cafile", "--insecure")
NOT_WINDOWS: Final = "SlotMQ does not run on Windows: use WSL 2 or a Linux container"


def build_parser(command: str = "") -> argparse.ArgumentParser:
    """Return the parser of `slotmq`; each command sets `run`, which takes the arguments and returns the exit code.

    When the first word is `serve`, only its own group of commands is added, so that a broker starts sooner.
    """
    from broker.cli.parser import OneLineParser
    from broker.cli.running import add_running
    from broker.cli.version import ShowVersion

    parser = OneLineParser(prog="slotmq", description="SlotMQ, an AMQP 0-9-1 topic broker.", allow_abbrev=False)
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_running(commands)
    if command != "serve":
        _add_others(commands)
    return parser


def _add_others(commands: Any) -> None:
    from broker.cli.backup import add_backup
    from broker.cli.cluster import add_cluster
    from broker.cli.completion import add_completion
    from broker.cli.definitions import add_definitions
    from broker.cli.doctor import add_doctor
    from broker.cli.lifecycle import add_lifecycle
    from broker.cli.listing import add_listing
    from broker.cli.messages import add_messages
    from broker.cli.migrate import add_migrate
    from broker.cli.moving import add_moving
    from broker.cli.overlay import add_overlay
    from broker.cli.perf import add_perf
    from broker.cli.pipeline import add_pipeline
    from broker.cli.resources import add_resources
    from broker.cli.slots import add_slots
    from broker.cli.taps import add_taps
    from broker.cli.top import add_top
    from broker.cli.topology import add_topology
    from broker.cli.trace import add_trace
    from broker.cli.users import add_users
    from broker.cli.vhosts import add_vhosts
    from broker.cli.zmq import add_zmq

    add_completion(commands, build_parser)
    for add in (
        add_lifecycle,
        add_doctor,
        add_listing,
        add_top,
        add_slots,
        add_taps,
        add_trace,
        add_resources,
        add_users,
        add_vhosts,
    ):
        add(commands)
    for add in (
        add_topology,
        add_messages,
        add_moving,
        add_definitions,
        add_backup,
        add_migrate,
        add_perf,
        add_pipeline,
        add_cluster,
        add_overlay,
        add_zmq,
    ):
        add(commands)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if sys.platform == "win32":  # it has no file locks that end with the process, and no syncs of folders
        print(f"slotmq: {NOT_WINDOWS}", file=sys.stderr)
        return 2
    try:
        if words[:1] == ["health"] and not _is_remote(words):
            from broker.cli.health import health

            return health(words[1:])
        if words[:1] == ["serve"]:
            from broker.signals import end_at_once

            end_at_once()  # until `serve` handles signals
        return _run(words)
    except KeyboardInterrupt:
        from broker.cli.exit_codes import INTERRUPTED_CODE

        return INTERRUPTED_CODE


def _is_remote(words: Sequence[str]) -> bool:
    """Return whether a health check is to ask over HTTP, for which it needs the imports of the other commands."""
    import os

    from broker.cli.client_variables import URL_VARIABLE

    return URL_VARIABLE in os.environ or any(word.partition("=")[0] in REMOTE for word in words)


def _run(words: Sequence[str]) -> int:
    from broker.cli.broker_folder import BadFile
    from broker.cli.control_client import Unanswered
    from broker.cli.parser import BadUsage
    from broker.cli.standard_streams import leave, take_standard_streams

    take_standard_streams()
    try:
        try:
            arguments = build_parser("".join(words[:1])).parse_args(words)
            code: int = arguments.run(arguments)
        finally:
            sys.stdout.flush()  # a failure at the end of the interpreter could not be reported
    except (BadUsage, BadFile) as error:
        return _say(str(error), 2)
    except Unanswered as error:
        return _say(str(error), 1)
    except BrokenPipeError:  # `slotmq list queues | head`
        leave(1)
    except OSError as error:  # a full disk after `>`; commands report their own files themselves
        _say(f"cannot write: {error.strerror or error}", 1)
        leave(1)
    return code


def _say(problem: str, code: int) -> int:
    from broker.cli.table import cell

    print(f"slotmq: {cell(problem)}", file=sys.stderr)
    return code
