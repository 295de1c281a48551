"""`slotmq purge`, `release`, `queue`, `delete`, `peek` and `close-connection`: acts on one object of the broker."""

from __future__ import annotations

import argparse
from typing import Any

from broker.cli.control_client import ask_for, request
from broker.cli.messages import GET_MAX, message_count, print_messages
from broker.cli.moving import positive
from broker.cli.parser import add_command, add_group, add_json, add_switch, add_value, finish
from broker.cli.table import counted, print_json


def add_resources(commands: Any) -> None:
    """Add the commands."""
    command = add_command(commands, "purge", "drop the ready messages of a queue; unacked messages stay", "QUEUE")
    add_value(command, "--limit", "N", "drop at most N messages, the first ones", type=positive)
    finish(command, _purge, vhost=True)

    command = add_command(commands, "release", "deliver the delayed messages of a queue now, due or not", "QUEUE")
    add_value(command, "--limit", "N", "at most N messages, those that are due next", type=positive)
    finish(command, _release, vhost=True)

    verbs = add_group(commands, "queue", "pause a queue or resume it")
    for verb, summary in (
        ("pause", "deliver nothing to consumers and basic.get; publishes continue, and the pause survives a restart"),
        ("resume", "resume deliveries"),
    ):
        command = add_command(verbs, verb, summary, "NAME")
        command.set_defaults(verb=verb)
        finish(command, _pause_or_resume, vhost=True)

    kinds = add_group(commands, "delete", "delete a queue or an exchange")
    for kind in ("queue", "exchange"):
        command = add_command(
            kinds, kind, f"delete {'a queue with its messages' if kind == 'queue' else 'an exchange'}"
        )
        command.add_argument("name", metavar="NAME")
        add_switch(command, "--if-unused", "only if it is not in use")
        if kind == "queue":
            add_switch(command, "--if-empty", "only if it has no messages")
        command.set_defaults(kind=kind)
        finish(command, _delete, vhost=True)

    command = add_command(commands, "peek", "show the next messages of a queue without changing them", "QUEUE")
    add_value(command, "--count", "N", f"at most N messages, up to {GET_MAX}", type=message_count, default=1)
    add_value(command, "--body-bytes", "N", "show at most N bytes of a body (default 4096)", type=int, default=4096)
    add_json(command)
    finish(command, _peek, vhost=True)

    command = add_command(commands, "close-connection", "close a client's connection with 320 CONNECTION_FORCED")
    add_value(command, "name", "NAME", 'as in the list of connections, such as "127.0.0.1:50000 -> 127.0.0.1:5672"')
    add_value(command, "--reason", "TEXT", "the text that the client gets", default="Closed via command line")
    finish(command, request("close_connection", "name", "reason"))


def _purge(arguments: argparse.Namespace) -> int:
    limit = {} if arguments.limit is None else {"limit": arguments.limit}
    purged = ask_for(arguments, "purge_queue", "queue", "vhost", **limit)["messages"]
    print(f"{counted(purged, 'messages')} purged")
    return 0


def _release(arguments: argparse.Namespace) -> int:
    limit = {} if arguments.limit is None else {"limit": arguments.limit}
    released = ask_for(arguments, "release_delayed", "queue", "vhost", **limit)["messages"]
    print(f"{counted(released, 'messages')} released")
    return 0


def _pause_or_resume(arguments: argparse.Namespace) -> int:
    ask_for(arguments, f"{arguments.verb}_queue", "vhost", queue=arguments.name)
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    named = {arguments.kind: arguments.name}
    if arguments.kind == "exchange":
        ask_for(arguments, "delete_exchange", "vhost", "if_unused", **named)
        return 0
    deleted = ask_for(arguments, "delete_queue", "vhost", "if_unused", "if_empty", **named)["messages"]
    print(f"{counted(deleted, 'messages')} deleted")
    return 0


def _peek(arguments: argparse.Namespace) -> int:
    messages = ask_for(arguments, "peek", "queue", "vhost", "count", "body_bytes")
    if arguments.json:
        print_json(messages)
    elif messages:
        print_messages(messages)
    return 0
