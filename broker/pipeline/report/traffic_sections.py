"""The sections of a report on traffic: rate, heat, keys, exchanges, sizes and the forecast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.figures.axis import bucket_axis, even_axis, span_axis
from broker.figures.chart import WIDE, HeatRow, Line, column_chart, heat_chart, line_chart
from broker.figures.markup import Amount, escaped, table
from broker.figures.numerals import KIB, many, short_text, size_text, span_text
from broker.pipeline.report.traffic import DAY_MS, instant, moment_axis, slice_name

EMPTY: Final = "(empty)"

Values = Mapping[str, Any]


def rate_section(traffic: Values) -> str:
    """Return the section on messages and bytes over time."""
    size_ms, name = traffic["slice_ms"], slice_name(traffic["slice_ms"])
    begins_ms = traffic["rate"]["begins_ms"]
    made = ""
    for what, text, base in (("messages", short_text, 1000), ("bytes", size_text, KIB)):
        values = traffic["rate"][what]
        points = [
            (begins_ms + size_ms * at, value, f"{many(value, what[:-1])} from {_moment(begins_ms + size_ms * at)}")
            for at, value in enumerate(values)
        ]
        x = moment_axis(begins_ms, begins_ms + size_ms * max(1, len(values) - 1))
        y = even_axis("", values, text, base=base)
        made += line_chart(f"{what.capitalize()} per {name}", x, y, [Line(what, points, 0)], width=WIDE).figure()
    return made


def heat_section(traffic: Values) -> str:
    """Return the section with a heat chart for each level."""
    size_ms, name = traffic["slice_ms"], slice_name(traffic["slice_ms"])
    begins_ms = traffic["rate"]["begins_ms"]
    several = len(traffic["exchanges"]) > 1
    made = (
        '<p class="soft">Which beginnings of the routing key were busy when. A square is one slice '
        f"({escaped(name)}); the darker, the more messages, on a scale of the square root within each level. The "
        "number at the end is the sum.</p>\n"
    )

    def title(row: HeatRow, at: int) -> str:
        return f"{row.name}, {_moment(begins_ms + size_ms * at)}: {many(int(row.values[at]), 'message')}"

    for level in traffic["heat"]:
        rows = [
            HeatRow(
                f"{row['exchange'] or EMPTY}: {row['beginning']}" if several else row["beginning"],
                row["slices"],
                short_text(row["messages"]),
            )
            for row in level["rows"]
        ]
        words = "first word" if level["level"] == 1 else f"first {level['level']} words"
        what = f"Level {level['level']}: the {words} of the key"
        if level["beginnings"] > len(rows):
            share = sum(row["messages"] for row in level["rows"]) / level["messages"]
            what += f"; the busiest {len(rows)} of {level['beginnings']:,}, with {share:.0%} of the messages"
        slices = max((len(row.values) for row in rows), default=1)
        made += heat_chart(what, moment_axis(begins_ms, begins_ms + size_ms * slices), rows, title).figure()
    return made


def keys_section(traffic: Values) -> str:
    """Return the section on the busiest keys."""
    total, largest = traffic["messages"], max((row["messages"] for row in traffic["top_keys"]), default=1)
    rows = [
        (
            row["routing_key"] or EMPTY,
            row["exchange"] or "(default)",
            Amount(f"{row['messages']:,}", row["messages"] / largest),
            Amount(f"{row['messages'] / total:.1%}"),
            Amount(size_text(row["bytes"])),
        )
        for row in traffic["top_keys"]
    ]
    share = sum(row["messages"] for row in traffic["top_keys"]) / total
    busiest = f"the busiest {len(rows)} of {many(traffic['keys'], 'key')} have {share:.0%} of the messages"
    return f'<p class="soft">{busiest}</p>\n' + table(("routing key", "exchange", "messages", "share", "bodies"), rows)


def exchanges_section(traffic: Values) -> str:
    """Return the section on the exchanges that messages were published to."""
    rows = [
        (row["vhost"], row["exchange"] or "(default)", row["messages"], row["keys"], Amount(size_text(row["bytes"])))
        for row in traffic["exchanges"]
    ]
    return table(("vhost", "exchange", "messages", "keys", "bodies"), rows)


def sizes_section(traffic: Values) -> str:
    """Return the section on the sizes of bodies."""
    sizes = traffic["sizes"]
    marks = (("mean", "mean"), ("median", "p50"), ("90 % up to", "p90"), ("99 % up to", "p99"), ("the largest", "max"))
    facts = ", ".join(f"{name} {size_text(sizes[key])}" for name, key in marks)
    classes = {row["upto"].bit_length(): row["messages"] for row in sizes["classes"]}
    drawn = [
        (
            float(bucket),
            float(count),
            f"{_size_range(bucket)}: {many(count, 'message')} ({count / traffic['messages']:.1%})",
        )
        for bucket, count in classes.items()
    ]
    x = bucket_axis("size of the body up to", min(classes), max(classes), lambda bucket: size_text(_upto(bucket)))
    y = even_axis("", classes.values(), short_text)
    chart = column_chart("Messages by size of the body", x, y, drawn, width=WIDE)
    return f'<p class="soft">{facts}</p>\n{chart.figure()}'


def _upto(bucket: int) -> int:
    """Return the largest size in a class. Shapes: class 0 contains empty bodies; others end at powers of two."""
    return 1 << bucket >> 1


def _size_range(bucket: int) -> str:
    upto = _upto(bucket)
    return f"{upto} B" if upto <= 1 else f"{upto // 2 + 1:,} to {upto:,} B"


def forecast_section(values: Values) -> str:
    """Return the section with the forecast."""
    found = values["forecast"]
    if found is None:
        return '<p class="soft">There is no forecast: it needs messages over at least an hour.</p>\n'
    growth = found["growth_a_day"]
    rate = f"{short_text(found['messages_a_day'])} messages a day"
    if growth:
        rate += f", {'+' if growth > 0 else '-'}{short_text(abs(growth))} each day, by the trend of whole days"
    full = found["full_in_days"]
    facts = [
        rate,
        f"{size_text(found['lake_bytes_a_message'])} a message in the lake, {size_text(found['lake_bytes'])} in all",
    ]
    free = found["free_bytes"]
    if free is not None:
        when = "never full at this rate" if full is None else f"full in {span_text(full * DAY_MS / 1000)}"
        facts.append(f"{size_text(free)} free on its disk: {when}")
    ahead = [(0, found["lake_bytes"]), *((row["days"], row["lake_bytes"]) for row in found["ahead"])]
    drawn = [Line("lake", [(float(days), size, f"in {days} days: {size_text(size)}") for days, size in ahead], 0)]
    if free is not None and (limit := found["lake_bytes"] + free) < 2 * ahead[-1][1]:
        drawn.append(Line("its disk", [(float(days), limit, size_text(limit)) for days, _ in ahead], 1))
    x = span_axis("days from now", 0.0, float(ahead[-1][0]), lambda days: f"{days:g}")
    y = even_axis("", [size for line in drawn for _, size, _ in line.points], size_text, base=KIB)
    shown = "".join(f"<li>{escaped(fact)}</li>" for fact in facts)
    return f"<ul>{shown}</ul>" + line_chart("Size of the lake in the days ahead", x, y, drawn, width=WIDE).figure()


def _moment(at_ms: int) -> str:
    return instant(at_ms)[:19].replace("T", " ")


SECTIONS = {
    "Rate": rate_section,
    "Topic heat": heat_section,
    "Top keys": keys_section,
    "Exchanges": exchanges_section,
    "Sizes": sizes_section,
}
