"""`slotmq declare`, `bind` and `unbind`: declare queues and exchanges, add and remove bindings."""

from __future__ import annotations

import argparse
from typing import Any

from broker.cli.control_client import ask_for
from broker.cli.parser import add_arguments_option, add_command, add_group, add_switch, add_value, finish, table_of
from broker.cli.table import cell


def add_topology(commands: Any) -> None:
    """Add the commands."""
    kinds = add_group(
        commands, "declare", "declare a queue or an exchange; if it exists, it must have the same properties"
    )
    command = add_command(kinds, "queue", "declare a queue", "NAME")
    add_value(command, "--type", "TYPE", "classic or quorum; the default is the vhost's")
    add_arguments_option(command, "x-max-length=1000")
    _finish(command, _declare_queue)
    command = add_command(kinds, "exchange", "declare an exchange", "NAME")
    add_value(command, "--type", "TYPE", "direct (default), topic, fanout ...", default="direct")
    add_switch(command, "--internal", "clients cannot publish to it")
    add_arguments_option(command, "alternate-exchange=unrouted")
    _finish(command, _declare_exchange)

    for verb, summary in (
        ("bind", "route messages from an exchange to a queue, or to another exchange"),
        ("unbind", "remove a binding; key and arguments must match those of bind"),
    ):
        command = add_command(commands, verb, summary, "EXCHANGE")
        add_value(command, "destination", "QUEUE|EXCHANGE", "'queue:NAME' or 'exchange:NAME' if both exist")
        add_value(command, "key", "KEY", "the binding key; empty by default", nargs="?", default="")
        add_arguments_option(command, "x-match=any")
        finish(command, _bind, vhost=True, verb=verb)


def _finish(command: argparse.ArgumentParser, run: Any) -> None:
    add_switch(command, "--transient", "lost when the broker stops; the default is durable")
    add_switch(command, "--auto-delete", "deleted when its last user leaves")
    finish(command, run, vhost=True)


def _declare_queue(arguments: argparse.Namespace) -> int:
    table = table_of(arguments.argument, "--argument")
    if arguments.type is not None:
        table["x-queue-type"] = arguments.type
    return _declare(arguments, "queue", arguments=table)


def _declare_exchange(arguments: argparse.Namespace) -> int:
    table = table_of(arguments.argument, "--argument")
    return _declare(arguments, "exchange", "type", "internal", arguments=table)


def _declare(command: argparse.Namespace, kind: str, *names: str, arguments: dict[str, Any]) -> int:
    more = {kind: command.name, "arguments": arguments}
    answer = ask_for(command, f"declare_{kind}", "vhost", "transient", "auto_delete", *names, **more)
    print(f"{kind} '{cell(command.name)}' {'declared' if answer['made'] else 'already exists, as declared'}")
    return 0


def _bind(arguments: argparse.Namespace) -> int:
    table = table_of(arguments.argument, "--argument")
    answer = ask_for(arguments, arguments.verb, "exchange", "destination", "key", "vhost", arguments=table)
    if arguments.verb == "bind" and not answer["made"]:
        print("the binding already exists")
    return 0
