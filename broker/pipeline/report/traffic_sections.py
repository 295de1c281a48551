"""The sections on what went through: rate, heat, keys, exchanges, sizes, and what is to be expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.pipeline.report.chart import Bar, Frame, Row, Series, bars, columns, escaped, heat, lines
from broker.pipeline.report.elements import Section, key_label, paragraph, table
from broker.pipeline.report.scale import BYTES, bytes_text, count_text, duration_text, many, moment_ticks
from broker.pipeline.report.time_slices import DAY_MS, instant, slice_name

__all__ = [
    "exchanges_section", "forecast_section", "heat_section", "keys_section", "rate_section", "sizes_section",
]  # fmt: skip

TIME: Final = "time (UTC)"

Values = Mapping[str, Any]


def rate_section(traffic: Values) -> Section:
    """Return messages and bytes over time."""
    size_ms, name = traffic["slice_ms"], slice_name(traffic["slice_ms"])
    begins_ms = traffic["rate"]["begins_ms"]
    made = ""
    for what, text, base in (("messages", count_text, 1000), ("bytes", bytes_text, BYTES)):
        values = traffic["rate"][what]
        last_ms = begins_ms + size_ms * max(1, len(values) - 1)
        points = [
            (begins_ms + size_ms * at, value, f"{_moment(begins_ms + size_ms * at)}: {many(value, what[:-1])}")
            for at, value in enumerate(values)
        ]
        frame = Frame(f"{what} per {name} over time", TIME, f"{what} per {name}", text, base)
        made += f"<h3>{what.capitalize()} per {escaped(name)}</h3>"
        made += lines(frame, [Series(what, points)], (begins_ms, last_ms), moment_ticks(begins_ms, last_ms))
    return Section("rate", "Rate", made)


def heat_section(traffic: Values) -> Section:
    """Return one chart of heat for each level of the keys."""
    size_ms, name = traffic["slice_ms"], slice_name(traffic["slice_ms"])
    begins_ms = traffic["rate"]["begins_ms"]
    several = len(traffic["exchanges"]) > 1
    ticks = [((at - begins_ms) / size_ms, text) for at, text in moment_ticks(begins_ms, traffic["last_ms"])]
    made = paragraph(
        f"Which beginnings of the routing key were busy when. A square is one slice ({name}); the darker, the more "
        "messages, on a scale of the square root within each level. The number at the end is the sum."
    )
    for level in traffic["heat"]:
        words = "first word" if level["level"] == 1 else f"first {level['level']} words"
        rows = [
            Row(
                f"{key_label(row['exchange'])}: {row['beginning']}" if several else row["beginning"],
                row["slices"],
                count_text(row["messages"]),
            )
            for row in level["rows"]
        ]
        shown = sum(row["messages"] for row in level["rows"])
        made += f"<h3>Level {level['level']}: the {words} of the key</h3>"
        if level["beginnings"] > len(rows):
            share = shown / level["messages"]
            made += paragraph(f"the busiest {len(rows)} of {level['beginnings']:,}, with {share:.0%} of the messages")

        def title(row: Row, at: int) -> str:
            return f"{row.label}, {_moment(begins_ms + size_ms * at)}: {many(int(row.values[at]), 'message')}"

        made += heat(Frame(f"heat of level {level['level']}", TIME), rows, ticks, title)
    return Section("heat", "Topic heat", made)


def keys_section(traffic: Values) -> Section:
    """Return the busiest keys."""
    total = traffic["messages"]
    several = len(traffic["exchanges"]) > 1
    rows = [
        Bar(
            f"{key_label(row['exchange'])}: {key_label(row['routing_key'])}"
            if several
            else key_label(row["routing_key"]),
            row["messages"],
            f"{key_label(row['exchange'])}: {key_label(row['routing_key'])}: {many(row['messages'], 'message')}, "
            f"{row['messages'] / total:.2%} of all, {bytes_text(row['bytes'])}",
            f"{count_text(row['messages'])}  {row['messages'] / total:.1%}",
        )
        for row in traffic["top_keys"]
    ]
    share = sum(row["messages"] for row in traffic["top_keys"]) / total
    made = paragraph(f"the busiest {len(rows)} of {many(traffic['keys'], 'key')} have {share:.0%} of the messages")
    return Section("keys", "Top keys", made + bars(Frame("messages by routing key", "messages"), rows))


def exchanges_section(traffic: Values) -> Section:
    """Return the exchanges that messages were published to."""
    rows = [
        (row["vhost"], row["exchange"] or "(default)", row["messages"], row["keys"], bytes_text(row["bytes"]))
        for row in traffic["exchanges"]
    ]
    return Section("exchanges", "Exchanges", table(("vhost", "exchange", "messages", "keys", "bodies"), rows))


def sizes_section(traffic: Values) -> Section:
    """Return how large bodies are."""
    sizes = traffic["sizes"]
    facts = (
        f"mean {bytes_text(sizes['mean'])}, median {bytes_text(sizes['p50'])}, 90 % up to {bytes_text(sizes['p90'])}, "
    )
    facts += f"99 % up to {bytes_text(sizes['p99'])}, the largest {bytes_text(sizes['max'])}"
    rows = [
        Bar(
            bytes_text(row["upto"]),
            row["messages"],
            f"{_size_range(row['upto'])}: {many(row['messages'], 'message')} "
            f"({row['messages'] / traffic['messages']:.1%})",
        )
        for row in sizes["classes"]
    ]
    chart = columns(Frame("messages by size of the body", "size of the body up to, by powers of two", "messages"), rows)
    return Section("sizes", "Sizes", paragraph(facts) + chart)


def _size_range(upto: int) -> str:
    if upto <= 1:
        return f"{upto} B"
    return f"{upto // 2 + 1:,} to {upto:,} B"


def forecast_section(values: Values) -> Section:
    """Return what is to be expected."""
    found = values["forecast"]
    if found is None:
        return Section(
            "forecast", "Forecast", paragraph("There is no forecast: it needs messages over at least an hour.")
        )
    growth = found["growth_a_day"]
    rate = f"{count_text(found['messages_a_day'])} messages a day"
    if growth:
        rate += f", {'+' if growth > 0 else '-'}{count_text(abs(growth))} each day, by the trend of whole days"
    full = found["full_in_days"]
    facts = [
        rate,
        f"{bytes_text(found['lake_bytes_a_message'])} a message in the lake, {bytes_text(found['lake_bytes'])} in all",
        f"{bytes_text(found['free_bytes'])} free on its disk: "
        + ("never full at this rate" if full is None else f"full in {duration_text(full * DAY_MS / 1000)}"),
    ]
    ahead = [(0, found["lake_bytes"]), *((row["days"], row["lake_bytes"]) for row in found["ahead"])]
    points = [(float(days), size, f"in {days} days: {bytes_text(size)}") for days, size in ahead]
    limit = found["lake_bytes"] + found["free_bytes"]
    series = [Series("lake", points)]
    if limit < 2 * ahead[-1][1]:
        series.append(Series("disk", [(days, limit, f"the disk: {bytes_text(limit)}") for days, _, _ in points], "two"))
    frame = Frame("size of the lake in the days ahead", "days from now", "size of the lake", bytes_text, BYTES)
    ticks = [(float(days), f"{days} d") for days, _ in ahead]
    return Section("forecast", "Forecast", _list(facts) + lines(frame, series, (0.0, float(ahead[-1][0])), ticks))


def _list(facts: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escaped(fact)}</li>" for fact in facts) + "</ul>"


def _moment(at_ms: int) -> str:
    return instant(at_ms)[:19].replace("T", " ")
