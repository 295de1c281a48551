"""Which bindings could go without anybody noticing: another one brings the same messages to the same place."""

from __future__ import annotations

from collections.abc import Iterator

from broker.pipeline.routes.topology import RoutedBinding, Topology
from broker.routing.cover_set import CoverSet
from broker.routing.dialect import AMQP, DIALECTS
from broker.routing.pattern import BindingKeyError, Pattern

__all__ = ["redundant_bindings"]

Group = list[tuple[RoutedBinding, Pattern]]


def redundant_bindings(topology: Topology) -> list[tuple[RoutedBinding, RoutedBinding]]:
    """Return each redundant binding with one that makes it so and is not redundant itself.

    A fanout exchange ignores keys, so that its second binding to the same place is redundant. Exchanges that look at
    headers, or draw by a hash, are left out.
    Cost: a search among the patterns of one exchange that lead to the same place, for each of them.
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
        return None  # no broker of ours would take it


def _redundant(group: Group) -> Iterator[tuple[RoutedBinding, RoutedBinding]]:
    """Yield pairs; of those that mean the same, the first stays."""
    covers = CoverSet()
    first: dict[str, RoutedBinding] = {}
    for binding, pattern in group:
        covers.add(pattern)
        first.setdefault(pattern.text, binding)
    for binding, pattern in group:
        root = covers.covering(pattern)
        if root is not None and first[root.text] is not binding:
            yield binding, first[root.text]
