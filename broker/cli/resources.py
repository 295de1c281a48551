"""The commands for one queue, exchange, binding or connection, such as `slotmq declare` and `slotmq purge`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.cli.control_client import ask_for, request
from broker.cli.messages import GET_MAX, message_count, print_messages
from broker.cli.moving import positive
from broker.cli.parser import add_arguments_option, add_command, add_group, add_switch, add_value, finish
from broker.cli.table import aligned, cell, print_count

DECLARED: Final = ("vhost", "transient", "auto_delete")
SLOT_COLUMNS: Final = ("range", "state", "owner", "settled", "bytes", "where")


def add_resources(commands: Any) -> None:
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

    for verb, summary, run in (
        ("bind", "route messages from an exchange to a queue, or to another exchange", request("bind", _print_bound)),
        ("unbind", "remove a binding; key and arguments must match those of bind", request("unbind")),
    ):
        command = add_command(commands, verb, summary, "EXCHANGE")
        add_value(command, "destination", "QUEUE|EXCHANGE", "'queue:NAME' or 'exchange:NAME' if both exist")
        add_value(command, "key", "KEY", "the binding key; empty by default", nargs="?", default="")
        add_arguments_option(command, "x-match=any")
        finish(command, run, vhost=True)

    command = add_command(commands, "purge", "drop the ready messages of a queue; unacked messages stay", "QUEUE")
    add_value(command, "--limit", "N", "drop at most N messages, the first ones", type=positive)
    finish(command, request("purge_queue", print_count("purged")), vhost=True)

    command = add_command(commands, "release", "deliver the delayed messages of a queue now, due or not", "QUEUE")
    add_value(command, "--limit", "N", "at most N messages, those with the earliest delivery time", type=positive)
    finish(command, request("release_delayed", print_count("released")), vhost=True)

    verbs = add_group(commands, "queue", "pause a queue or resume it")
    for verb, summary in (
        ("pause", "deliver nothing to consumers and basic.get; publishes continue, and the pause survives a restart"),
        ("resume", "resume deliveries"),
    ):
        finish(add_command(verbs, verb, summary, "queue=NAME"), request(f"{verb}_queue"), vhost=True)

    kinds = add_group(commands, "delete", "delete a queue or an exchange")
    command = add_command(kinds, "queue", "delete a queue with its messages", "queue=NAME")
    add_switch(command, "--if-unused", "only if it is not in use")
    add_switch(command, "--if-empty", "only if it has no messages")
    finish(command, request("delete_queue", print_count("deleted")), vhost=True)
    command = add_command(kinds, "exchange", "delete an exchange", "exchange=NAME")
    add_switch(command, "--if-unused", "only if it is not in use")
    finish(command, request("delete_exchange"), vhost=True)

    command = add_command(commands, "peek", "show the next messages of a queue without changing them", "QUEUE")
    add_value(command, "--count", "N", f"at most N messages, up to {GET_MAX}", type=message_count, default=1)
    add_value(command, "--body-bytes", "N", "show at most N bytes of a body (default 4096)", type=int, default=4096)
    finish(command, request("peek", print_messages), json=True, vhost=True)

    command = add_command(commands, "close-connection", "close a client's connection with 320 CONNECTION_FORCED")
    add_value(command, "name", "NAME", 'as in the list of connections, such as "127.0.0.1:50000 -> 127.0.0.1:5672"')
    add_value(command, "--reason", "TEXT", "the text that the client receives", default="Closed via command line")
    finish(command, request("close_connection"))

    command = add_command(commands, "slots", "show the slots of a queue of the running broker", "QUEUE")
    finish(command, request("slots", lambda answer: print(slot_table(answer))), json=True, vhost=True)


def _finish(command: argparse.ArgumentParser, run: Any) -> None:
    add_switch(command, "--transient", "lost when the broker stops; the default is durable")
    add_switch(command, "--auto-delete", "deleted when its last user leaves")
    finish(command, run, vhost=True)


def _declare_queue(command: argparse.Namespace) -> None:
    kind = {} if command.type is None else {"x-queue-type": command.type}
    answer = ask_for(command, "declare_queue", *DECLARED, queue=command.name, arguments=command.arguments | kind)
    _print_made(f"queue '{cell(command.name)}'", answer)


def _declare_exchange(command: argparse.Namespace) -> None:
    names = (*DECLARED, "type", "internal", "arguments")
    _print_made(f"exchange '{cell(command.name)}'", ask_for(command, "declare_exchange", *names, exchange=command.name))


def _print_made(what: str, answer: Mapping[str, Any]) -> None:
    print(f"{what} {'declared' if answer['made'] else 'already exists, as declared'}")


def _print_bound(answer: Mapping[str, Any]) -> None:
    if not answer["made"]:
        print("the binding already exists")


def slot_table(answer: Mapping[str, Any]) -> str:
    """Return the slots of a queue as a table; `answer` is the broker's answer to the verb `slots`."""
    rows: list[Sequence[str]] = [SLOT_COLUMNS, *(_slot_cells(slot) for slot in answer["slots"])]
    if answer["levels"] > 1:
        levels = ["level", *(str(slot["level"]) for slot in answer["slots"])]
        rows = [(level, *row) for level, row in zip(levels, rows, strict=True)]
    lines = list(aligned(rows[0], rows[1:]))
    more = answer["slot_count"] - len(answer["slots"])
    if more:
        lines.append(f"... and {more:,} more")
    lines.append(  # repr() escapes control characters in a queue's name
        f"queue {answer['queue']!r} in vhost {answer['vhost']!r}: {answer['slot_count']:,} slots, "
        f"{answer['ready']:,} messages ready, {answer['unacked']:,} unacked"
    )
    return "\n".join(lines)


def _slot_cells(slot: Mapping[str, Any]) -> Sequence[str]:
    count = slot["end"] - slot["first"]
    return (
        f"{slot['first']}-{slot['end'] - 1}" if count else f"{slot['first']}-",
        slot["state"],
        slot["owner"] or "-",
        f"{slot['settled']}/{count}",
        str(slot["bytes"]),
        "resident" if slot["resident"] else "on disk",
    )
