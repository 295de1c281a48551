"""`slotmq status`, `list` and `zmq`: show the state and the objects of the running broker."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from broker.cli.cluster import cluster_text
from broker.cli.control_client import ask_for, request
from broker.cli.parser import BadUsage, add_any_vhost, add_command, add_value, finish
from broker.cli.table import cell, in_columns, print_facts, print_rows
from broker.cli.taps import cursor_text

# The default columns of each list, most of them named as in rabbitmqctl. `--columns` and `--json` show others.
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "queues": (
        "vhost", "name", "messages_ready", "messages_unacknowledged", "messages", "consumers", "state", "policy",
        "durable", "auto_delete", "arguments",
    ),
    "exchanges": ("vhost", "name", "type", "durable", "auto_delete", "internal", "policy", "topic_index", "arguments"),
    "bindings": ("vhost", "source", "destination", "destination_type", "routing_key", "arguments"),
    "connections": (
        "name", "user", "vhost", "state", "protocol", "client_id", "channels", "peer_host", "peer_port",
        "recv_oct", "send_oct", "connection_name",
    ),
    "channels": (
        "connection", "number", "user", "vhost", "consumer_count", "messages_unacknowledged", "prefetch_count",
        "global_prefetch_count", "confirm", "transactional",
    ),
    "consumers": (
        "vhost", "queue", "consumer_tag", "connection", "channel", "ack_required", "prefetch_count", "active",
        "exclusive", "arguments",
    ),
    "users": ("name", "tags"),
    "vhosts": ("name", "state", "description", "queues", "messages", "connections", "reason"),
    "permissions": ("vhost", "user", "configure", "write", "read"),
    "topic-permissions": ("vhost", "user", "exchange", "write", "read"),
    "policies": ("vhost", "name", "pattern", "apply_to", "definition", "priority"),
    "operator-policies": ("vhost", "name", "pattern", "apply_to", "definition", "priority"),
}  # fmt: skip


ZMQ_COLUMNS: Final = (
    "kind", "endpoint", "exchange", "state", "peers", "subscriptions", "messages", "full", "lost", "problem",
)  # fmt: skip


def add_listing(commands: Any) -> None:
    """Add the commands."""
    command = add_command(commands, "status", "show the state of the running broker")
    finish(command, request("status", _print_status), json=True)

    command = add_command(
        commands, "zmq", f"list the ØMQ endpoints of the running broker; columns: {', '.join(ZMQ_COLUMNS)}"
    )
    finish(command, request("zmq", in_columns(ZMQ_COLUMNS)), json=True)

    command = add_command(
        commands,
        "list",
        "list objects of the running broker: a table on a terminal, tab-separated lines without a header elsewhere",
    )
    kinds = command.add_subparsers(title="kinds", metavar="KIND", required=True)
    for kind, columns in COLUMNS.items():
        command = add_command(kinds, kind, f"columns: {', '.join(columns)}")
        add_any_vhost(command)
        add_value(command, "--columns", "A,B", "show these columns; --json shows all columns")
        finish(command, partial(print_list, kind), json=True)


def print_list(kind: str, arguments: argparse.Namespace) -> None:
    """Print a list of objects, of one vhost if the command names one. Raises: SettingsError, BadUsage, Unanswered."""
    filters = {"vhost": arguments.vhost} if "vhost" in arguments else {}
    chosen = getattr(arguments, "columns", None)
    wanted = COLUMNS[kind] if chosen is None else chosen.split(",")
    if kind == "queues":  # expensive columns are requested only when they are shown
        parts = {"rates": "_rate", "bytes": "message_bytes"}
        filters |= {part: True for part, name in parts.items() if arguments.json or name in ",".join(wanted)}
    rows = ask_for(arguments, f"list_{kind.replace('-', '_')}", **filters)
    columns = COLUMNS[kind] if chosen is None else _chosen(wanted, kind, rows)
    print_rows(rows, columns, as_json=arguments.json)


def _chosen(columns: Sequence[str], kind: str, rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Return the columns. Raises: BadUsage for an unknown one; without rows, all are accepted."""
    known = sorted({*COLUMNS[kind], *(name for row in rows for name in row)})
    for column in columns:
        if rows and column not in known:
            raise BadUsage(f"there is no column '{column}': there are {', '.join(known)}")
    return columns


def _print_status(answer: Mapping[str, Any]) -> None:
    print_facts({name: _shown(name, value) for name, value in answer.items()})


ROW_TEXTS: Final[dict[str, Callable[[Mapping[str, Any]], str]]] = {
    "alarms": lambda row: f"low on {row['kind']}",
    "cursors": lambda row: f"{row['tap']} in {row['vhost']} {cursor_text(row)}",
    "vhosts_down": lambda row: f"{row['vhost']} ({row['reason']})",
    "queues_recovered": lambda row: f"{row['queue']} in {row['vhost']} ({row['messages']} messages)",
}
"""The functions that describe a row, by the field of the status that contains such rows."""


def _shown(name: str, value: Any) -> str:
    if name == "cluster":
        value = cluster_text(value)
    elif name in ROW_TEXTS:
        value = ", ".join(map(ROW_TEXTS[name], value))
    return cell(value) or "none"
