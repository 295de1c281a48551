"""`slotmq reload`, `stop`, `drain` and `backup`: reload settings, stop a broker, drain clients, copy the data."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from broker.cli.broker_url import BrokerUrl, broker_of
from broker.cli.control_client import ask, ask_for, request
from broker.cli.parser import BadUsage, add_command, add_value, finish, time_s
from broker.cli.progress_line import ProgressLine
from broker.cli.table import cell, counted, print_json

TIMEOUT_MAX_S: Final = 1e6
DRAIN_S: Final = 60


def add_lifecycle(commands: Any) -> None:
    """Add the commands."""
    command = add_command(commands, "reload", "make the running broker read its settings and certificates again")
    finish(command, request("reload", _print_changes), json=True)

    command = add_command(commands, "stop", "stop the running broker cleanly, and wait until its process has ended")
    add_value(
        command, "--timeout", "S", "stop waiting after S seconds, or a time such as 5m (exit code 1)", type=time_s
    )
    _add_drain(
        command, "let clients settle their messages first, for at most S seconds", "--drain", nargs="?", const=DRAIN_S
    )
    finish(command, _stop)

    command = add_command(
        commands, "drain", "stop deliveries, wait until clients have settled their messages, then disconnect them"
    )
    which = command.add_mutually_exclusive_group()
    which.add_argument("--connection", metavar="NAME", help="only the client of this connection")
    which.add_argument("--queue", metavar="QUEUE", help="only the consumers of this queue: their clients stay")
    _add_drain(command, "wait for at most S seconds, then requeue unsettled messages", "--timeout", default=DRAIN_S)
    finish(command, _drain, json=True, vhost=True)

    command = add_command(commands, "backup", "write a consistent copy of the data folder while the broker runs")
    add_value(command, "folder", "DIR", "a new or empty folder on the broker's machine, which its user can write")
    finish(command, _backup)


def _print_changes(outcome: Mapping[str, Any]) -> None:
    for part, remark in (("changed", ""), ("needs_restart", " (needs a restart)")):
        for change in outcome[part]:
            print(f"{change['key']}: {_value(change['old'])} -> {_value(change['new'])}{remark}")
    if not any(outcome.values()):
        print("no setting has changed")


def _add_drain(command: argparse.ArgumentParser, meaning: str, name: str, **more: Any) -> None:
    add_value(command, name, "S", f"{meaning}, or a time such as 5m (default {DRAIN_S})", type=_drain_s, **more)


def _drain_s(text: str) -> int:
    return round(time_s(text))


def _drain(arguments: argparse.Namespace) -> None:
    with ProgressLine() as line:

        def show(progress: Mapping[str, Any]) -> None:
            line.show(f"waiting for {counted(progress['count'], progress['waits_for'])}")

        names = ("connection", "queue", "vhost")
        outcome = ask_for(arguments, "drain", *names, timeout_s=arguments.timeout, on_progress=show)
    if arguments.json:
        print_json(outcome)
    else:
        closed, cancelled = counted(outcome["closed"], "clients"), counted(outcome["cancelled"], "consumers")
        print(f"{closed} closed, {cancelled} cancelled, {counted(outcome['unacked'], 'messages')} not settled in time")


def _stop(arguments: argparse.Namespace) -> int:
    from broker.cli.stop import stop

    if arguments.timeout is not None and not 0 < arguments.timeout < TIMEOUT_MAX_S:
        raise BadUsage(f"--timeout should be above 0 and below {TIMEOUT_MAX_S:g} seconds")
    return stop(broker_of(arguments), arguments.timeout, drain_s=arguments.drain)


def _value(value: Any) -> str:
    return cell(value) or '""'


def _backup(arguments: argparse.Namespace) -> None:
    broker = broker_of(arguments)
    if isinstance(broker, BrokerUrl) and not Path(arguments.folder).is_absolute():
        raise BadUsage("the folder is on the broker's machine: give its absolute path")
    target = arguments.folder if isinstance(broker, BrokerUrl) else str(Path(arguments.folder).resolve())
    with ProgressLine() as line:
        made = ask(broker, "backup", on_progress=line.show_step, target=target)
    print(f"{target}: {counted(made['files'], 'files')}, {counted(made['bytes'], 'bytes')}")
