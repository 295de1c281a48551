"""The sections of a report on a broker: fan-out, bindings, taps and their readers, queues and consumers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from broker.figures.axis import bucket_axis, even_axis
from broker.figures.chart import WIDE, column_chart
from broker.figures.markup import Amount, escaped, table
from broker.figures.numerals import many, short_text, size_text, span_text
from broker.pipeline.routes.route_count import busiest_keys
from broker.pipeline.routes.topology import RoutedBinding, Topology
from broker.routing.cover_set import CoverSet
from broker.routing.pattern import AMQP, DIALECTS, BindingKeyError, Pattern
from broker.slot_files.seal_view import LagTable, SealView

Values = Mapping[str, Any]
NO_BINDINGS = "No bindings were named: --path with the data folder of a running broker, or --bindings with a file."
NO_BROKER = "No broker was named: --path or --url."
UNROUTED_SHOWN = 20
UNROUTED_MAX = 50  # the number of unmatched keys that the values list
Group = list[tuple[RoutedBinding, Pattern]]


def reach(rows: Sequence[Values], topology: Topology) -> dict[str, Any]:
    """Return the reach of messages: fan-out, keys that reach no queue, and bindings that match no message.

    Shapes: `rows` are those of `counted_routes`; `unmatched` lists the most frequent keys that reach no queue.
    """
    fan_out = sorted((row["number"], row["messages"], row["keys"]) for row in rows if row["kind"] == "fan-out")
    messages = sum(count for _, count, _ in fan_out)
    copies = sum(queues * count for queues, count, _ in fan_out)
    matched = {row["number"] for row in rows if row["kind"] == "binding"}
    return {
        "bindings": len(topology.bindings),
        "copies": copies,
        "mean": copies / messages if messages else 0.0,
        "by_queues": [{"queues": queues, "messages": count, "keys": keys} for queues, count, keys in fan_out],
        "unmatched_messages": sum(count for queues, count, _ in fan_out if queues == 0),
        "unmatched_keys": sum(keys for queues, _, keys in fan_out if queues == 0),
        "unmatched": busiest_keys((row for row in rows if row["kind"] == "nobody"), "routing_key", UNROUTED_MAX),
        "dead_bindings": [
            {"vhost": binding.vhost, "binding": str(binding)}
            for number, binding in enumerate(topology.bindings)
            if number not in matched
        ],
    }


def redundant_bindings(topology: Topology) -> list[tuple[RoutedBinding, RoutedBinding]]:
    """Return each redundant binding with a binding that covers it and is not redundant itself.

    Only topic and fanout exchanges are examined. A fanout exchange ignores keys, so all its bindings to one destination
    are equivalent. Cost: for each pattern, a search among the patterns with the same exchange and destination.
    """
    types = {(entry.vhost, entry.name): entry for entry in topology.exchanges}
    groups: dict[tuple[str, str, str, bool], Group] = {}
    for binding in topology.bindings:
        exchange = types.get((binding.vhost, binding.exchange))
        if exchange is None or exchange.type not in ("topic", "fanout"):
            continue
        pattern = _pattern(binding, str(exchange.arguments.get("x-topic-dialect", AMQP.name)))
        if exchange.type == "fanout":
            pattern = Pattern("#", ("#",), literal=False)
        if pattern is not None:
            place = (binding.vhost, binding.exchange, binding.destination, binding.to_exchange)
            groups.setdefault(place, []).append((binding, pattern))
    return [pair for group in groups.values() if len(group) > 1 for pair in _redundant(group)]


def _pattern(binding: RoutedBinding, dialect: str) -> Pattern | None:
    try:
        return DIALECTS[dialect].parse(binding.key)
    except (BindingKeyError, KeyError):
        return None  # a broker refuses such a binding


def _redundant(group: Group) -> Iterator[tuple[RoutedBinding, RoutedBinding]]:
    """Yield each redundant binding with one that covers it; of equivalent bindings, the first is not redundant."""
    covers = CoverSet()
    first: dict[str, RoutedBinding] = {}
    for binding, pattern in group:
        covers.add(pattern)
        first.setdefault(pattern.text, binding)
    for binding, pattern in group:
        root = covers.covering(pattern)
        if root is not None and first[root.text] is not binding:
            yield binding, first[root.text]


def tap_rows(view: SealView, now_ms: int) -> list[dict[str, Any]]:
    """Return a row for each cursor, and for each tap without cursors, the largest lag first."""
    rows = []
    seals: dict[tuple[str, str], list[Any]] = {}
    for seal in view.seals:
        seals.setdefault((seal.vhost, seal.queue), []).append(seal)
    for cursor in view.cursors:
        seals.setdefault((cursor.vhost, cursor.tap), [])
    for (vhost, tap), sealed in seals.items():
        places: list[tuple[str | None, int]] = [(one.name, one.seal) for one in view.cursors_of(vhost, tap)]
        lags = LagTable(sealed)
        for name, at in places or [(None, 0)]:
            rows.append(
                {
                    "vhost": vhost,
                    "tap": tap,
                    "cursor": name,
                    "seal": at,
                    "slots": len(sealed),
                    "bytes": sum(seal.bytes for seal in sealed),
                    **lags.behind(at, now_ms),
                    "lost_slots": sum((gap.vhost, gap.queue) == (vhost, tap) and gap.seal > at for gap in view.gaps),
                }
            )
    return sorted(rows, key=lambda row: (-row["lag_messages"], row["vhost"], row["tap"], row["cursor"] or ""))


def consumer_rows(queues: Iterable[Mapping[str, Any]], consumers: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each queue with messages or consumers, the longest queue first.

    Shapes: `skew` is the busiest consumer's unacknowledged messages relative to an even share, so 1 is even; it is None
        without unacknowledged messages.
    """
    unacked_by: dict[tuple[str, str], list[int]] = {}
    for row in consumers:
        unacked_by.setdefault((row["vhost"], row["queue"]), []).append(row["messages_unacknowledged"])
    rows = []
    for row in queues:
        unacked = sorted(unacked_by.get((row["vhost"], row["name"]), []), reverse=True)
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
    found = values["reach"]
    if found is None:
        return _paragraph(NO_BINDINGS)
    drawn = [
        (
            float(row["queues"]),
            float(row["messages"]),
            f"{many(row['queues'], 'queue')}: {many(row['messages'], 'message')} under {many(row['keys'], 'key')}",
        )
        for row in found["by_queues"]
    ]
    x = bucket_axis("queues that a message reaches", 0, int(max((at for at, _, _ in drawn), default=1)), str)
    y = even_axis("", [height for _, height, _ in drawn], short_text)
    made = _paragraph(
        f"By {values['bindings_of']}, a message reaches {found['mean']:.2f} queues on average; all of them together "
        f"would be {found['copies']:,} copies."
    )
    made += column_chart("Messages by number of queues", x, y, drawn, width=WIDE).figure()
    made += "<h3>Keys that no queue receives</h3>"
    if not found["unmatched_keys"]:
        return made + _paragraph("Each message reaches a queue.")
    messages, keys = many(found["unmatched_messages"], "message"), many(found["unmatched_keys"], "key")
    rows = [
        (row["vhost"], row["exchange"] or "(default)", row["routing_key"] or "(empty)", row["messages"])
        for row in found["unmatched"]
    ]
    head = ("vhost", "exchange", "routing key", "messages")
    return made + _paragraph(f"{messages} under {keys}; the busiest are:") + table(head, rows, rows_max=UNROUTED_SHOWN)


