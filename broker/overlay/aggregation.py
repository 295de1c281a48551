"""The patterns wanted in a space by tree node, and how they are merged before they are announced to the others.

A binding asks for a conjunction: the messages of a space that a topic pattern matches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from broker.overlay.packets import Conjunction, Space
from broker.routing.cover_set import CoverSet, RootDiff
from broker.routing.index import TopicIndex
from broker.routing.pattern import HASH, STAR, BindingKeyError, Pattern, PatternLimits, parse_pattern, split_words

EVERYTHING: Final = Pattern(HASH, (HASH,), literal=False)
_LIMITS: Final = PatternLimits()


def conjunction(space: Space, kind: str, key: str) -> Conjunction:
    """Return the conjunction of a binding key at an exchange of a type.

    Types other than topic and direct filter by something other than the key, so their bindings ask for everything. This
    includes topic exchanges with another dialect than AMQP's.
    """
    if kind == "topic":
        return Conjunction(space, pattern_of(key).text)
    if kind == "direct":
        words = split_words(key)
        return Conjunction(space, HASH if HASH in words or STAR in words else key)
    return Conjunction(space, HASH)


def pattern_of(text: str) -> Pattern:
    """Return the text of a conjunction as a pattern; one that is invalid or exceeds the limits asks for everything."""
    try:
        return parse_pattern(text, _LIMITS)
    except BindingKeyError:
        return EVERYTHING


@lru_cache(maxsize=65_536)
def checksum(conjunction: Conjunction) -> int:
    """Return 64 bits that stand for a conjunction; those of a set are combined by exclusive or."""
    space = conjunction.space
    text = f"{space.vhost}\0{space.exchange}\0{conjunction.pattern}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class Aggregation(Enum):
    """The way in which a broker merges subscriptions. Different settings work together: a merged set matches all that
    its parts match.

    With NONE a leaf broker announces every change as one, with IDENTICAL only the first and last of equal patterns, and
    with COVERING only the patterns that no other covers.
    """

    NONE = "none"
    IDENTICAL = "identical"
    COVERING = "covering"


class Announced:
    """The patterns of one space that are announced to one tree node: the roots, or everything if there are too many.
    Above `patterns_max` roots the full feed `#` is announced in their place, and the roots again once at most half of
    the limit are left, so that a set near the limit does not switch with every change. Invariant: the announced
    patterns match every key that a pattern of the set matches. Cost: that of the root set; a switch costs the roots.
    """

    __slots__ = ("_full_feed", "_patterns_max", "_roots", "_size")

    def __init__(self, aggregation: Aggregation, patterns_max: int) -> None:
        self._roots = CoverSet(covers=aggregation is Aggregation.COVERING)
        self._size = 0
        self._patterns_max = patterns_max
        self._full_feed = False

    @property
    def patterns(self) -> Iterable[str]:
        """The canonical texts that are announced."""
        return (EVERYTHING.text,) if self._full_feed else [pattern.text for pattern in self._roots.roots]

    def add(self, pattern: Pattern) -> dict[str, bool]:
        """Count a pattern once more, and return each announced text that was added (true) or removed (false)."""
        return self._change(self._roots.add(pattern))

    def remove(self, pattern: Pattern) -> dict[str, bool]:
        """Count a pattern once less, and return each announced text that was added (true) or removed (false)."""
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
        known = {EVERYTHING.text} if before else {*roots_now, *change} - {text for text, came in change.items() if came}
        wanted = {EVERYTHING.text} if self._full_feed else roots_now
        return dict.fromkeys(known - wanted, False) | dict.fromkeys(wanted - known, True)


Change = dict[str, dict[str, bool]]
"""By tree node: each announced pattern that has come (true) or gone (false)."""

_NOBODY: Mapping[str, frozenset[str]] = {}
KEYS_MAX: Final = 16384  # of which the answer is remembered


class SpaceTable:
    """The patterns of one space held by each broker of each tree node. A tree node wants the patterns of all its
    brokers. A neighbour is sent the patterns of all other tree nodes. Holders are sets, so that a repeated addition or
    removal changes nothing.

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
        """To neighbours in `one_way` the pattern `#` is announced as soon as there is any pattern."""
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
        """Return whether any broker holds a pattern."""
        return bool(self._nodes)

    def hold(self, node: str, broker: str, text: str) -> Change | None:
        """Add a holder of a pattern. Return the change to announce, None if the tree node wanted it already."""
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
        """Remove a holder of a pattern. Return the change to announce, None if the tree node still wants it."""
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
        """Return the patterns that are announced to a neighbour."""
        return self._announced[node].patterns

    def wanting(self, key: str) -> tuple[str, ...]:
        """Return the neighbours that want a message with a key. Cost: a look-up for a known key."""
        answer = self.answers.get(key)
        if answer is None:
            if len(self.answers) >= KEYS_MAX:
                self.answers.clear()
            answer = self.answers[key] = self._index.match(key)
        return answer

    def _newly_told(self, others: frozenset[str], node: str) -> Iterable[str]:
        """Return the neighbours to which a pattern of this tree node is new, if the `others` want it too."""
        if len(others) > 1:
            return ()
        if others:
            return [told for told in others if told in self._announced]
        return [told for told in self._announced if told != node]

    def _group(self, names: frozenset[str]) -> frozenset[str]:
        return self._groups.setdefault(names, names)
