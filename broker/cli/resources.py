"""`slotmq purge`, `release`, `queue`, `delete`, `peek` and `close-connection`: commands that act on one object of the
broker.
"""

from __future__ import annotations

from typing import Any

from broker.cli.control_client import request
from broker.cli.messages import GET_MAX, message_count, print_messages
from broker.cli.moving import positive
from broker.cli.parser import add_command, add_group, add_json, add_switch, add_value, finish
from broker.cli.table import print_count


def add_resources(commands: Any) -> None:
    """Add the commands."""
    command = add_command(commands, "purge", "drop the ready messages of a queue; unacked messages stay", "QUEUE")
    add_value(command, "--limit", "N", "drop at most N messages, the first ones", type=positive)
    finish(command, request("purge_queue", "queue", "vhost", "limit", show=print_count("purged")), vhost=True)

    command = add_command(commands, "release", "deliver the delayed messages of a queue now, due or not", "QUEUE")
    add_value(command, "--limit", "N", "at most N messages, those that are due next", type=positive)
    finish(command, request("release_delayed", "queue", "vhost", "limit", show=print_count("released")), vhost=True)

    verbs = add_group(commands, "queue", "pause a queue or resume it")
    for verb, summary in (
        ("pause", "deliver nothing to consumers and basic.get; publishes continue, and the pause survives a restart"),
        ("resume", "resume deliveries"),
    ):
        command = add_command(verbs, verb, summary)
        command.add_argument("queue", metavar="NAME")
        finish(command, request(f"{verb}_queue", "vhost", "queue"), vhost=True)

    kinds = add_group(commands, "delete", "delete a queue or an exchange")
    for kind, summary in (("queue", "delete a queue with its messages"), ("exchange", "delete an exchange")):
        command = add_command(kinds, kind, summary)
        command.add_argument(kind, metavar="NAME")
        add_switch(command, "--if-unused", "only if it is not in use")
        if kind == "queue":
            add_switch(command, "--if-empty", "only if it has no messages")
            run = request("delete_queue", "vhost", "queue", "if_unused", "if_empty", show=print_count("deleted"))
        else:
            run = request("delete_exchange", "vhost", "exchange", "if_unused")
        finish(command, run, vhost=True)

    command = add_command(commands, "peek", "show the next messages of a queue without changing them", "QUEUE")
    add_value(command, "--count", "N", f"at most N messages, up to {GET_MAX}", type=message_count, default=1)
    add_value(command, "--body-bytes", "N", "show at most N bytes of a body (default 4096)", type=int, default=4096)
    add_json(command)
    names = ("queue", "vhost", "count", "body_bytes")
    finish(command, request("peek", *names, show=print_messages), vhost=True)

    command = add_command(commands, "close-connection", "close a client's connection with 320 CONNECTION_FORCED")
    add_value(command, "name", "NAME", 'as in the list of connections, such as "127.0.0.1:50000 -> 127.0.0.1:5672"')
    add_value(command, "--reason", "TEXT", "the text that the client gets", default="Closed via command line")
    finish(command, request("close_connection", "name", "reason"))
