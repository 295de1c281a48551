"""`slotmq declare`, `bind` and `unbind`: declare queues and exchanges, add and remove bindings."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from broker.cli.broker_url import broker_of
from broker.cli.control_client import ask
from broker.cli.name_values import add_arguments_option, table_of
from broker.cli.parser import add_broker, add_command, add_group, add_vhost
from broker.cli.table import cell

__all__ = ["add_topology"]


def add_topology(commands: Any) -> None:
    """Add the commands."""
    kinds = add_group(
        commands, "declare", "declare a queue or an exchange; an existing one must have the same properties"
    )
    command = add_command(kinds, "queue", "declare a queue")
    command.add_argument("name", metavar="NAME")
    command.add_argument("--type", metavar="TYPE", help="classic or quorum; the default is the vhost's")
    add_arguments_option(command, "x-max-length=1000")
    _finish(command, _declare_queue)
    command = add_command(kinds, "exchange", "declare an exchange")
    command.add_argument("name", metavar="NAME")
    command.add_argument("--type", metavar="TYPE", default="direct", help="direct (default), topic, fanout ...")
    command.add_argument("--internal", action="store_true", help="clients cannot publish to it")
    add_arguments_option(command, "alternate-exchange=unrouted")
    _finish(command, _declare_exchange)

    for verb, summary in (
        ("bind", "lead what an exchange gets under a routing key to a queue, or to another exchange"),
        ("unbind", "remove a binding; key and arguments have to be those that it was made with"),
    ):
        command = add_command(commands, verb, summary)
        command.add_argument("exchange", metavar="EXCHANGE")
        command.add_argument(
            "destination", metavar="QUEUE|EXCHANGE", help="'queue:NAME' or 'exchange:NAME' if both exist"
        )
        command.add_argument("key", metavar="KEY", nargs="?", default="", help="the binding key; default none")
        add_arguments_option(command, "x-match=any")
        add_vhost(command)
        add_broker(command)
        command.set_defaults(run=_bind, verb=verb)


def _finish(command: argparse.ArgumentParser, run: Any) -> None:
    command.add_argument("--transient", action="store_true", help="lost when the broker stops; the default is durable")
    command.add_argument("--auto-delete", action="store_true", help="deleted when its last user leaves")
    add_vhost(command)
    add_broker(command)
    command.set_defaults(run=run)


def _declare_queue(arguments: argparse.Namespace) -> int:
    table = table_of(arguments.argument, "--argument")
    if arguments.type is not None:
        table["x-queue-type"] = arguments.type
    return _declare(arguments, "queue", {"arguments": table})


def _declare_exchange(arguments: argparse.Namespace) -> int:
    table = table_of(arguments.argument, "--argument")
    more = {"type": arguments.type, "internal": arguments.internal, "arguments": table}
    return _declare(arguments, "exchange", more)


def _declare(arguments: argparse.Namespace, kind: str, more: Mapping[str, Any]) -> int:
    common = {"vhost": arguments.vhost, "transient": arguments.transient, "auto_delete": arguments.auto_delete}
    answer = ask(broker_of(arguments), f"declare_{kind}", **{kind: arguments.name}, **common, **more)
    print(f"{kind} '{cell(arguments.name)}' {'declared' if answer['made'] else 'is there already, as declared'}")
    return 0


def _bind(arguments: argparse.Namespace) -> int:
    answer = ask(
        broker_of(arguments),
        arguments.verb,
        exchange=arguments.exchange,
        destination=arguments.destination,
        key=arguments.key,
        vhost=arguments.vhost,
        arguments=table_of(arguments.argument, "--argument"),
    )
    if arguments.verb == "bind" and not answer["made"]:
        print("the binding is there already")
    return 0
