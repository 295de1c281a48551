"""The reach of a lake's messages: fan-out, keys that reach no queue, bindings that no message matches."""

from __future__ import annotations

import hashlib
import heapq
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.pipeline.routes.asked_column import ASKED, asked_column
from broker.pipeline.routes.matcher import Match, Matcher, compiled
from broker.pipeline.routes.topology import RoutedBinding, Topology
from broker.routing.cover_set import CoverSet
from broker.routing.dialect import AMQP, DIALECTS
from broker.routing.pattern import BindingKeyError, Pattern

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["REACH_DDL", "Reach", "reach", "redundant_bindings"]

Group = list[tuple[RoutedBinding, Pattern]]
REACH_DDL: Final = (
    "kind string, vhost string, exchange string, routing_key string, number bigint, messages bigint, keys bigint"
)
SHOWN_MAX: Final = 50  # keys listed by name
FAN_OUT, BINDING, NOBODY = "fan-out", "binding", "nobody"
Row = tuple[str, str, str, str, int, int, int]


def redundant_bindings(topology: Topology) -> list[tuple[RoutedBinding, RoutedBinding]]:
    """Return each redundant binding with one that makes it redundant and is not redundant itself.

    A fanout exchange ignores keys, so that its second binding to the same destination is redundant. Headers exchanges
    and hash exchanges are left out.
    Cost: for each pattern of one exchange, a search among its patterns to the same destination.
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
        return None  # our brokers refuse it


def _redundant(group: Group) -> Iterator[tuple[RoutedBinding, RoutedBinding]]:
    """Yield pairs; of equivalent bindings, the first stays."""
    covers = CoverSet()
    first: dict[str, RoutedBinding] = {}
    for binding, pattern in group:
        covers.add(pattern)
        first.setdefault(pattern.text, binding)
    for binding, pattern in group:
        root = covers.covering(pattern)
        if root is not None and first[root.text] is not binding:
            yield binding, first[root.text]


class Reach:
    """Sums up the reach of one partition of distinct keys.

    Invariant: a key is counted once, so the most frequent of all partitions are among the most frequent of each; keys
        whose properties matter are summed up first.
    """

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._counts: dict[tuple[str, int], list[int]] = {}
        self._nobody: list[tuple[int, str, str, str]] = []
        self._nobody_asked: Counter[tuple[str, str, str]] = Counter()  # a key occurs once for each of its properties

    def add(self, vhost: str, exchange: str, key: str, asked: bytes | None, messages: int) -> None:
        """Count the messages of one key."""
        match = self._matcher.match(vhost, exchange, key, asked) or Match((), ())
        for what in [(FAN_OUT, len(match.queues)), *((BINDING, number) for number in match.bindings)]:
            count = self._counts.setdefault(what, [0, 0])
            count[0] += messages
            count[1] += 1
        if not match.queues and asked is not None:
            self._nobody_asked[vhost, exchange, key] += messages
        elif not match.queues:
            entry = (messages, vhost, exchange, key)
            if len(self._nobody) < SHOWN_MAX:
                heapq.heappush(self._nobody, entry)
            elif entry > self._nobody[0]:
                heapq.heapreplace(self._nobody, entry)

    def rows(self) -> Iterator[Row]:
        """Yield what was counted, by REACH_DDL."""
        for (kind, number), (messages, keys) in self._counts.items():
            yield kind, "", "", "", number, messages, keys
        sums = self._nobody_asked.copy()
        for messages, vhost, exchange, key in self._nobody:
            sums[vhost, exchange, key] += messages
        for place, messages in heapq.nlargest(SHOWN_MAX, sums.items(), key=lambda item: (item[1], item[0])):
            yield NOBODY, *place, 0, messages, 1


def counting(named: tuple[str, Topology]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the task that counts rows (vhost, exchange, routing_key, asked, messages) by the broadcast topology."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        found = Reach(compiled(*named))
        for batch in batches:
            names = ("vhost", "exchange", "routing_key", ASKED, "messages")
            for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                found.add(*row)
        rows = list(found.rows())
        columns = [column.split() for column in REACH_DDL.split(", ")]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([row[at] for row in rows], pa.string() if kind == "string" else pa.int64())
                for at, (_, kind) in enumerate(columns)
            ],
            names=[name for name, _ in columns],
        )

    return task


def reach(frame: DataFrame, topology: Topology) -> dict[str, Any]:
    """Return the figures. Raises: BadTopology. Cost: one pass over the keys; each distinct key is matched once."""
    from pyspark.sql import functions as sf

    named = (hashlib.sha256(pickle.dumps(topology)).hexdigest(), topology)
    keys = (
        frame.select("vhost", "exchange", "routing_key", asked_column((named,)).alias(ASKED))
        .groupBy("vhost", "exchange", "routing_key", ASKED)
        .agg(sf.count("*").alias("messages"))
    )
    counted = keys.mapInArrow(counting(named), REACH_DDL)
    grouped = counted.groupBy("kind", "vhost", "exchange", "routing_key", "number")
    rows = grouped.agg(sf.sum("messages").alias("messages"), sf.sum("keys").alias("keys")).collect()
    return figures([row.asDict() for row in rows], topology)


def figures(rows: list[Mapping[str, Any]], topology: Topology) -> dict[str, Any]:
    """Return the figures from the counted rows.

    Shapes: `nobody` holds the most frequent keys that reach no queue; a dead binding matched no message.
    """
    fan_out = sorted((row["number"], row["messages"], row["keys"]) for row in rows if row["kind"] == FAN_OUT)
    messages = sum(count for _, count, _ in fan_out)
    copies = sum(queues * count for queues, count, _ in fan_out)
    met = {row["number"] for row in rows if row["kind"] == BINDING}
    nobody = sorted(
        (row for row in rows if row["kind"] == NOBODY),
        key=lambda row: (-row["messages"], row["vhost"], row["exchange"], row["routing_key"]),
    )
    return {
        "bindings": len(topology.bindings),
        "copies": copies,
        "mean": copies / messages if messages else 0.0,
        "by_queues": [{"queues": queues, "messages": count, "keys": keys} for queues, count, keys in fan_out],
        "unmatched_messages": sum(count for queues, count, _ in fan_out if queues == 0),
        "unmatched_keys": sum(keys for queues, _, keys in fan_out if queues == 0),
        "unmatched": [
            {name: row[name] for name in ("vhost", "exchange", "routing_key", "messages")} for row in nobody[:SHOWN_MAX]
        ],
        "dead_bindings": [
            {"vhost": binding.vhost, "binding": str(binding)}
            for number, binding in enumerate(topology.bindings)
            if number not in met
        ],
    }