def bindings_section(values: Values) -> str:
    """Return the section on dead and redundant bindings."""
    found = values["reach"]
    if found is None:
        return _paragraph(NO_BINDINGS)
    dead, redundant = found["dead_bindings"], values["redundant_bindings"]
    made = "<h3>Dead</h3>"
    made += _paragraph(f"{len(dead):,} of {found['bindings']:,} bindings matched no message of this lake")
    if dead:
        made += table(("vhost", "binding"), [(row["vhost"], row["binding"]) for row in dead])
    made += "<h3>Redundant</h3>"
    made += _paragraph(
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
        return _paragraph(NO_BROKER)
    if not rows:
        return _paragraph("The broker has no slot files and no cursors.")
    largest = max(row["lag_messages"] for row in rows) or 1
    return table(
        ("tap", "cursor", "slots behind", "messages behind", "bytes behind", "oldest", "slots lost", "slots kept"),
        [
            (
                f"{row['tap']} ({row['vhost']})",
                row["cursor"] or "-",
                row["lag_slots"],
                Amount(f"{row['lag_messages']:,}", row["lag_messages"] / largest),
                Amount(size_text(row["lag_bytes"])),
                Amount(span_text(row["lag_s"]) if row["lag_slots"] else "-"),
                row["lost_slots"],
                row["slots"],
            )
            for row in rows
        ],
    )


def consumers_section(values: Values) -> str:
    """Return the section on the lengths of queues and the distribution of unacknowledged messages."""
    rows = values["queues"]
    if rows is None:
        return _paragraph("No running broker was named: --path.")
    if not rows:
        return _paragraph("No queue has messages or consumers.")
    made = _paragraph(
        "Skew: the unacknowledged messages of the busiest consumer, relative to an even share; 1 is even."
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


def _paragraph(text: str) -> str:
    return f'<p class="soft">{escaped(text)}</p>\n'


SECTIONS = {
    "Fan-out": reach_section,
    "Bindings": bindings_section,
    "Slots and cursors": taps_section,
    "Queues and consumers": consumers_section,
}
