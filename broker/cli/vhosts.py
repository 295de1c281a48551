"""`slotmq vhost` and `slotmq policy`."""

from __future__ import annotations

import argparse
from typing import Any

from broker.cli.broker_url import broker_of
from broker.cli.control_client import ask
from broker.cli.limits import add_limits
from broker.cli.listing import print_list
from broker.cli.parser import BadUsage, add_broker, add_command, add_group, add_json, add_vhost
from broker.core.definitions.json_text import read_json

__all__ = ["add_vhosts"]

APPLY_TO = ("all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams")


def add_vhosts(commands: Any) -> None:
    """Add the commands."""
    kinds = add_group(commands, "vhost", "add, limit, delete or list vhosts")
    command = add_command(kinds, "add", "add a vhost; users need a permission to open it")
    command.add_argument("name", metavar="NAME")
    command.add_argument("--description", metavar="TEXT", default="")
    command.add_argument(
        "--default-queue-type", metavar="TYPE", help="classic or quorum: the type of queues declared without one"
    )
    add_broker(command)
    command.set_defaults(run=_add)
    command = add_command(kinds, "delete", "delete a vhost with everything in it, and close its connections")
    command.add_argument("name", metavar="NAME")
    add_broker(command)
    command.set_defaults(run=_delete)
    add_limits(kinds, "vhost", ("connections", "queues"))
    command = add_command(kinds, "list", "list the vhosts")
    add_json(command)
    add_broker(command)
    command.set_defaults(run=lambda arguments: print_list(arguments, "vhosts"))

    kinds = add_group(commands, "policy", "set, delete or list policies")
    command = add_command(kinds, "set", "set rules for all queues and exchanges whose names match a pattern")
    command.add_argument("name", metavar="NAME")
    command.add_argument("pattern", metavar="PATTERN", help="a regular expression")
    command.add_argument("definition", metavar="DEFINITION", help='a JSON object such as {"max-length": 1000}')
    command.add_argument(
        "--priority",
        metavar="N",
        type=int,
        default=0,
        help="the matching policy with the highest priority applies (default 0)",
    )
    command.add_argument("--apply-to", choices=APPLY_TO, default="all", metavar="KIND", help=", ".join(APPLY_TO))
    _finish(command, _set_policy)
    command = add_command(kinds, "delete", "delete a policy")
    command.add_argument("name", metavar="NAME")
    _finish(command, _delete_policy)
    command = add_command(kinds, "list", "list the policies")
    command.add_argument("--vhost", metavar="V", help="only this vhost; default all")
    command.add_argument("--operator", action="store_true", help="list the operator policies")
    add_json(command)
    add_broker(command)
    command.set_defaults(run=_list_policies)


def _finish(command: argparse.ArgumentParser, run: Any) -> None:
    command.add_argument("--operator", action="store_true", help="an operator policy, which can only lower limits")
    add_vhost(command)
    add_broker(command)
    command.set_defaults(run=run)


def _add(arguments: argparse.Namespace) -> int:
    facts = {"description": arguments.description, "default_queue_type": arguments.default_queue_type}
    ask(broker_of(arguments), "add_vhost", name=arguments.name, **facts)
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    ask(broker_of(arguments), "delete_vhost", name=arguments.name)
    return 0


def _set_policy(arguments: argparse.Namespace) -> int:
    try:
        definition = read_json(arguments.definition.encode())
    except ValueError as error:
        raise BadUsage(f"the definition is not valid JSON: {error}") from None
    ask(
        broker_of(arguments),
        "set_policy",
        name=arguments.name,
        vhost=arguments.vhost,
        pattern=arguments.pattern,
        definition=definition,
        priority=arguments.priority,
        apply_to=arguments.apply_to,
        operator=arguments.operator,
    )
    return 0


def _delete_policy(arguments: argparse.Namespace) -> int:
    named = {"name": arguments.name, "vhost": arguments.vhost}
    ask(broker_of(arguments), "delete_policy", operator=arguments.operator, **named)
    return 0


def _list_policies(arguments: argparse.Namespace) -> int:
    return print_list(arguments, "operator-policies" if arguments.operator else "policies", vhost=arguments.vhost)
