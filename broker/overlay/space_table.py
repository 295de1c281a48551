"""The patterns of one space by the tree node that wants them, and what each tree node is told of the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from broker.overlay.aggregation import Aggregation, Announced, pattern_of
from broker.routing.index import TopicIndex

Change = dict[str, dict[str, bool]]
"""By tree node: each announced pattern that has come (true) or gone (false)."""

_NOBODY: Mapping[str, frozenset[str]] = {}
KEYS_MAX: Final = 16384  # of which the answer is remembered


class SpaceTable:
    """Which brokers of which tree nodes hold which patterns of one space.

    A tree node wants what any of its brokers holds. A neighbour is told what all tree nodes but itself want. Holders
    are sets, so that a repeated addition or removal changes nothing.

    Shapes: the broker's own tree node may hold patterns, too: those of its own clients.
    Cost: an addition or removal costs its pattern, once for each neighbour only where it is the pattern's first or
    second tree node.
    """

    def __init__(
        self,
        own_node: str,
        neighbours: Sequence[str],
        aggregation: Aggregation,
        patterns_max: int,
        one_way: Collection[str] = (),
    ) -> None:
        """Neighbours in `one_way` are told that everything is wanted as soon as anything is."""
        self._own_node = own_node
        self._announced = {
            node: Announced(Aggregation.IDENTICAL, 0) if node in one_way else Announced(aggregation, patterns_max)
            for node in neighbours
        }
        self._held: dict[str, dict[str, frozenset[str]]] = {}  # tree node -> pattern -> brokers
        self._nodes: dict[str, frozenset[str]] = {}  # pattern -> tree nodes
        self._groups: dict[frozenset[str], frozenset[str]] = {}  # equal sets are kept once
        self._index = TopicIndex()
        self.answers: dict[str, tuple[str, ...]] = {}  # by key: the neighbours that want it

    def __bool__(self) -> bool:
        """Return whether anybody holds a pattern."""
        return bool(self._nodes)

    def hold(self, node: str, broker: str, text: str) -> Change | None:
        """Note that a broker of a tree node holds a pattern.

        Return the change of what the neighbours are told; None if the tree node has wanted the pattern before.
        """
        held = self._held.setdefault(node, {})
        brokers = held.get(text)
        if brokers is not None:
            held[text] = self._group(brokers | {broker})
            return None
        held[text] = self._group(frozenset((broker,)))
        pattern = pattern_of(text)
        if node != self._own_node:
            self._index.add(pattern, node)
            self.answers.clear()
        before = self._nodes.get(text, frozenset())
        self._nodes[text] = self._group(before | {node})
        return {told: self._announced[told].add(pattern) for told in self._newly_told(before, node)}

    def release(self, node: str, broker: str, text: str) -> Change | None:
        """Note that a broker of a tree node does not hold a pattern any more.

        Return the change of what the neighbours are told; None if the tree node still wants the pattern, or never has.
        """
        held = self._held.get(node, {})
        brokers = held.get(text)
        if brokers is None or broker not in brokers:
            return None
        if len(brokers) > 1:
            held[text] = self._group(brokers - {broker})
            return None
        del held[text]
        if not held:
            del self._held[node]
        pattern = pattern_of(text)
        if node != self._own_node:
            self._index.remove(pattern, node)
            self.answers.clear()
        after = self._nodes[text] - {node}
        if after:
            self._nodes[text] = self._group(after)
        else:
            del self._nodes[text]
        return {told: self._announced[told].remove(pattern) for told in self._newly_told(after, node)}

    def patterns(self, node: str) -> Collection[str]:
        """Return the patterns that a tree node wants."""
        return self._held.get(node, _NOBODY).keys()

    def announced(self, node: str) -> Iterable[str]:
        """Return the patterns that a neighbour is told."""
        return self._announced[node].patterns

    def wanting(self, key: str) -> tuple[str, ...]:
        """Return the neighbours that want a message with a key. Cost: a look-up for a key that was asked for before."""
        answer = self.answers.get(key)
        if answer is None:
            if len(self.answers) >= KEYS_MAX:
                self.answers.clear()
            answer = self.answers[key] = self._index.match(key)
        return answer

    def _newly_told(self, others: frozenset[str], node: str) -> Iterable[str]:
        """Return the neighbours that learn of a pattern by this tree node alone, if the others want it as well."""
        if len(others) > 1:
            return ()
        if others:
            return [told for told in others if told in self._announced]
        return [told for told in self._announced if told != node]

    def _group(self, names: frozenset[str]) -> frozenset[str]:
        return self._groups.setdefault(names, names)
