"""`slotmq reload` and `slotmq stop`: make the running broker read its settings again, or stop."""

from __future__ import annotations

import argparse
from typing import Any, Final

from broker.cli.broker_url import broker_of
from broker.cli.control_client import ask
from broker.cli.parser import BadUsage, add_broker, add_command, add_json, time_s
from broker.cli.table import cell, print_json

__all__ = ["add_lifecycle"]


TIMEOUT_MAX_S: Final = 1e6


def add_lifecycle(commands: Any) -> None:
    """Add the commands."""
    command = add_command(commands, "reload", "make the running broker read its settings and certificates again")
    add_json(command)
    add_broker(command)
    command.set_defaults(run=_reload)

    command = add_command(commands, "stop", "stop the running broker in order, and wait until its process has ended")
    command.add_argument(
        "--timeout", metavar="S", type=time_s, help="stop waiting after S seconds, or a time such as 5m (exit code 1)"
    )
    add_broker(command)
    command.set_defaults(run=_stop)


def _reload(arguments: argparse.Namespace) -> int:
    outcome = ask(broker_of(arguments), "reload")
    if arguments.json:
        print_json(outcome)
        return 0
    for part, remark in (("changed", ""), ("needs_restart", " (needs a restart)")):
        for change in outcome[part]:
            print(f"{change['key']}: {_value(change['old'])} -> {_value(change['new'])}{remark}")
    if not any(outcome.values()):
        print("no setting has changed")
    return 0


def _stop(arguments: argparse.Namespace) -> int:
    from broker.cli.stop import stop

    if arguments.timeout is not None and not 0 < arguments.timeout < TIMEOUT_MAX_S:
        raise BadUsage(f"--timeout should be above 0 and below {TIMEOUT_MAX_S:g} seconds")
    return stop(broker_of(arguments), arguments.timeout)


def _value(value: Any) -> str:
    return cell(value) or '""'
