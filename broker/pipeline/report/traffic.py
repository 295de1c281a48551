"""The traffic in a lake, counted by Spark over time, by key, by prefix of the key and by size, and its forecast."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from statistics import linear_regression
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from broker.figures.axis import Axis

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
SLICES_MAX: Final = 7 * 24 + 1  # the hours of a week that does not begin on the hour
SLICE_SIZES_MS: Final = {
    "second": SECOND_MS,
    "5 seconds": 5 * SECOND_MS,
    "15 seconds": 15 * SECOND_MS,
    "minute": MINUTE_MS,
    "5 minutes": 5 * MINUTE_MS,
    "15 minutes": 15 * MINUTE_MS,
    "hour": HOUR_MS,
    "6 hours": 6 * HOUR_MS,
    "day": DAY_MS,
    "week": 7 * DAY_MS,
}

TICK_SIZES_MS: Final = tuple(
    count * unit_ms
    for unit_ms, counts in (
        (SECOND_MS, (1, 2, 5, 10, 15, 30)),
        (MINUTE_MS, (1, 2, 5, 10, 15, 30)),
        (HOUR_MS, (1, 2, 3, 6, 12)),
        (DAY_MS, (1, 2, 7, 14, 28, 91, 364)),
    )
    for count in counts
)
LEVELS_MAX: Final = 4  # level n is the first n words of a key
PREFIXES_MAX: Final = 12  # the prefixes shown of each level
TOP_KEYS: Final = 20
PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
AHEAD_DAYS: Final = (7, 14, 30, 60, 90)
TREND_DAYS: Final = 14  # a trend needs this many whole days, so that weekends do not dominate it
HISTORY_MIN_MS: Final = HOUR_MS


def slice_ms(first_ms: int, last_ms: int) -> int:
    """Return the smallest slice size that needs at most SLICES_MAX slices; several weeks for very long spans."""
    for size_ms in SLICE_SIZES_MS.values():
        if last_ms // size_ms - first_ms // size_ms < SLICES_MAX:
            return size_ms
    week_ms = SLICE_SIZES_MS["week"]
    return week_ms * -(-((last_ms - first_ms) // week_ms + 2) // SLICES_MAX)


def slice_name(size_ms: int) -> str:
    """Return the name of a slice size."""
    for name, known_ms in SLICE_SIZES_MS.items():
        if known_ms == size_ms:
            return name
    return f"{size_ms // SLICE_SIZES_MS['week']} weeks"


def filled(counts: Mapping[int, int], first_ms: int, last_ms: int, size_ms: int) -> list[int]:
    """Return the counts of all slices, including empty ones. Shapes: `counts` maps slice starts to counts."""
    return [counts.get(at_ms, 0) for at_ms in range(first_ms - first_ms % size_ms, last_ms + 1, size_ms)]


def instant(at_ms: int) -> str:
    """Return a time as ISO 8601, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment_axis(first_ms: int, last_ms: int, count: int = 8) -> Axis:
    """Return the time axis of a span, with ticks at round times and short labels."""
    span_ms = max(1, last_ms - first_ms)
    size_ms = next((size for size in TICK_SIZES_MS if span_ms / size <= count), TICK_SIZES_MS[-1])
    form = "%d %b" if size_ms >= DAY_MS else "%H:%M" if size_ms >= MINUTE_MS else "%H:%M:%S"
    ticks: list[tuple[float, str]] = []
    before = None
    for at_ms in range(-(-first_ms // size_ms) * size_ms, last_ms + 1, size_ms):
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
        next_day = before is not None and moment.date() != before
        before = moment.date()
        ticks.append((at_ms, moment.strftime("%d %b" if next_day else form)))
    return Axis("time (UTC)", first_ms, first_ms + span_ms, tuple(ticks), float)


def traffic(frame: DataFrame) -> dict[str, Any] | None:
    """Return the figures of a frame of messages, or None if it is empty.

    Shapes: the frame has the columns vhost, exchange, routing_key, ts and body.
    Cost: three passes over the messages; most figures are computed from groups by key and time slice.
    """
    size = sf.coalesce(sf.octet_length("body"), sf.lit(0)).cast("bigint")
    sized = frame.select("vhost", "exchange", "routing_key", sf.unix_millis("ts").alias("at"), size.alias("size"))
    span = sized.agg(sf.count("*").alias("n"), sf.min("at").alias("first"), sf.max("at").alias("last")).collect()[0]
    if not span["n"]:
        return None
    first_ms, last_ms = span["first"], span["last"]
    size_ms = slice_ms(first_ms, last_ms)
    grouped = (
        sized.withColumns({"slice": _floor(sf.col("at"), size_ms), "day": _floor(sf.col("at"), DAY_MS)})
        .groupBy("vhost", "exchange", "routing_key", "day", "slice")
        .agg(sf.count("*").alias("messages"), sf.sum("size").alias("bytes"))
        .persist()
    )
    sizes = sized.groupBy("size").agg(sf.count("*").alias("messages")).persist()
    try:
        slices, days = _over_time(grouped)
        exchanges = _rows(_sums(grouped, "vhost", "exchange", keys=sf.count_distinct("routing_key")))
        return {
            "messages": span["n"],
            "bytes": sum(row["bytes"] for row in exchanges),
            "keys": sum(row["keys"] for row in exchanges),
            "first": instant(first_ms),
            "last": instant(last_ms),
            "first_ms": first_ms,
            "last_ms": last_ms,
            "slice_ms": size_ms,
            "rate": {
                "begins_ms": first_ms - first_ms % size_ms,
                "messages": filled({at: count for at, (count, _) in slices.items()}, first_ms, last_ms, size_ms),
                "bytes": filled({at: size for at, (_, size) in slices.items()}, first_ms, last_ms, size_ms),
            },
            "by_day": {str(day): count for day, count in sorted(days.items())},
            "exchanges": exchanges,
            "top_keys": _rows(_sums(grouped, "vhost", "exchange", "routing_key").limit(TOP_KEYS)),
            "heat": _heat(grouped, (first_ms, last_ms, size_ms)),
            "sizes": _sizes(sizes),
        }
    finally:
        grouped.unpersist()
        sizes.unpersist()


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def _floor(column: Column, size_ms: int) -> Column:
    return column - sf.pmod(column, sf.lit(size_ms))


def _over_time(grouped: DataFrame) -> tuple[dict[int, tuple[int, int]], dict[int, int]]:
    """Return (messages, bytes) by slice, and the number of messages by day."""
    slices: dict[int, tuple[int, int]] = {}
    days: dict[int, int] = {}
    for row in _sums(grouped, "day", "slice").collect():
        messages, size = slices.get(row["slice"], (0, 0))
        slices[row["slice"]] = (messages + row["messages"], size + row["bytes"])
        days[row["day"]] = days.get(row["day"], 0) + row["messages"]
    return slices, days


def _sums(grouped: DataFrame, *names: str, **more: Column) -> DataFrame:
    """Return messages and bytes grouped by columns, the group with the most messages first."""
    sums = [sf.sum(name).alias(name) for name in ("messages", "bytes")]
    counted = grouped.groupBy(*names).agg(*sums, *(column.alias(name) for name, column in more.items()))
    return counted.orderBy(sf.desc("messages"), *names)


def _heat(grouped: DataFrame, span: tuple[int, int, int]) -> list[dict[str, Any]]:
    """Return the busiest prefixes of each level, with their messages by slice. A level omits keys with fewer words."""
    words = sf.when(sf.col("routing_key") != "", sf.split("routing_key", r"\.", -1)).otherwise(sf.array())
    beginnings = sf.transform(
        sf.sequence(sf.lit(1), sf.least(sf.lit(LEVELS_MAX), sf.size("words"))),
        lambda level: sf.struct(
            level.alias("level"), sf.concat_ws(".", sf.slice("words", 1, level)).alias("beginning")
        ),
    )
    beginning = ["level", "vhost", "exchange", "beginning"]
    by_slice = (
        grouped.select("vhost", "exchange", "slice", "messages", words.alias("words"))
        .where(sf.size("words") > 0)
        .select("vhost", "exchange", "slice", "messages", sf.explode(beginnings).alias("of"))
        .groupBy("of.level", "vhost", "exchange", "of.beginning", "slice")
        .agg(sf.sum("messages").alias("messages"))
    )
    level = Window.partitionBy("level")
    rows = (
        by_slice.groupBy(*beginning)
        .agg(
            sf.sum("messages").alias("total"),
            sf.map_from_entries(sf.collect_list(sf.struct("slice", "messages"))).alias("slices"),
        )
        .withColumns(
            {
                "rank": sf.row_number().over(level.orderBy(sf.desc("total"), "vhost", "exchange", "beginning")),
                "beginnings": sf.count("*").over(level),
                "of_level": sf.sum("total").over(level),
            }
        )
        .where(sf.col("rank") <= PREFIXES_MAX)
        .orderBy("level", "rank")
        .collect()
    )
    made: dict[int, dict[str, Any]] = {}
    for row in rows:
        fresh = {"level": row["level"], "beginnings": row["beginnings"], "messages": row["of_level"], "rows": []}
        made.setdefault(row["level"], fresh)["rows"].append(
            {
                "vhost": row["vhost"],
                "exchange": row["exchange"],
                "beginning": row["beginning"],
                "messages": row["total"],
                "slices": filled(row["slices"], *span),
            }
        )
    return list(made.values())


def _sizes(sizes: DataFrame) -> dict[str, Any]:
    """Return figures of the body sizes. Shapes: a class ends at a power of two, inclusive; class 0 has empty bodies."""
    digits = sf.length(sf.bin(sf.col("size") - 1))  # exact, unlike a logarithm
    upto = sf.when(sf.col("size") <= 1, sf.col("size")).otherwise(sf.pow(sf.lit(2.0), digits).cast("bigint"))
    classes = sizes.groupBy(upto.alias("upto")).agg(sf.sum("messages").alias("messages")).orderBy("upto").collect()
    shares = sf.array(*(sf.lit(share) for share in PERCENTILES.values()))
    facts = sizes.agg(
        sf.percentile("size", shares, sf.col("messages")).alias("percentiles"),
        sf.max("size").alias("max"),
        sf.sum(sf.col("size") * sf.col("messages")).alias("bytes"),
        sf.sum("messages").alias("messages"),
    ).collect()[0]
    return {
        "mean": facts["bytes"] / facts["messages"],
        **dict(zip(PERCENTILES, facts["percentiles"], strict=True)),
        "max": facts["max"],
        "classes": [{"upto": row["upto"], "messages": row["messages"]} for row in classes],
    }


def forecast(
    by_day: Mapping[int, int], first_ms: int, last_ms: int, *, lake_rows: int, lake_bytes: int, free_bytes: int | None
) -> dict[str, Any] | None:
    """Return the forecast, or None without messages or with less than an hour of history.

    Shapes: `by_day` maps the start of a day in ms to its number of messages; `free_bytes` is None in a bucket;
        `growth_a_day` is the daily change of the number of messages per day; `ahead` lists future sizes of the lake.
    """
    if last_ms - first_ms < HISTORY_MIN_MS or not lake_rows:
        return None
    whole = range(first_ms - first_ms % DAY_MS + DAY_MS, last_ms - last_ms % DAY_MS, DAY_MS)
    if len(whole) >= TREND_DAYS:
        growth, first = linear_regression(range(len(whole)), [by_day.get(day, 0) for day in whole])
        rate = first + growth * (len(whole) - 1)  # the trend on the last day
    else:
        rate, growth = sum(by_day.values()) * DAY_MS / (last_ms - first_ms), 0.0  # assume a constant rate
    rate = max(0.0, rate)
    bytes_a_message = lake_bytes / lake_rows

    def added(days: float) -> float:
        """Return the bytes that are added in `days` days; a falling rate stops at zero."""
        if growth < 0:
            days = min(days, rate / -growth)
        return bytes_a_message * (rate * days + growth * days * days / 2)

    return {
        "messages_a_day": rate,
        "growth_a_day": growth,
        "lake_bytes_a_message": bytes_a_message,
        "lake_bytes": lake_bytes,
        "free_bytes": free_bytes,
        "ahead": [{"days": days, "lake_bytes": lake_bytes + added(days)} for days in AHEAD_DAYS],
        "full_in_days": _full_in_days(bytes_a_message * rate, bytes_a_message * growth, free_bytes),
    }


def _full_in_days(rate: float, growth: float, free: float | None) -> float | None:
    """Return the days t until rate * t + growth * t^2 / 2 reaches the free space, or None if never or unknown."""
    if free is None:
        return None
    if growth == 0:
        return free / rate if rate > 0 else None
    root = rate * rate + 2 * growth * free
    if root < 0:
        return None
    days: float = (root**0.5 - rate) / growth
    return days if days >= 0 else None
