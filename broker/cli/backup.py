"""`slotmq backup`: copies the data folder of the running broker."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from broker.cli.broker_url import BrokerUrl, broker_of
from broker.cli.control_client import ask
from broker.cli.parser import BadUsage, add_broker, add_command
from broker.cli.progress_line import ProgressLine, share_of
from broker.cli.table import counted

__all__ = ["add_backup"]


def add_backup(commands: Any) -> None:
    """Add the command."""
    command = add_command(commands, "backup", "write a consistent copy of the data folder while the broker runs")
    command.add_argument(
        "folder", metavar="DIR", help="a new or empty folder on the broker's machine, which its user can write"
    )
    add_broker(command)
    command.set_defaults(run=_backup)


def _backup(arguments: argparse.Namespace) -> int:
    broker = broker_of(arguments)
    if isinstance(broker, BrokerUrl) and not Path(arguments.folder).is_absolute():
        raise BadUsage("the folder is on the broker's machine: give its absolute path")
    target = arguments.folder if isinstance(broker, BrokerUrl) else str(Path(arguments.folder).resolve())
    with ProgressLine() as line:
        made = ask(
            broker,
            "backup",
            told=lambda so_far: line.show(f"{so_far['step']}: {share_of(so_far['done'], so_far['total'])}"),
            target=target,
        )
    print(f"{target}: {counted(made['files'], 'files')}, {counted(made['bytes'], 'bytes')}")
    return 0
