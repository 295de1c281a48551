"""A deterministic automaton of wildcard patterns, built on demand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from broker.routing.pattern import AMQP, HASH, Pattern, TopicDialect, WordPlace

T = TypeVar("T")


class NfaPlace(WordPlace["NfaPlace[T]"], Generic[T]):
    """A place of the nondeterministic automaton: its successors, and the target of the pattern that ends here.

    The place `hash` is reached together with its parent, without a word, and stays reached after any word.
    """

    __slots__ = ("stays", "target")

    def __init__(self, *, stays: bool) -> None:
        super().__init__()
        self.stays = stays
        self.target: T | None = None

    def end_pattern(self, target: T | None) -> None:
        """Set the target of the pattern that ends here; None clears it."""
        self.target = target

    def is_empty(self) -> bool:
        return self.target is None and self.words is None and self.star is None and self.hash is None


@dataclass(frozen=True, slots=True)
class DfaLimits:
    """Limits on what matching may build: states, transitions, and places summed over all states.

    A hostile set of patterns has exponentially many states, and each may contain all places.
    """

    states: int = 16_384
    transitions: int = 65_536
    places: int = 262_144


FREED_PER_CALL: Final = 16
"""The most dropped states that a call frees: more at once would delay the caller."""


class State(Generic[T]):
    """A state: all places that a prefix of a key leads to, combined, and the transitions for the next word.

    `found` are the targets for a key that ends here, `tables` the places by expected word, and `without_word` the
    places that any word leads to. `next` maps words that some pattern expects here, once they have occurred, to the
    following states; all other words lead to `other`.
    """

    __slots__ = ("found", "next", "other", "tables", "without_word")

    def __init__(self, places: Iterable[NfaPlace[T]]) -> None:
        self.next: dict[str, State[T]] = {}
        self.other: State[T] | None = None
        self.found: list[T] = []
        self.tables: list[dict[str, NfaPlace[T]]] = []
        self.without_word: list[NfaPlace[T]] = []
        for place in places:
            if place.target is not None:
                self.found.append(place.target)
            if place.words is not None:
                self.tables.append(place.words)
            if place.star is not None:
                self.without_word.append(place.star)
            if place.stays:
                self.without_word.append(place)

    def set_other(self, state: State[T]) -> None:
        """Set the state for all words that no pattern expects here."""
        self.other = state

    def forget_next(self) -> None:
        """Remove the transitions: states refer to each other, and must not wait for the garbage collector."""
        self.next.clear()
        self.other = None


class LazyDfa(Generic[T]):
    """An engine that matches with a deterministic automaton, whose states are built on demand.

    States and transitions are built when a key first needs them, and dropped when a pattern is added or removed or when
    they exceed the limits. Once they are built, each word that some pattern expects costs one look-up, however many
    patterns there are. Other words are not stored, so new words of publishers take no memory.

    Cost: a match builds at most one state per word, and the first one. Later calls free a few dropped states each.
    Invariant: every place except the first leads to a target. `visited` counts the steps of matching.
    Source: "Very fast and scalable topic routing", parts 1 and 2 (RabbitMQ, 2010 and 2011), whose states are never
        dropped while messages arrive; "Regular Expression Matching Can Be Simple And Fast" (Cox, 2007).
    """

    def __init__(self, dialect: TopicDialect = AMQP, limits: DfaLimits | None = None) -> None:
        self.visited = 0
        self.drops = 0
        self._words = dialect.words
        self._limits = limits or DfaLimits()
        self._begin: NfaPlace[T] = NfaPlace(stays=False)
        self._places = 0
        self.size = 0
        self._states: dict[frozenset[NfaPlace[T]], State[T]] = {}
        self._dropped: list[dict[frozenset[NfaPlace[T]], State[T]]] = []
        self._start: State[T] | None = None
        self._transitions = 0
        self._places_in_states = 0

    def counts(self) -> Mapping[str, int]:
        """Return the numbers of places without the first, of states, of transitions, and of states not yet freed."""
        return {
            "places": self._places,
            "states": len(self._states),
            "transitions": self._transitions,
            "dropped": sum([len(states) for states in self._dropped]),
        }

    def add(self, pattern: Pattern, target: T) -> T | None:
        """Add a pattern with its target, or return the target that it already has. Cost: its words, and a drop."""
        place = self._begin
        for word in pattern.words:
            child = place.child(word)
            if child is None:
                child = NfaPlace(stays=word == HASH)
                place.attach(word, child)
                self._places += 1
            place = child
        known = place.target
        if known is None:
            place.end_pattern(target)
            self.size += 1
            self._drop()
            self._free(FREED_PER_CALL)
        return known

    def find(self, pattern: Pattern) -> T | None:
        path = self._path(pattern)
        return path[-1].target if path else None

    def remove(self, pattern: Pattern) -> T:
        """Remove the pattern and the places that no other pattern needs, and return its target.

        Cost: its words, and a drop. Raises: KeyError if the pattern is missing.
        """
        path = self._path(pattern)
        target = path[-1].target if path else None
        if target is None:
            raise KeyError(pattern.text)
        place = path.pop()
        place.end_pattern(None)
        self.size -= 1
        while path and place.is_empty():
            place = path.pop()
            place.detach(pattern.words[len(path)])
            self._places -= 1
        self._drop()
        self._free(FREED_PER_CALL if self.size else -1)
        return target

    def _path(self, pattern: Pattern) -> list[NfaPlace[T]]:
        """Return the places from the first to the end of a pattern, or an empty list if one of them is missing."""
        place = self._begin
        path = [place]
        for word in pattern.words:
            child = place.child(word)
            if child is None:
                return []
            path.append(child)
            place = child
        return path

    def match(self, key: str) -> list[T]:
        if not self.size:
            return []
        if self._dropped:
            self._free(FREED_PER_CALL)
        words = self._words(key)
        drops = self.drops
        state = self._start
        if state is None:
            state = self._start = self._state([self._begin])
        for word in words:
            following = state.next.get(word)
            if following is None:
                following = self._step(state, word, drops)
            state = following
        self.visited += len(words)
        return state.found.copy()  # the caller may append to it

    def _step(self, state: State[T], word: str, drops: int) -> State[T]:
        """Return the state that a word leads to.

        All words that no pattern expects share a transition. If states were dropped during this match, store nothing.
        """
        reached: list[NfaPlace[T]] = []
        for table in state.tables:
            place = table.get(word)
            if place is not None:
                reached.append(place)
        self.visited += len(state.tables)
        if not reached:
            other = state.other
            if other is None:
                other = self._state(state.without_word)
                if self._may_store(drops):
                    state.set_other(other)
            return other
        following = self._state(reached + state.without_word)
        if self._may_store(drops):
            state.next[word] = following
        return following

    def _may_store(self, drops: int) -> bool:
        """Return whether a match that began after this many drops may store another transition, and count it."""
        if drops == self.drops and self._transitions >= self._limits.transitions:
            self._drop()
        if drops != self.drops:
            return False
        self._transitions += 1
        return True

    def _state(self, places: list[NfaPlace[T]]) -> State[T]:
        """Return the state of these places and the places that a `#` adds to them."""
        ordered = dict.fromkeys(places + [place.hash for place in places if place.hash is not None])
        self.visited += len(ordered)
        key = frozenset(ordered)
        state = self._states.get(key)
        if state is None:
            limits = self._limits
            if len(self._states) >= limits.states or self._places_in_states + len(key) > limits.places:
                self._drop()
            if self._dropped:
                self._free(2)  # more than are created, so that the states in memory do not increase
            state = State(ordered)
            self._states[key] = state
            self._places_in_states += len(key)
        return state

    def _drop(self) -> None:
        """Drop all states."""
        if not self._states:
            return
        self.drops += 1
        self._dropped.append(self._states)
        self._states = {}
        self._start = None
        self._transitions = 0
        self._places_in_states = 0

    def _free(self, count: int) -> None:
        """Free this many dropped states; below 0, all."""
        dropped = self._dropped
        while dropped and count:
            states = dropped[-1]
            if not states:
                dropped.pop()
                continue
            _, state = states.popitem()
            state.forget_next()
            count -= 1
        if dropped and not dropped[-1]:
            dropped.pop()
