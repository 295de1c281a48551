"""`slotmq cluster`: the nodes that share a PostgreSQL with the running broker; the backup of a cluster."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from broker.cli.broker_url import broker_of
from broker.cli.control_client import ask_for
from broker.cli.parser import add_command, add_group, add_switch, add_value, finish
from broker.cli.table import cell, print_facts, print_json, print_rows

COLUMNS: Final = (
    "node", "state", "epoch", "held", "slots", "clients", "beat_age_ms", "topology_lag", "database_ms", "version",
    "url",
)  # fmt: skip
LEAVE_SILENCE_S: Final = 180.0  # a look at the node's beats takes as long as its lease allows


def add_cluster(commands: Any) -> None:
    """Add the commands."""
    kinds = add_group(commands, "cluster", "show the cluster of the running broker; back up and restore a cluster")
    command = add_command(kinds, "status", "show this node, its database and how many nodes there are")
    finish(command, _status, json=True)

    command = add_command(kinds, "nodes", f"list the nodes; columns: {', '.join(COLUMNS)}")
    finish(command, _nodes, json=True)

    command = add_command(
        kinds,
        "leave",
        "leave the cluster and stop, or declare a node dead whose process has ended",
    )
    add_value(command, "node", "NODE", "a node whose process has ended; default: stop the running broker", nargs="?")
    finish(command, _leave)

    command = add_command(kinds, "backup", "write the cluster's schema in PostgreSQL into a file, while the nodes run")
    _add_copy(command, "a new file, which only its owner can read: it has the messages and the hashes of passwords")
    command.set_defaults(run=partial(_copy, verb="backup"))

    command = add_command(kinds, "restore", "replace the cluster's schema in PostgreSQL by a backup; no node may run")
    _add_copy(command, "the file of a backup")
    command.set_defaults(run=partial(_copy, verb="restore"))


def _add_copy(command: argparse.ArgumentParser, meaning: str) -> None:
    """Add the arguments of a command that needs the database, and no broker."""
    add_value(command, "file", "FILE", meaning, type=Path)
    add_value(command, "--cluster", "URL", "the PostgreSQL of the cluster (postgresql://...)")
    add_value(command, "--cluster-file", "FILE", "a file that holds the URL")
    add_value(command, "--config", "FILE", "settings file (TOML) of a node, with the URL", type=Path)
    add_switch(command, "--quiet", "show no progress")


def _copy(arguments: argparse.Namespace, *, verb: str) -> int:
    from broker.cli import cluster_copy  # it loads pydantic and the database driver
    from broker.cli.running import with_settings

    return with_settings(cluster_copy.backup if verb == "backup" else cluster_copy.restore, arguments)


def cluster_text(facts: Mapping[str, Any]) -> str:
    """Return the cluster as one line for `slotmq status`."""
    silent = sum(row["state"] == "silent" for row in facts["nodes"])
    return (
        f"node {facts['node']} {facts['state']}, {len(facts['nodes'])} nodes"
        + (f" ({silent} silent)" if silent else "")
        + f", database {'away' if facts['database_ms'] is None else _ms(facts['database_ms'])}"
    )


def rows_of(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each node, with how many changes of the topology it has not applied yet."""
    newest = max((row["topology"] for row in facts["nodes"]), default=0)
    return [{**row, "topology_lag": newest - row["topology"]} for row in facts["nodes"]]


def _status(arguments: argparse.Namespace) -> int:
    facts = ask_for(arguments, "cluster")
    if arguments.json:
        print_json(facts)
        return 0
    nodes = facts["nodes"]
    database = facts.get("database") or "unknown"
    answers = "does not answer" if facts["database_ms"] is None else f"answers in {_ms(facts['database_ms'])}"
    lines = {
        "node": f"{facts['node']}, {facts['state']}, epoch {facts['epoch']}",
        "reason": facts.get("reason"),
        "database": f"{database}, schema {facts['schema']}, {answers}",
        "beat": f"{_ms(facts['beat_age_ms'])} ago, lease {_ms(facts['lease_ms'])}",
        "topology": f"version {facts['topology']}",
        "nodes": ", ".join(f"{row['node']} {row['state']}" for row in nodes) or "none",
        "held": f"{sum(row.get('held') or 0 for row in nodes)} messages by all nodes",
    }
    print_facts({name: cell(text) for name, text in lines.items() if text})
    return 0


def _nodes(arguments: argparse.Namespace) -> int:
    print_rows(rows_of(ask_for(arguments, "cluster")), COLUMNS, as_json=arguments.json)
    return 0


def _leave(arguments: argparse.Namespace) -> int:
    if arguments.node is None:
        from broker.cli.stop import stop

        ask_for(arguments, "cluster")  # refused by a broker that is not a node
        return stop(broker_of(arguments), None)
    gone = ask_for(arguments, "cluster_leave", "node", silence_s=LEAVE_SILENCE_S)
    print(f"node {cell(gone['node'])} is counted out: the other nodes have what it held")
    return 0


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g} ms"
