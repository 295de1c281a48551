"""`slotmq reload`: has the running broker read its settings again."""

from __future__ import annotations

import argparse
from typing import Any

from broker.cli.broker_folder import folder_of
from broker.cli.control_client import ask
from broker.cli.parser import add_command, add_folder, add_json
from broker.cli.table import cell, print_json

__all__ = ["add_lifecycle"]


def add_lifecycle(commands: Any) -> None:
    """Adds the commands."""
    command = add_command(commands, "reload", "have the running broker read its settings and certificates again")
    add_json(command)
    add_folder(command)
    command.set_defaults(run=_reload)


def _reload(arguments: argparse.Namespace) -> int:
    outcome = ask(folder_of(arguments), "reload")
    if arguments.json:
        print_json(outcome)
        return 0
    for part, remark in (("changed", ""), ("needs_restart", " (needs a restart)")):
        for change in outcome[part]:
            print(f"{change['key']}: {_value(change['old'])} -> {_value(change['new'])}{remark}")
    if not any(outcome.values()):
        print("no setting has changed")
    return 0


def _value(value: Any) -> str:
    return cell(value) or '""'
