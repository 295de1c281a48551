"""`slotmq trace`: show messages as they are published and delivered, or switch the firehose on or off."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from broker.cli.broker_url import broker_of
from broker.cli.control_client import ask
from broker.cli.parser import BadUsage, add_command, add_value, finish
from broker.cli.table import cell, counted

FILTERS: Final = ("exchange", "queue", "key", "user")


class _Ended(Exception):
    """The trace should end. If the output could not be written, the cause is the OSError."""


def add_trace(commands: Any) -> None:
    """Add the command."""
    command = add_command(
        commands,
        "trace",
        "print messages as they are published and delivered, until interrupted; `on` and `off` start and stop copying "
        "them to the exchange amq.rabbitmq.trace",
    )
    command.add_argument("switch", nargs="?", choices=("on", "off"), metavar="on|off")
    add_value(command, "--exchange", "GLOB", "only messages published to these exchanges; '' is the default exchange")
    add_value(command, "--queue", "GLOB", "only messages routed to or delivered from these queues")
    add_value(command, "--key", "PATTERN", "only routing keys that match a topic pattern such as 'a.*.#'")
    add_value(command, "--user", "GLOB", "only messages that these users publish or receive")
    add_value(command, "--count", "N", "end after N messages", type=int)
    add_value(command, "--body-bytes", "N", "show at most N bytes of a body (default 256)", type=int, default=256)
    finish(command, _trace, json=True, vhost=True)


def _trace(arguments: argparse.Namespace) -> None:
    broker, filters = broker_of(arguments), {name: getattr(arguments, name) for name in FILTERS}
    if arguments.switch is not None:
        if arguments.count is not None or any(value is not None for value in filters.values()):
            raise BadUsage("filters and --count limit only the output, not the firehose")
        ask(broker, "set_tracing", vhost=arguments.vhost, on=arguments.switch == "on")
        return
    if arguments.count is not None and arguments.count < 1:
        raise BadUsage("--count should be at least 1")
    left, compact = arguments.count, arguments.json

    def show(progress: Mapping[str, Any]) -> None:
        nonlocal left
        try:
            for row in progress.get("passed", ()):
                print(_compact(row) if compact else _line(row))
                if left is not None:
                    left -= 1
                    if not left:
                        raise _Ended
            if "dropped" in progress:
                print(_compact(progress) if compact else f"... {counted(progress['dropped'], 'messages')} not shown")
            if "tracing" in progress:
                print(f"tracing vhost {cell(progress['tracing'])}: ctrl-C ends it", file=sys.stderr, flush=True)
            print(end="", flush=True)
        except OSError as error:
            raise _Ended from error

    chosen = {"vhost": arguments.vhost, "body_bytes": arguments.body_bytes, **filters}
    try:
        ask(broker, "trace", on_progress=show, silence_s=None, **chosen)
    except _Ended as ended:
        if ended.__cause__ is not None:
            raise ended.__cause__ from None


def _line(row: Mapping[str, Any]) -> str:
    """Return a message as one readable line."""
    at = datetime.fromtimestamp(row["at_ms"] / 1000).astimezone().isoformat(timespec="milliseconds")
    facts = {"exchange": row["exchange"], "key": row["routing_keys"]}
    if row["kind"] == "publish":
        facts["queues"] = row["routed_queues"]
    else:
        facts |= {"queue": row["queue"], "redelivered": row["redelivered"]}
    facts |= {name: row[name] for name in ("user", "connection", "channel")} | row["properties"]
    words = " ".join(f"{name}={cell(value)}" for name, value in facts.items())
    cut = "" if row["body_complete"] else " ..."
    return f"{at[11:23]} {row['kind']} {words} body({row['body_bytes']})={cell(row['body'])}{cut}"


def _compact(row: Mapping[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"))
