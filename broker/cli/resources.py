"""`slotmq purge`, `queue`, `delete`, `peek` and `close-connection`: acts on one queue, exchange or connection."""

from __future__ import annotations

import argparse
from typing import Any

from broker.cli.broker_url import broker_of
from broker.cli.control_client import ask
from broker.cli.message_text import message_lines
from broker.cli.messages import GET_MAX, message_count
from broker.cli.moving import positive
from broker.cli.parser import add_broker, add_command, add_group, add_json, add_vhost
from broker.cli.table import counted, print_json

__all__ = ["add_resources"]


def add_resources(commands: Any) -> None:
    """Add the commands."""
    command = add_command(commands, "purge", "drop the ready messages of a queue; unacked messages stay")
    command.add_argument("queue", metavar="QUEUE")
    command.add_argument("--limit", metavar="N", type=positive, help="drop at most N messages, the first ones")
    _finish(command, _purge)

    verbs = add_group(commands, "queue", "pause a queue or resume it")
    for verb, summary in (
        ("pause", "deliver nothing to consumers and basic.get; publishes go on, and a restart keeps the pause"),
        ("resume", "deliver again"),
    ):
        command = add_command(verbs, verb, summary)
        command.add_argument("name", metavar="NAME")
        command.set_defaults(verb=verb)
        _finish(command, _pause_or_resume)

    kinds = add_group(commands, "delete", "delete a queue or an exchange")
    for kind in ("queue", "exchange"):
        command = add_command(
            kinds, kind, f"delete {'a queue with its messages' if kind == 'queue' else 'an exchange'}"
        )
        command.add_argument("name", metavar="NAME")
        command.add_argument("--if-unused", action="store_true", help="only if it is not in use")
        if kind == "queue":
            command.add_argument("--if-empty", action="store_true", help="only if it has no messages")
        command.set_defaults(kind=kind)
        _finish(command, _delete)

    command = add_command(commands, "peek", "show the next messages of a queue without changing them")
    command.add_argument("queue", metavar="QUEUE")
    command.add_argument(
        "--count", metavar="N", type=message_count, default=1, help=f"at most N messages, up to {GET_MAX}"
    )
    command.add_argument(
        "--body-bytes", metavar="N", type=int, default=4096, help="show at most N bytes of a body (default 4096)"
    )
    add_json(command)
    _finish(command, _peek)

    command = add_command(commands, "close-connection", "close a client's connection with 320 CONNECTION_FORCED")
    command.add_argument(
        "name", metavar="NAME", help='as in the list of connections, such as "127.0.0.1:50000 -> 127.0.0.1:5672"'
    )
    command.add_argument(
        "--reason", metavar="TEXT", default="Closed via command line", help="the text that the client gets"
    )
    add_broker(command)
    command.set_defaults(run=_close_connection)


def _finish(command: argparse.ArgumentParser, run: Any) -> None:
    add_vhost(command)
    add_broker(command)
    command.set_defaults(run=run)


def _purge(arguments: argparse.Namespace) -> int:
    limit = {} if arguments.limit is None else {"limit": arguments.limit}
    purged = ask(broker_of(arguments), "purge_queue", queue=arguments.queue, vhost=arguments.vhost, **limit)["messages"]
    print(f"{counted(purged, 'messages')} purged")
    return 0


def _pause_or_resume(arguments: argparse.Namespace) -> int:
    ask(broker_of(arguments), f"{arguments.verb}_queue", queue=arguments.name, vhost=arguments.vhost)
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    broker, name, vhost = broker_of(arguments), arguments.name, arguments.vhost
    if arguments.kind == "exchange":
        ask(broker, "delete_exchange", exchange=name, vhost=vhost, if_unused=arguments.if_unused)
        return 0
    conditions = {"if_unused": arguments.if_unused, "if_empty": arguments.if_empty}
    deleted = ask(broker, "delete_queue", queue=name, vhost=vhost, **conditions)["messages"]
    print(f"{counted(deleted, 'messages')} deleted")
    return 0


def _peek(arguments: argparse.Namespace) -> int:
    messages = ask(
        broker_of(arguments),
        "peek",
        queue=arguments.queue,
        vhost=arguments.vhost,
        count=arguments.count,
        body_bytes=arguments.body_bytes,
    )
    if arguments.json:
        print_json(messages)
    elif messages:
        print("\n\n".join("\n".join(message_lines(message)) for message in messages))
    return 0


def _close_connection(arguments: argparse.Namespace) -> int:
    ask(broker_of(arguments), "close_connection", name=arguments.name, reason=arguments.reason)
    return 0
