"""`slotmq overlay`: show the links, interest and streams of the overlay brokers, and the route of a message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from broker.cli.control_client import request
from broker.cli.parser import add_command, add_value, finish
from broker.cli.table import aligned, cell, counted, print_rows

EXPLAIN_COLUMNS = ("exchange", "broker", "to", "goes", "reason", "leaves")


def add_overlay(commands: Any) -> None:
    """Add the commands."""
    group = add_command(
        commands, "overlay", "show the links, interest, streams and lag of the overlay brokers in the running process"
    )
    finish(group, request("overlay", _print_brokers), json=True)
    kinds = group.add_subparsers(title="commands", metavar="COMMAND")
    command = add_command(
        kinds, "explain", f"say where a message would go, and why; columns: {', '.join(EXPLAIN_COLUMNS)}"
    )
    add_value(command, "key", "KEY", "a routing key")
    add_value(command, "--exchange", "E", "only this exchange; default all that take part")
    finish(command, request("overlay_explain", _print_explained), json=True, vhost=True)
    command = add_command(kinds, "forget", "stop keeping messages for a leaf that is gone for good", "LEAF")
    finish(command, request("overlay_forget"))


def _print_brokers(brokers: Sequence[Mapping[str, Any]]) -> None:
    for index, broker in enumerate(brokers):
        if index:
            print()
        for line in broker_lines(broker):
            print(line)


def broker_lines(broker: Mapping[str, Any]) -> Iterable[str]:
    """Yield the lines that describe one broker."""
    yield f"{'leaf' if broker['leaf'] else 'broker'} {cell(broker['broker'])} of tree node {cell(broker['node'])}"
    yield from _table(
        "links", broker["links"], ("peer", "node", "state", "subscriptions", "sent_bytes", "received_bytes")
    )
    yield from _table("leaves beyond the links (V_b)", broker["leaves"], ("leaf", "node", "time", "durable"))
    wanted = [
        {**row, "some": ", ".join(row["patterns"]), "vector": _vector(row["vector"])} for row in broker["patterns"]
    ]
    yield from _table("patterns that they want", wanted, ("node", "vhost", "exchange", "count", "some", "vector"))
    if broker["leaf"]:
        streams = [{**row, "vector": _vector(row["vector"])} for row in broker["streams"]]
        columns = ("vhost", "exchange", "last", "sent", "acked", "lag", "vector")
        yield from _table("published here (V_m)", streams, columns)
        columns = ("leaf", "vhost", "exchange", "position", "reached", "lag", "repairs")
        yield from _table("received", broker["received"], columns)
        yield (
            f"  {counted(broker['delivered'], 'messages')} delivered, {counted(broker['gaps'], 'gaps')}; "
            f"{broker['forced_out']} published here were dropped by limits before all leaves had them"
        )
    else:
        yield from _table("passing", broker["passing"], ("leaf", "vhost", "exchange", "reached", "from"))
        yield (
            f"  {counted(broker['matched'], 'messages')} forwarded as wanted, {broker['flooded']} for lack "
            f"of knowledge, {broker['filtered']} filtered"
        )


def _table(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Iterable[str]:
    if rows:
        yield f"  {title}"
        for line in aligned(columns, [[cell(row.get(column)) for column in columns] for row in rows]):
            yield f"    {line}"


def _vector(vector: Mapping[str, int]) -> str:
    return ", ".join(f"{leaf}:{time}" for leaf, time in sorted(vector.items()))


def _print_explained(rows: Sequence[Mapping[str, Any]]) -> None:
    shown = [{**row, "goes": "yes" if row["goes"] else "no", "leaves": ", ".join(row["leaves"])} for row in rows]
    print_rows(shown, EXPLAIN_COLUMNS, as_json=False)
