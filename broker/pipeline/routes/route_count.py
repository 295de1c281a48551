"""Count the messages of each route in Spark's Python workers, for the jobs `route` and `report`."""

from __future__ import annotations

import hashlib
import heapq
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual alias

from broker.pipeline.routes.matcher import Matcher, compiled
from broker.pipeline.routes.topology import Topology

COUNTS_DDL: Final = "kind string, vhost string, name string, detail string, number bigint, messages bigint, keys bigint"
SHOWN_MAX: Final = 1000  # the most keys of each kind that are listed by name

BY_NAME: Final = ("nobody", "moved")
BY_QUEUE: Final = ("queue", "today", "gained", "lost")
TOTALS: Final = ("all", "no exchange", "routed", "copies", "changed", "lost by all")

Place = tuple[str, str, str, bytes | None]  # vhost, exchange, routing key, and properties if the route depends on them
Key = tuple[str, str, str]  # vhost, exchange, routing key
Row = tuple[str, str, str, str, int, int, int]
Topologies = tuple[tuple[str, Topology], ...]
"""The topology to evaluate and, if requested, today's topology after it, each with a unique name."""
ROUTE_PROPERTIES: Final = "route_properties"  # a column: the properties of rows whose route depends on them
KEY_COLUMNS: Final = ("vhost", "exchange", "routing_key")
PLACE_COLUMNS: Final = (*KEY_COLUMNS, ROUTE_PROPERTIES)
CC_NAME: Final = '"CC"'  # the name of the header CC in a column of headers


