"""The patterns that each tree node wants in a space, and how they are merged before they are announced.

A binding asks for a conjunction: the messages of a space that a topic pattern matches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from broker.overlay.packets import Conjunction, Space
from broker.routing.cover_set import CoverSet, RootDiff
from broker.routing.index import TopicIndex
from broker.routing.pattern import HASH, STAR, BindingKeyError, Pattern, PatternLimits, parse_pattern, split_words

EVERYTHING: Final = Pattern(HASH, (HASH,), literal=False)
_LIMITS: Final = PatternLimits()


def conjunction(space: Space, kind: str, key: str) -> Conjunction:
    """Return the conjunction that a binding asks for, by the kind of patterns of its exchange and its key.

    Exchanges other than topic and direct do not filter by the key alone, so their bindings ask for everything. So do
    those of topic exchanges with another dialect than AMQP's, and those of direct ones whose key has a word `*` or `#`.
    """
    if kind == "topic":
        return Conjunction(space, pattern_of(key).text)
    if kind == "direct":
        words = split_words(key)
        return Conjunction(space, HASH if HASH in words or STAR in words else key)
    return Conjunction(space, HASH)


def pattern_of(text: str) -> Pattern:
    """Parse the text of a conjunction; an invalid one, or one that exceeds the limits, asks for everything."""
    try:
        return parse_pattern(text, _LIMITS)
    except BindingKeyError:
        return EVERYTHING


class Aggregation(Enum):
    """How a broker merges subscriptions. Brokers with different settings interoperate: a merged set matches every
    message that one of its patterns matches.

    With NONE and IDENTICAL a broker announces all patterns, with COVERING only those that no other covers. With NONE a
    leaf broker also announces the removal of a binding whose pattern another binding still has.
    """

    NONE = "none"
    IDENTICAL = "identical"
    COVERING = "covering"


class Announced:
    """The patterns of one space that are announced to one tree node: the roots, or everything if there are too many.

    Above `patterns_max` roots the full feed `#` is announced instead, until at most half of the limit are left, so that
    a set near the limit does not switch with every change.
    Invariant: the announced patterns match every key that a pattern of the set matches.
    Cost: that of the CoverSet; O(roots) for a switch.
    """

    __slots__ = ("_full_feed", "_patterns_max", "_roots", "_size")

    def __init__(self, aggregation: Aggregation, patterns_max: int) -> None:
        self._roots = CoverSet(covers=aggregation is Aggregation.COVERING)
        self._size = 0
        self._patterns_max = patterns_max
        self._full_feed = False

    @property
    def patterns(self) -> Iterable[str]:
        """The canonical texts of the announced patterns."""
        return (EVERYTHING.text,) if self._full_feed else [pattern.text for pattern in self._roots.roots]

    def add(self, pattern: Pattern) -> dict[str, bool]:
        """Add one use of a pattern; return each announced text that was added (true) or removed (false)."""
        return self._change(self._roots.add(pattern))

    def remove(self, pattern: Pattern) -> dict[str, bool]:
        """Remove one use of a pattern; return each announced text that was added (true) or removed (false)."""
        return self._change(self._roots.remove(pattern))

    def _change(self, roots: RootDiff) -> dict[str, bool]:
        before = self._full_feed
        self._size += len(roots.added) - len(roots.removed)
        self._full_feed = self._size > (self._patterns_max // 2 if before else self._patterns_max)
        if before and self._full_feed:
            return {}
        change = {pattern.text: False for pattern in roots.removed} | {pattern.text: True for pattern in roots.added}
        if before == self._full_feed:
            return change
        roots_now = {pattern.text for pattern in self._roots.roots}
        known = {EVERYTHING.text} if before else {*roots_now, *change} - {pattern.text for pattern in roots.added}
        wanted = {EVERYTHING.text} if self._full_feed else roots_now
        return dict.fromkeys(known - wanted, False) | dict.fromkeys(wanted - known, True)


Change = dict[str, dict[str, bool]]
"""By tree node: each announced pattern that was added (true) or removed (false)."""

_NO_PATTERNS: Mapping[str, frozenset[str]] = {}
KEYS_MAX: Final = 16384  # cached answers


class SpaceTable:
    """The patterns of one space that each broker of each tree node holds. A tree node wants the patterns of all its
    brokers. The patterns of all other tree nodes are announced to a neighbour. The holders of a pattern are a set, so
    that a repeated addition or removal changes nothing.

    Shapes: the broker's own tree node may hold patterns, too: those of its own clients.
    Cost: O(words of the pattern) for an addition or removal, and a change of the announced patterns: for all neighbours
        if no other tree node wants the pattern, for one if one other does.
    """

    def __init__(
        self,
        own_node: str,
        neighbours: Sequence[str],
        aggregation: Aggregation,
        patterns_max: int,
        one_way: Collection[str] = (),
    ) -> None:
        """To the neighbours in `one_way`, `#` is announced as soon as there is any pattern."""
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
        return bool(self._nodes)

    def hold(self, node: str, broker: str, text: str) -> Change | None:
        """Add a holder of a pattern. Return the change to announce, or None if the tree node already wanted it."""
        held = self._held.setdefault(node, {})
        brokers = held.get(text)
        if brokers is not None:
            held[text] = self._shared(brokers | {broker})
            return None
        held[text] = self._shared(frozenset((broker,)))
        pattern = pattern_of(text)
        if node != self._own_node:
            self._index.add(pattern, node)
            self.answers.clear()
        before = self._nodes.get(text, frozenset())
        self._nodes[text] = self._shared(before | {node})
        return {affected: self._announced[affected].add(pattern) for affected in self._affected(before, node)}

    def release(self, node: str, broker: str, text: str) -> Change | None:
        """Remove a holder of a pattern. Return the change to announce, or None if its node's patterns stay the same."""
        held = self._held.get(node, {})
        brokers = held.get(text)
        if brokers is None or broker not in brokers:
            return None
        if len(brokers) > 1:
            held[text] = self._shared(brokers - {broker})
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
            self._nodes[text] = self._shared(after)
        else:
            del self._nodes[text]
        return {affected: self._announced[affected].remove(pattern) for affected in self._affected(after, node)}

    def patterns(self, node: str) -> Collection[str]:
        """Return the patterns that a tree node wants."""
        return self._held.get(node, _NO_PATTERNS).keys()

    def announced(self, node: str) -> Iterable[str]:
        """Return the patterns that are announced to a neighbour."""
        return self._announced[node].patterns

    def wanting(self, key: str) -> tuple[str, ...]:
        """Return the neighbours that want a message with a key. Cost: a look-up if cached, else a match."""
        answer = self.answers.get(key)
        if answer is None:
            if len(self.answers) >= KEYS_MAX:
                self.answers.clear()
            answer = self.answers[key] = self._index.match(key)
        return answer

    def _affected(self, others: frozenset[str], node: str) -> Iterable[str]:
        """Return the neighbours to which a pattern is announced only because of `node`; `others` want it, too."""
        if len(others) > 1:
            return ()
        if others:
            return [neighbour for neighbour in others if neighbour in self._announced]
        return [neighbour for neighbour in self._announced if neighbour != node]

    def _shared(self, names: frozenset[str]) -> frozenset[str]:
        return self._groups.setdefault(names, names)
