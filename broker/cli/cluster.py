"""`slotmq cluster`: show a cluster, remove nodes from it, back it up and restore it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from broker.cli.broker_url import broker_of
from broker.cli.control_client import Unanswered, ask_for, request
from broker.cli.exit_codes import unwritable
from broker.cli.parser import BadUsage, add_command, add_group, add_switch, add_value, finish
from broker.cli.progress_line import ProgressLine, share_of
from broker.cli.table import cell, counted, print_facts, print_rows

if TYPE_CHECKING:
    from broker.settings import Settings

COLUMNS: Final = (
    "node", "state", "epoch", "held", "slots", "clients", "beat_age_ms", "topology_lag", "database_ms", "version",
    "url",
)  # fmt: skip
COPY_NODE: Final = "backup"  # the node name that PostgreSQL shows for the connection of a backup or restore
NO_DATABASE: Final = "no cluster is named: give --cluster-file FILE, --cluster URL or --config FILE"
LEAVE_SILENCE_S: Final = 180.0  # the broker waits for two of the node's heartbeat intervals before it answers


def add_cluster(commands: Any) -> None:
    """Add the commands."""
    kinds = add_group(commands, "cluster", "show the cluster of the running broker; back up and restore a cluster")
    command = add_command(kinds, "status", "show this node, its database and how many nodes there are")
    finish(command, request("cluster", _print_status), json=True)

    command = add_command(kinds, "nodes", f"list the nodes; columns: {', '.join(COLUMNS)}")
    finish(command, _nodes, json=True)

    command = add_command(kinds, "leave", "leave the cluster and stop, or declare a node dead whose process has ended")
    add_value(command, "node", "NODE", "a node whose process has ended; default: stop the running broker", nargs="?")
    finish(command, _leave)

    command = add_command(kinds, "backup", "write the cluster's schema in PostgreSQL into a file, while the nodes run")
    _add_copy(command, "a new file, which only its owner can read: it has the messages and the hashes of passwords")
    command.set_defaults(run=_backup)

    command = add_command(kinds, "restore", "replace the cluster's schema in PostgreSQL by a backup; no node may run")
    _add_copy(command, "the file of a backup")
    command.set_defaults(run=_restore)


def _add_copy(command: argparse.ArgumentParser, meaning: str) -> None:
    """Add the arguments of a command that needs the database, but no broker."""
    add_value(command, "file", "FILE", meaning, type=Path)
    add_value(command, "--cluster", "URL", "the PostgreSQL of the cluster (postgresql://...)")
    add_value(command, "--cluster-file", "FILE", "a file that holds the URL")
    add_value(command, "--config", "FILE", "settings file (TOML) of a node, with the URL", type=Path)
    add_switch(command, "--quiet", "show no progress")


def cluster_text(facts: Mapping[str, Any]) -> str:
    """Describe the cluster in one line, for `slotmq status`."""
    silent = sum(row["state"] == "silent" for row in facts["nodes"])
    return (
        f"node {facts['node']} {facts['state']}, {len(facts['nodes'])} nodes"
        + (f" ({silent} silent)" if silent else "")
        + f", database {'away' if facts['database_ms'] is None else _ms(facts['database_ms'])}"
    )


def rows_of(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each node; `topology_lag` is how many versions of the topology the node has yet to apply."""
    newest = max((row["topology"] for row in facts["nodes"]), default=0)
    return [{**row, "topology_lag": newest - row["topology"]} for row in facts["nodes"]]


def _print_status(facts: Mapping[str, Any]) -> None:
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


def _nodes(arguments: argparse.Namespace) -> None:
    print_rows(rows_of(ask_for(arguments, "cluster")), COLUMNS, as_json=arguments.json)


def _leave(arguments: argparse.Namespace) -> int:
    if arguments.node is None:
        from broker.cli.stop import stop

        ask_for(arguments, "cluster")  # refused by a broker that is not a node
        return stop(broker_of(arguments), None)
    answer = ask_for(arguments, "cluster_leave", "node", silence_s=LEAVE_SILENCE_S)
    print(f"node {cell(answer['node'])} is declared dead: the other nodes have its messages")
    return 0


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g} ms"


# -- backup and restore, which load pydantic and the database driver ---------------------------------------------------


def _backup(arguments: argparse.Namespace) -> None:
    """Write a backup; remove the file if the backup fails. Raises: SettingsError; BadUsage; Unanswered."""
    settings, file = _settings(arguments), arguments.file
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise unwritable(file, error) from None
    finished = False
    try:
        with os.fdopen(descriptor, "wb") as stream, ProgressLine(quiet=arguments.quiet) as line:
            from broker.cluster.backup import back_up

            made = _run(settings, back_up, stream, lambda done, total: line.show(f"{share_of(done, total)} bytes"))
            stream.flush()
            os.fsync(stream.fileno())
        finished = True
    except OSError as error:
        raise unwritable(file, error) from None
    finally:
        if not finished:
            file.unlink(missing_ok=True)
    print(f"{cell(str(file))}: {counted(made['rows'], 'rows')}, {counted(made['bytes'], 'bytes')}")


def _restore(arguments: argparse.Namespace) -> None:
    """Restore a backup. Raises: SettingsError; BadUsage; Unanswered."""
    settings, file = _settings(arguments), arguments.file
    try:
        stream: BinaryIO = file.open("rb")
    except OSError as error:
        raise BadUsage(f"{file}: {error.strerror}") from None
    with stream, ProgressLine(quiet=arguments.quiet) as line:
        from broker.cluster.restore import restore

        total = os.fstat(stream.fileno()).st_size
        made = _run(settings, restore, stream, lambda done: line.show(f"{share_of(done, total)} bytes"))
    print(f"{counted(made['rows'], 'rows')} restored: start the nodes")


def _settings(arguments: argparse.Namespace) -> Settings:
    """Return settings that name a database. Raises: SettingsError; BadUsage."""
    from broker.cli.broker_folder import SettingsError
    from broker.cli.settings_layers import load, with_cluster_url

    given = {"url": arguments.cluster, "url_file": arguments.cluster_file}
    layer: dict[str, Any] = {"cluster": {key: value for key, value in given.items() if value is not None}}
    try:
        settings = load(arguments.config, {"cluster": {**layer["cluster"], "node": COPY_NODE}})
    except SettingsError:
        if not load(arguments.config, layer).cluster.is_on:  # `load` raises if anything else is wrong
            raise BadUsage(NO_DATABASE) from None
        raise
    return with_cluster_url(settings)


def _run(
    settings: Settings, work: Callable[..., Coroutine[Any, Any, dict[str, int]]], *arguments: Any
) -> dict[str, int]:
    """Run a backup or a restore and return its counts. Raises: Unanswered; BadUsage; OSError for the file."""
    import asyncio

    from broker.cluster.backup_file import BackupRefused
    from broker.cluster.errors import DatabaseRefused, Unreachable
    from broker.cluster.server_address import ServerAddress

    cluster = settings.cluster
    target = ServerAddress(cluster.url.get_secret_value(), cluster.node, cluster.schema_name)
    try:
        return asyncio.run(work(target, *arguments))
    except DatabaseRefused as error:
        raise BadUsage(str(error)) from None
    except (BackupRefused, Unreachable) as error:
        raise Unanswered(str(error)) from None