class RouteTally:
    """Count the routes of the keys in one partition.

    A key whose route depends on properties has one row for each combination of properties; its rows are added up.
    Invariant: all rows of a key follow each other in one partition, so the most frequent keys of all are among the most
        frequent ones of their partitions.
    """

    def __init__(self, matchers: Sequence[Matcher]) -> None:
        self._matchers = matchers
        queues: dict[tuple[str, str], int] = {}
        for matcher in matchers:
            for queue in matcher.queues:
                queues.setdefault(queue, len(queues))
        self._queues = tuple(queues)
        # For each matcher, the index in `_queues` of the queue of each binding, or -1 if it leads to an exchange.
        self._queue_of = [
            np.array([-1 if place < 0 else queues[matcher.queues[place]] for place in matcher.queue_of], np.int64)
            for matcher in matchers
        ]
        self._width = max(len(queues), 1)
        self._bindings: Any = np.zeros((2, len(matchers[0].queue_of)), np.int64)
        self._by_queue: dict[str, Any] = {kind: np.zeros((2, len(queues)), np.int64) for kind in BY_QUEUE}
        self._fan_out: Any = np.zeros((2, len(queues) + 1), np.int64)  # by the number of queues that a key reaches
        self._totals = dict.fromkeys(TOTALS, (0, 0))
        self._collected: dict[str, Counter[Key]] = {kind: Counter() for kind in BY_NAME}

    def add(self, places: Sequence[Place], messages: Any) -> None:
        """Count the messages of some keys. Shapes: `messages` is an array with the number of messages of each key."""
        matches = [self._matches(matcher, places) for matcher in self._matchers]
        known, numbers, owners = matches[0]
        self._total("all", messages)
        self._total("no exchange", messages[~known])
        self._bindings += sums(numbers, messages[owners], self._bindings.shape[1])
        delivered = self._pairs(0, numbers, owners)
        reached: Any = np.bincount(delivered // self._width, minlength=len(places))
        self._fan_out += sums(reached, messages, self._fan_out.shape[1])
        is_routed: Any = reached > 0
        self._total("routed", messages[is_routed])
        self._total("copies", messages[delivered // self._width])
        self._count("queue", delivered, messages)
        self._collect("nobody", places, messages, ~is_routed)
        if len(matches) > 1:
            self._compare(places, messages, delivered, self._pairs(1, *matches[1][1:]), is_routed)

    def _compare(self, places: Sequence[Place], messages: Any, delivered: Any, before: Any, is_routed: Any) -> None:
        gained = np.setdiff1d(delivered, before, assume_unique=True)
        lost = np.setdiff1d(before, delivered, assume_unique=True)
        moved: Any = np.zeros(len(places), bool)
        moved[gained // self._width] = True
        moved[lost // self._width] = True
        for kind, pairs in (("today", before), ("gained", gained), ("lost", lost)):
            self._count(kind, pairs, messages)
        self._total("changed", messages[moved])
        self._total("lost by all", messages[moved & ~is_routed])
        self._collect("moved", places, messages, moved)

    def _matches(self, matcher: Matcher, places: Sequence[Place]) -> tuple[Any, Any, Any]:
        """Return whether each key's exchange exists, and for each match the binding's number and the key's index."""
        numbers: list[int] = []
        counts: Any = np.zeros(len(places), np.int64)
        known: Any = np.ones(len(places), bool)
        for at, place in enumerate(places):
            matches = matcher.numbers(*place)
            if matches is None:
                known[at] = False
            else:
                numbers += matches
                counts[at] = len(matches)
        return known, np.array(numbers, np.int64), np.repeat(np.arange(len(places)), counts)

    def _pairs(self, side: int, numbers: Any, owners: Any) -> Any:
        """Return the distinct pairs of a key and a queue, each encoded as key index * `_width` + queue index."""
        queues = self._queue_of[side][numbers]
        to_queue = queues >= 0
        pairs = np.sort(owners[to_queue] * self._width + queues[to_queue])  # np.unique would take longer
        return pairs[np.concatenate((np.ones(min(len(pairs), 1), bool), pairs[1:] != pairs[:-1]))]

    def _count(self, kind: str, pairs: Any, messages: Any) -> None:
        owners, queues = np.divmod(pairs, self._width)
        self._by_queue[kind] += sums(queues, messages[owners], len(self._queues))

    def _total(self, name: str, messages: Any) -> None:
        known = self._totals[name]
        self._totals[name] = (known[0] + int(messages.sum()), known[1] + len(messages))

    def _collect(self, kind: str, places: Sequence[Place], messages: Any, which: Any) -> None:
        counts = self._collected[kind]
        for at in np.flatnonzero(which).tolist():
            vhost, exchange, key, _ = places[at]
            counts[vhost, exchange, key] += int(messages[at])
        if len(counts) > SHOWN_MAX:
            self._collected[kind] = Counter(dict(most_frequent(counts)))
            vhost, exchange, key, _ = places[-1]  # more rows of this key may follow
            self._collected[kind][vhost, exchange, key] = counts[vhost, exchange, key]

    def rows(self) -> Iterator[Row]:
        """Yield the counts as rows of COUNTS_DDL."""
        for name, (messages, keys) in self._totals.items():
            yield "total", "", name, "", 0, messages, keys
        for number in np.flatnonzero(self._fan_out[1]).tolist():
            yield "fan-out", "", "", "", number, *self._fan_out[:, number].tolist()
        for number in np.flatnonzero(self._bindings[1][: self._matchers[0].default_at]).tolist():
            messages, keys = self._bindings[:, number].tolist()
            yield "binding", "", "", "", number, messages, keys
        for kind, counts in self._by_queue.items():
            for place in np.flatnonzero(counts[1]).tolist():
                messages, keys = counts[:, place].tolist()
                yield kind, *self._queues[place], "", 0, messages, keys
        for kind, collected in self._collected.items():
            for key, count in most_frequent(collected):
                yield kind, *key, 0, count, 1


def most_frequent(counts: Mapping[Key, int]) -> list[tuple[Key, int]]:
    """Return the keys with the most messages, and the number of their messages."""
    return heapq.nlargest(SHOWN_MAX, counts.items(), key=lambda item: (item[1], item[0]))


def sums(places: Any, messages: Any, length: int) -> Any:
    """Return, by place, the sum of messages and the number of occurrences. Invariant: sums stay below 2^53."""
    return np.stack(
        (
            np.bincount(places, weights=messages, minlength=length).astype(np.int64),
            np.bincount(places, minlength=length),
        )
    )


def matchers_of(topologies: Topologies) -> tuple[Matcher, ...]:
    """Return the matcher of each topology."""
    return tuple(compiled(name, topology) for name, topology in topologies)


def count_routes(topologies: Topologies) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the task that counts the routes of rows with PLACE_COLUMNS and the number of their messages."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tally: RouteTally | None = None
        for batch in batches:
            if tally is None:
                tally = RouteTally(matchers_of(topologies))
            columns = [batch.column(name).to_pylist() for name in PLACE_COLUMNS]
            tally.add(list(zip(*columns, strict=True)), batch.column("messages").to_numpy())
        rows = [] if tally is None else list(tally.rows())
        names = [column.split()[0] for column in COUNTS_DDL.split(", ")]
        kinds = [pa.string() if column.endswith("string") else pa.int64() for column in COUNTS_DDL.split(", ")]
        arrays = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]
        yield pa.RecordBatch.from_arrays(arrays, names=names)

    return task


def counted_routes(frame: DataFrame, topologies: Topologies) -> list[dict[str, Any]]:
    """Return the counts of a frame's messages, as rows of COUNTS_DDL.

    Cost: one pass over the messages; only distinct keys are matched.
    """
    keys = (
        frame.select(*KEY_COLUMNS, route_properties_column(topologies).alias(ROUTE_PROPERTIES))
        .groupBy(*PLACE_COLUMNS)
        .agg(F.count("*").alias("messages"))
        .repartition(*KEY_COLUMNS)
        .sortWithinPartitions(*KEY_COLUMNS)
    )
    counted = keys.mapInArrow(count_routes(topologies), COUNTS_DDL)
    rows = counted.groupBy("kind", "vhost", "name", "detail", "number").agg(
        F.sum("messages").alias("messages"), F.sum("keys").alias("keys")
    )
    return [row.asDict() for row in rows.collect()]


def busiest_keys(rows: Iterable[Mapping[str, Any]], key: str, count: int) -> list[dict[str, Any]]:
    """Return the keys with the most messages. Shapes: `key` is the name of the routing key's field in the result."""
    ordered = sorted(rows, key=lambda row: (-row["messages"], row["vhost"], row["name"], row["detail"]))
    names = {"vhost": "vhost", "exchange": "name", key: "detail", "messages": "messages"}
    return [{name: row[column] for name, column in names.items()} for row in ordered[:count]]


def named(*topologies: Topology) -> Topologies:
    """Return topologies, each with a name that identifies its content."""
    return tuple((hashlib.sha256(pickle.dumps(each)).hexdigest(), each) for each in topologies)


def with_queues(topologies: Topologies) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the task that replaces the column ROUTE_PROPERTIES with a row's queues, and drops rows without queues."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        known: dict[Any, list[str]] = {}
        for batch in batches:
            matcher = matchers_of(topologies)[0]
            places = [batch.column(name).to_pylist() for name in PLACE_COLUMNS]
            queues: list[list[str]] = []
            for place in zip(*places, strict=True):
                found = known.get(place)
                if found is None:
                    match = matcher.match(*place)
                    found = [] if match is None else list(match.queues)
                    if place[3] is None:  # rows with properties rarely repeat
                        known[place] = found
                queues.append(found)
            column = pa.array(queues, pa.list_(pa.string()))
            at = batch.schema.get_field_index(ROUTE_PROPERTIES)
            made = batch.set_column(at, pa.field("queues", column.type), column)
            yield made.filter(pa.array([bool(found) for found in queues]))

    return task


def route_properties_column(topologies: Topologies) -> Column:
    """Return a column with the properties of the rows whose route may depend on them, and null for other rows."""
    needed = F.coalesce(F.instr(F.col("headers"), CC_NAME) > 0, F.lit(False))
    for vhost, exchange in sorted(
        {place for name, topology in topologies for place in compiled(name, topology).dynamic}
    ):
        needed = needed | ((F.col("vhost") == vhost) & (F.col("exchange") == exchange))
    return F.when(needed, F.col("properties_raw"))
