"""Collects the statistics of a frame of messages: what a workload is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from broker.amqp.content_header import decode_properties
from broker.amqp.errors import BrokerError
from broker.pipeline.sink.property_columns import FRONT
from broker.pipeline.synth.key_tree import build_tree
from broker.pipeline.synth.workload import Header, HeaderKind, Properties, Rate, Source, Workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["collect_workload", "rate_of", "vocabulary_of"]

KEYS_MAX: Final = 200_000
SAMPLE_ROWS: Final = 20_000
SIZE_STEPS: Final = 100
VALUES_MAX: Final = 64
COMBINATIONS_MAX: Final = 64
DAY_MINUTES: Final = 1440
PROPERTIES: Final = {  # of pamqp -> of a row; what is another in each message is left out
    "content_type": "content_type",
    "content_encoding": "content_encoding",
    "delivery_mode": "delivery_mode",
    "priority": "priority",
    "message_type": "type",
    "app_id": "app_id",
}
NOT_SAMPLED: Final = frozenset({"CC", "BCC", "x-delay", "x-producer", "x-seq"})  # the broker would act on them
KINDS: Final[dict[type, HeaderKind]] = {bool: "boolean", int: "number", float: "fraction", str: "text"}


@dataclass(slots=True)
class Vocabulary:
    """The properties and headers of a sample."""

    properties: tuple[Properties, ...] = ()
    headers: tuple[Header, ...] = field(default=())


def collect_workload(frame: DataFrame, bindings: Sequence[dict[str, Any]] = ()) -> Workload | None:
    """Return the statistics of the messages, None where there are none. Cost: a few passes, the widest over bodies."""
    from pyspark.sql import functions as F  # noqa: N812

    place = ("vhost", "exchange")
    totals = {
        (row["vhost"], row["exchange"]): row["messages"]
        for row in frame.groupBy(*place).agg(F.count("*").alias("messages")).collect()
    }
    messages = sum(totals.values())
    if not messages:
        return None
    keys = frame.groupBy(*place, "routing_key").agg(F.count("*").alias("messages"))
    frequent = keys.orderBy(F.desc("messages"), *place, "routing_key").limit(KEYS_MAX).collect()
    by_source: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for row in frequent:
        by_source.setdefault((row["vhost"], row["exchange"]), []).append((row["routing_key"], row["messages"]))
    sources = tuple(
        Source(vhost, exchange, totals[vhost, exchange], build_tree(found))
        for (vhost, exchange), found in sorted(by_source.items())
    )
    steps = [step / SIZE_STEPS for step in range(SIZE_STEPS + 1)]
    size = F.octet_length(F.col("body"))
    sizes = frame.agg(F.percentile_approx(size, steps).alias("steps"), F.min(size).alias("least")).collect()[0]
    minute = F.floor(F.unix_seconds(F.col("ts")) / 60).cast("bigint")
    minutes = frame.groupBy(minute.alias("minute")).agg(F.count("*").alias("messages")).collect()
    part = max(1, messages // SAMPLE_ROWS)
    sample = frame.where(F.pmod(F.xxhash64("queue", "offset"), F.lit(part)) == 0).select("properties_raw")
    found = [row["properties_raw"] for row in sample.limit(2 * SAMPLE_ROWS).collect()]
    vocabulary = vocabulary_of(found)
    return Workload(
        messages,
        sources,
        (sizes["least"], *sizes["steps"][1:]),
        rate_of({row["minute"]: row["messages"] for row in minutes}),
        len(found),
        vocabulary.properties,
        vocabulary.headers,
        tuple(bindings),
    )


def rate_of(minutes: dict[int, int]) -> Rate:
    """Return the rate from the messages of each minute since 1970 that had some."""
    first, last = min(minutes), max(minutes)
    span = last - first + 1
    counts: Any = np.zeros(span, np.int64)
    for minute, messages in minutes.items():
        counts[minute - first] = messages
    mean = float(counts.mean())
    p99 = float(np.quantile(counts, 0.99))
    if span < DAY_MINUTES:
        profile = counts / mean
    else:
        of_day: Any = (first + np.arange(span)) % DAY_MINUTES
        profile = np.bincount(of_day, weights=counts, minlength=DAY_MINUTES) / np.bincount(
            of_day, minlength=DAY_MINUTES
        )
        profile /= profile.mean()
    return Rate(
        first_ms=first * 60_000,
        minutes=span,
        mean_per_minute=round(mean, 3),
        p99_per_minute=round(p99, 3),
        max_per_minute=int(counts.max()),
        burst_factor=round(p99 / mean, 4),
        profile=tuple(round(float(share), 4) for share in profile),
    )


def vocabulary_of(sample: Iterable[bytes | None]) -> Vocabulary:
    """Return what encoded properties say: combinations of properties, and headers with plain values."""
    combinations: Counter[tuple[tuple[str, Any], ...]] = Counter()
    names: dict[tuple[str, HeaderKind], Counter[Any]] = {}
    for octets in sample:
        try:
            found = decode_properties(FRONT + (octets or bytes(2)))
        except BrokerError:
            continue
        values = ((column, getattr(found, name)) for name, column in PROPERTIES.items())
        combinations[tuple((column, value) for column, value in values if value is not None)] += 1
        for name, value in (found.headers or {}).items():
            kind = KINDS.get(type(value))
            if kind is not None and name not in NOT_SAMPLED:
                names.setdefault((name, kind), Counter())[value] += 1
    headers: dict[str, Header] = {}
    for (name, kind), counts in sorted(names.items(), key=lambda item: -item[1].total()):
        frequent = counts.most_common(VALUES_MAX)
        rest = counts.total() - sum(messages for _, messages in frequent)
        made = Header(name, kind, counts.total(), tuple(frequent), len(counts) - len(frequent), rest)
        headers.setdefault(name, made)  # a name of two kinds is that of the more frequent one
    return Vocabulary(
        tuple(Properties(dict(values), count) for values, count in combinations.most_common(COMBINATIONS_MAX)),
        tuple(headers.values()),
    )
