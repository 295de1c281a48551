"""The sections on who gets messages: fan-out, keys that nobody gets, bindings, taps and their readers, consumers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.pipeline.report.chart import Bar, Frame, bars, columns
from broker.pipeline.report.elements import Section, key_label, paragraph, table
from broker.pipeline.report.scale import bytes_text, count_text, duration_text, many

__all__ = ["bindings_section", "consumers_section", "reach_section", "taps_section"]

Values = Mapping[str, Any]
NO_BINDINGS = "No bindings were named: --path with the data folder of a running broker, or --bindings with a file."
NO_BROKER = "No broker was named: --path or --url."


def reach_section(values: Values) -> Section:
    """Return how many queues messages reach, and which keys reach none."""
    reach = values["reach"]
    if reach is None:
        return Section("fan-out", "Fan-out", paragraph(NO_BINDINGS))
    rows = [
        Bar(
            str(row["queues"]),
            row["messages"],
            f"{many(row['queues'], 'queue')}: {many(row['messages'], 'message')} under {many(row['keys'], 'key')}",
        )
        for row in reach["by_queues"]
    ]
    made = paragraph(
        f"By {values['bindings_of']}, a message reaches {reach['mean']:.2f} queues on average; all of them together "
        f"would be {reach['copies']:,} copies."
    )
    made += columns(Frame("messages by number of queues", "queues that a message reaches", "messages"), rows)
    made += f"<h3>Keys that no queue gets</h3>{paragraph(_unmatched(reach))}"
    if reach["unmatched"]:
        made += table(
            ("vhost", "exchange", "routing key", "messages"),
            [
                (row["vhost"], row["exchange"] or "(default)", key_label(row["routing_key"]), row["messages"])
                for row in reach["unmatched"]
            ],
            most=20,
        )
    return Section("fan-out", "Fan-out", made)


def _unmatched(reach: Values) -> str:
    if not reach["unmatched_keys"]:
        return "Each message reaches a queue."
    return (
        f"{many(reach['unmatched_messages'], 'message')} under {many(reach['unmatched_keys'], 'key')}; the busiest are:"
    )


def bindings_section(values: Values) -> Section:
    """Return the bindings that nothing meets, and those that another one makes superfluous."""
    reach = values["reach"]
    if reach is None:
        return Section("bindings", "Bindings", paragraph(NO_BINDINGS))
    dead, redundant = reach["dead_bindings"], values["redundant_bindings"]
    made = "<h3>Dead</h3>"
    made += paragraph(f"{len(dead):,} of {reach['bindings']:,} bindings met no message of this lake")
    if dead:
        made += table(("vhost", "binding"), [(row["vhost"], row["binding"]) for row in dead])
    made += "<h3>Redundant</h3>"
    made += paragraph(
        f"{many(len(redundant), 'binding')} whose messages another binding brings to the same place, by their patterns"
    )
    if redundant:
        rows = [(row["vhost"], row["binding"], row["covered_by"]) for row in redundant]
        made += table(("vhost", "binding", "covered by"), rows)
    return Section("bindings", "Bindings", made)


def taps_section(values: Values) -> Section:
    """Return how far the readers of taps are behind."""
    rows = values["taps"]
    if rows is None:
        return Section("taps", "Slots and cursors", paragraph(NO_BROKER))
    if not rows:
        return Section("taps", "Slots and cursors", paragraph("The broker has no slot files and no cursors."))
    made = table(
        ("tap", "cursor", "slots behind", "messages behind", "bytes behind", "oldest", "slots lost", "slots kept"),
        [
            (
                f"{row['tap']} ({row['vhost']})",
                row["cursor"] or "-",
                row["lag_slots"],
                row["lag_messages"],
                bytes_text(row["lag_bytes"]),
                duration_text(row["lag_s"]) if row["lag_slots"] else "-",
                row["lost_slots"],
                row["slots"],
            )
            for row in rows
        ],
    )
    behind = [
        Bar(
            f"{row['tap']}: {row['cursor'] or 'no cursor'}",
            row["lag_messages"],
            f"{row['tap']}: {many(row['lag_messages'], 'message')} in {many(row['lag_slots'], 'slot')}",
        )
        for row in rows[:20]
    ]
    if any(bar.value for bar in behind):
        made += bars(Frame("messages that cursors have yet to pass", "messages behind"), behind)
    return Section("taps", "Slots and cursors", made)


def consumers_section(values: Values) -> Section:
    """Return how long queues are, and how evenly their consumers have what is not acknowledged."""
    rows = values["queues"]
    if rows is None:
        return Section("consumers", "Queues and consumers", paragraph("No running broker was named: --path."))
    if not rows:
        return Section("consumers", "Queues and consumers", paragraph("No queue has messages or consumers."))
    made = paragraph(
        "Skew: how many times its even share the busiest consumer holds of what is delivered and not acknowledged; "
        "1 is even."
    )
    made += table(
        ("queue", "ready", "unacknowledged", "consumers", "skew", "held by each"),
        [
            (
                f"{row['queue']} ({row['vhost']})",
                row["ready"],
                row["unacked"],
                row["consumers"],
                "-" if row["skew"] is None else f"{row['skew']:.2f}",
                " ".join(map(count_text, row["held"][:10])) or "-",
            )
            for row in rows
        ],
    )
    return Section("consumers", "Queues and consumers", made)
