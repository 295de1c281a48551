"""`slotmq zmq`: the ØMQ bridges of the running process."""

from __future__ import annotations

import argparse
from typing import Any

from broker.cli.broker_url import broker_of
from broker.cli.control_client import ask
from broker.cli.parser import add_broker, add_command, add_json
from broker.cli.table import print_rows

__all__ = ["add_zmq"]

COLUMNS = ("kind", "endpoint", "exchange", "state", "peers", "subscriptions", "messages", "full", "lost", "problem")


def add_zmq(commands: Any) -> None:
    """Add the command."""
    command = add_command(
        commands, "zmq", f"list the ØMQ endpoints of the running broker; columns: {', '.join(COLUMNS)}"
    )
    add_json(command)
    add_broker(command)
    command.set_defaults(run=_show)


def _show(arguments: argparse.Namespace) -> int:
    print_rows(ask(broker_of(arguments), "zmq"), COLUMNS, as_json=arguments.json)
    return 0
