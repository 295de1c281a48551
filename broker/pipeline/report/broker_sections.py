"""The broker's current state and its sections: fan-out, bindings, taps and their readers, queues and consumers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from broker.figures.axis import bucket_axis, even_axis
from broker.figures.chart import WIDE, column_chart
from broker.figures.markup import Amount, escaped, table
from broker.figures.numerals import many, short_text, size_text, span_text
from broker.slot_files.cursor_lag import LagTable
from broker.slot_files.seal_view import SealView

__all__ = ["bindings_section", "consumer_rows", "consumers_section", "reach_section", "tap_rows", "taps_section"]

Values = Mapping[str, Any]
NO_BINDINGS = "No bindings were named: --path with the data folder of a running broker, or --bindings with a file."
NO_BROKER = "No broker was named: --path or --url."
UNMATCHED_MAX = 20


def tap_rows(view: SealView, now_ms: int) -> list[dict[str, Any]]:
    """Return a row for each cursor of a tap, and one for each tap without a cursor; the largest lag comes first."""
    rows = []
    seals: dict[tuple[str, str], list[Any]] = {}
    for seal in view.seals:
        seals.setdefault((seal.vhost, seal.queue), []).append(seal)
    for cursor in view.cursors:
        seals.setdefault((cursor.vhost, cursor.tap), [])
    for (vhost, tap), held in seals.items():
        places: list[tuple[str | None, int]] = [(one.name, one.seal) for one in view.cursors_of(vhost, tap)]
        lags = LagTable(held)
        for name, at in places or [(None, 0)]:
            rows.append(
                {
                    "vhost": vhost,
                    "tap": tap,
                    "cursor": name,
                    "seal": at,
                    "slots": len(held),
                    "bytes": sum(seal.bytes for seal in held),
                    **lags.behind(at, now_ms),
                    "lost_slots": sum((gap.vhost, gap.queue) == (vhost, tap) and gap.seal > at for gap in view.gaps),
                }
            )
    return sorted(rows, key=lambda row: (-row["lag_messages"], row["vhost"], row["tap"], row["cursor"] or ""))


def consumer_rows(queues: Iterable[Mapping[str, Any]], consumers: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each queue that has messages or consumers; the longest come first.

    Shapes: `skew` is the busiest consumer's share relative to an even share: 1 is even, the number of consumers
        means that one has all; None if no consumer holds a message.
    """
    held: dict[tuple[str, str], list[int]] = {}
    for row in consumers:
        held.setdefault((row["vhost"], row["queue"]), []).append(row["messages_unacknowledged"])
    rows = []
    for row in queues:
        unacked = sorted(held.get((row["vhost"], row["name"]), []), reverse=True)
        if not unacked and not row["messages"]:
            continue
        rows.append(
            {
                "vhost": row["vhost"],
                "queue": row["name"],
                "ready": row["messages_ready"],
                "unacked": row["messages_unacknowledged"],
                "consumers": len(unacked),
                "held": unacked,
                "skew": max(unacked) * len(unacked) / sum(unacked) if any(unacked) else None,
            }
        )
    return sorted(rows, key=lambda row: (-row["ready"] - row["unacked"], row["vhost"], row["queue"]))


def reach_section(values: Values) -> str:
    """Return the section on how many queues messages reach, and which keys reach none."""
    reach = values["reach"]
    if reach is None:
        return _said(NO_BINDINGS)
    drawn = [
        (
            float(row["queues"]),
            float(row["messages"]),
            f"{many(row['queues'], 'queue')}: {many(row['messages'], 'message')} under {many(row['keys'], 'key')}",
        )
        for row in reach["by_queues"]
    ]
    x = bucket_axis("queues that a message reaches", 0, int(max((at for at, _, _ in drawn), default=1)), str)
    y = even_axis("", [height for _, height, _ in drawn], short_text)
    made = _said(
        f"By {values['bindings_of']}, a message reaches {reach['mean']:.2f} queues on average; all of them together "
        f"would be {reach['copies']:,} copies."
    )
    made += column_chart("Messages by number of queues", x, y, drawn, width=WIDE)
    made += "<h3>Keys that no queue gets</h3>"
    if not reach["unmatched_keys"]:
        return made + _said("Each message reaches a queue.")
    messages, keys = many(reach["unmatched_messages"], "message"), many(reach["unmatched_keys"], "key")
    rows = [
        (row["vhost"], row["exchange"] or "(default)", row["routing_key"] or "(empty)", row["messages"])
        for row in reach["unmatched"]
    ]
    head = ("vhost", "exchange", "routing key", "messages")
    return made + _said(f"{messages} under {keys}; the busiest are:") + table(head, rows, most=UNMATCHED_MAX)


def bindings_section(values: Values) -> str:
    """Return the section on the bindings that no message matches, and the redundant ones."""
    reach = values["reach"]
    if reach is None:
        return _said(NO_BINDINGS)
    dead, redundant = reach["dead_bindings"], values["redundant_bindings"]
    made = "<h3>Dead</h3>" + _said(f"{len(dead):,} of {reach['bindings']:,} bindings met no message of this lake")
    if dead:
        made += table(("vhost", "binding"), [(row["vhost"], row["binding"]) for row in dead])
    made += "<h3>Redundant</h3>"
    made += _said(
        f"{many(len(redundant), 'binding')} whose messages another binding brings to the same place, by their patterns"
    )
    if redundant:
        rows = [(row["vhost"], row["binding"], row["covered_by"]) for row in redundant]
        made += table(("vhost", "binding", "covered by"), rows)
    return made


def taps_section(values: Values) -> str:
    """Return the section on the lag of the taps' readers."""
    rows = values["taps"]
    if rows is None:
        return _said(NO_BROKER)
    if not rows:
        return _said("The broker has no slot files and no cursors.")
    most = max(row["lag_messages"] for row in rows) or 1
    return table(
        ("tap", "cursor", "slots behind", "messages behind", "bytes behind", "oldest", "slots lost", "slots kept"),
        [
            (
                f"{row['tap']} ({row['vhost']})",
                row["cursor"] or "-",
                row["lag_slots"],
                Amount(f"{row['lag_messages']:,}", row["lag_messages"] / most),
                Amount(size_text(row["lag_bytes"])),
                Amount(span_text(row["lag_s"]) if row["lag_slots"] else "-"),
                row["lost_slots"],
                row["slots"],
            )
            for row in rows
        ],
    )


def consumers_section(values: Values) -> str:
    """Return the section on the length of queues, and on the distribution of unacked messages."""
    rows = values["queues"]
    if rows is None:
        return _said("No running broker was named: --path.")
    if not rows:
        return _said("No queue has messages or consumers.")
    made = _said(
        "Skew: how many times its even share the busiest consumer holds of what is delivered and not acknowledged; "
        "1 is even."
    )
    return made + table(
        ("queue", "ready", "unacknowledged", "consumers", "skew", "held by each"),
        [
            (
                f"{row['queue']} ({row['vhost']})",
                row["ready"],
                row["unacked"],
                row["consumers"],
                Amount("-" if row["skew"] is None else f"{row['skew']:.2f}"),
                " ".join(map(short_text, row["held"][:10])) or "-",
            )
            for row in rows
        ],
    )


def _said(text: str) -> str:
    return f'<p class="soft">{escaped(text)}</p>\n'
