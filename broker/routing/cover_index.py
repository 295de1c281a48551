"""Covering of patterns: a test for two patterns, and an index that finds patterns that cover or are covered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from broker.routing.pattern import HASH, STAR, Pattern, WordPlace


class CoverAutomaton:
    """An automaton for a covering pattern: it reads the words of another pattern and accepts it if it is covered.

    The states are the bits of an integer: bit j is set if the words read so far may match the first j words of the
    covering pattern. A `*` that is read stands for a word that the covering pattern does not contain, so that only a
    `*` or `#` matches it. A `#` that is read stands for any number of such words, so that only a run of wildcards with
    a `#` matches it; the stars of the run may remain, to match later words. In canonical form the `#` is the last of a
    run, so a state determines how many stars remain.

    Invariant: the answer is exact if keys may contain any words. `steps` counts the words read.
    Cost: a step costs a few operations on integers with a bit for each word of the covering pattern.
    Source: containment of linear tree patterns, Miklau and Suciu, "Containment and Equivalence for a Fragment of
    XPath", 2004.
    """

    __slots__ = ("_end", "_ever", "_gaps", "_hashes", "_stars", "literals", "start", "steps")

    def __init__(self, wider: Pattern) -> None:
        literals: dict[str, int] = {}
        stars = hashes = gaps = run = 0
        bit = 1
        for word in wider.words:
            if word == STAR:
                stars |= bit
                run |= bit
            elif word == HASH:
                hashes |= bit
                gaps |= run | bit
            else:
                literals[word] = literals.get(word, 0) | bit
                run = 0
            bit <<= 1
        self.literals = literals
        self.steps = 0
        self._stars = stars
        self._hashes = hashes
        self._gaps = gaps
        self._end = bit
        self._ever = hashes & (bit >> 1)
        self.start: int = 1 | (hashes & 1) << 1

    def step(self, states: int, word: str) -> int:
        """Return the states after one more word of a pattern, or 0 if the pattern cannot be covered."""
        self.steps += 1
        if word == HASH:
            kept = states & self._gaps
        elif word == STAR:
            kept = (states & self._stars) << 1 | (states & self._hashes)
        else:
            kept = (states & (self._stars | self.literals.get(word, 0))) << 1 | (states & self._hashes)
        return kept | (kept & self._hashes) << 1

    def accepts_any_word(self, states: int) -> bool:
        """Return whether the states accept a word that the covering pattern does not name."""
        return states & (self._stars | self._hashes) != 0

    def covers(self, narrower: Pattern, position: int = 0, states: int = 0) -> bool:
        """Return whether the pattern is covered, continuing at a word position with the states reached there."""
        if position == 0:
            states = self.start
        words = narrower.words
        for place in range(position, len(words)):
            if states & self._ever:
                return True
            states = self.step(states, words[place])
            if states == 0:
                return False
        return states & self._end != 0


def covers(wider: Pattern, narrower: Pattern) -> bool:
    """Return whether every key that the narrower pattern matches is matched by the wider one; a pattern covers itself.

    Cost: the words of both; for each word of the narrower one a few operations on integers of len(wider) bits.
    """
    return CoverAutomaton(wider).covers(narrower)


def narrowness(pattern: Pattern) -> tuple[int, int, int]:
    """Return a sort key by which a wider pattern comes before all patterns that it covers.

    The wider of two patterns matches a shorter key, or else has fewer literal words, or else has more `#`.
    """
    hashes = stars = 0
    for word in pattern.words:
        if word == HASH:
            hashes += 1
        elif word == STAR:
            stars += 1
    words = len(pattern.words) - hashes
    return words, words - stars, -hashes


class Place(WordPlace["Place | Pattern"]):
    """A node of the trie: the pattern that ends here, and the children. A child is another node or, if only one pattern
    continues there, that pattern itself.
    """

    __slots__ = ("pattern",)

    def __init__(self) -> None:
        super().__init__()
        self.pattern: Pattern | None = None

    def insert(self, pattern: Pattern, depth: int) -> None:
        """Insert a pattern whose first `depth` words lead here; no other pattern has its next word."""
        if len(pattern.words) == depth:
            self.pattern = pattern
        else:
            self.attach(pattern.words[depth], pattern)

    def clear_pattern(self) -> None:
        """Clear the node's terminal mark."""
        self.pattern = None

    def only_pattern(self) -> Pattern | None:
        """Return the pattern if only one ends here or is a child, or None if this node leads to more."""
        children = [child for child in (self.pattern, self.star, self.hash) if child is not None]
        if self.words is not None:
            if len(self.words) > 1:
                return None
            children += self.words.values()
        if len(children) != 1:
            return None
        child = children[0]
        return child if isinstance(child, Pattern) else None


class CoverIndex:
    """A set of distinct patterns of one dialect, in which `covering` and `covered` search.

    A search walks a trie over the words with all possible keys of a pattern at once. The patterns are also listed by
    each literal word that they contain, because a covered pattern contains every literal word of the covering one.

    Invariant: every node except the root leads to at least two patterns. `visited` counts the nodes visited and the
        patterns compared.
    """

    def __init__(self) -> None:
        self.visited = 0
        self._root = Place()
        self._naming: dict[str, dict[str, Pattern]] = {}  # word -> text -> pattern

    def counts(self) -> Mapping[str, int]:
        """Return the numbers of nodes, without the root, and of distinct literal words."""
        places = 0
        pending = [self._root]
        while pending:
            place = pending.pop()
            children = [place.star, place.hash, *(place.words or {}).values()]
            below = [child for child in children if isinstance(child, Place)]
            places += len(below)
            pending += below
        return {"places": places, "words": len(self._naming)}

    def add(self, pattern: Pattern) -> None:
        """Add a new pattern. Cost: its words."""
        place = self._root
        for depth, word in enumerate(pattern.words):
            child = place.child(word)
            if child is None:
                place.attach(word, pattern)
                break
            if isinstance(child, Pattern):
                fork = Place()
                fork.insert(child, depth + 1)
                place.attach(word, fork)
                child = fork
            place = child
        else:
            place.insert(pattern, len(pattern.words))
        for word in pattern.words:
            if word not in (STAR, HASH):
                named = self._naming.get(word)
                if named is None:
                    self._naming[word] = {pattern.text: pattern}
                else:
                    named[pattern.text] = pattern

    def remove(self, pattern: Pattern) -> None:
        """Remove one existing pattern. Cost: its words."""
        path = [self._root]
        words = pattern.words
        for word in words:
            child = path[-1].child(word)
            if isinstance(child, Place):
                path.append(child)
            else:
                assert child is not None
                assert child.words == words
                path[-1].detach(word)
                break
        else:
            path[-1].clear_pattern()
        while len(path) > 1:
            place = path.pop()
            last = place.only_pattern()
            if last is None:
                break
            path[-1].attach(words[len(path) - 1], last)
        for word in words:
            named = self._naming.get(word)
            if named is not None and named.pop(pattern.text, None) is not None and not named:
                del self._naming[word]
        if not self._naming:
            self._naming.clear()  # a dict keeps its size when keys are deleted

    def covering(self, narrower: Pattern) -> Pattern | None:
        """Return a pattern that covers this one, or None.

        Cost: at most nodes x words, and one comparison for each pattern that the walk reaches.
        """
        tried: dict[str, None] = {}
        for ends in self._ends(narrower):
            found = self._first(ends, narrower, tried)
            if found is not None:
                return found
        return None

    def _ends(self, narrower: Pattern) -> Iterator[list[Pattern]]:
        """Walk with a pattern, and yield for each of its words the patterns reached, which may cover it."""
        active = [self._root]
        floating: dict[Place, None] = {}  # nodes after a `#`, which stay reached for all later words
        for word in narrower.words:
            reached: list[Place] = []
            ends: list[Pattern] = []
            seen = dict.fromkeys(active) if word == HASH else None
            for place in active:  # grows during the loop: a `#` may match no word
                self.visited += 1
                self._add_next(place, active, floating, ends)
                if seen is not None:
                    # Only a `#`, perhaps after stars, can match this `#`. The comparison counts the stars.
                    if isinstance(place.star, Pattern):
                        ends.append(place.star)
                    elif place.star is not None and place.star not in seen:
                        active.append(place.star)
                    continue
                children = (place.star, None if word == STAR or place.words is None else place.words.get(word))
                for child in children:
                    if isinstance(child, Place):
                        reached.append(child)
                    elif child is not None:
                        ends.append(child)
            yield ends
            reached.extend(floating)
            if not reached:
                return
            active = reached
        ends = []
        for place in active:
            self.visited += 1
            self._add_next(place, active, floating, ends)
            if place.pattern is not None:
                ends.append(place.pattern)
        yield ends

    def _add_next(self, place: Place, active: list[Place], floating: dict[Place, None], ends: list[Pattern]) -> None:
        """Add the node or the pattern that follows the `#` of a node."""
        after = place.hash
        if isinstance(after, Pattern):
            ends.append(after)
        elif after is not None and after not in floating:
            floating[after] = None
            active.append(after)

    def _first(self, candidates: list[Pattern], narrower: Pattern, tried: dict[str, None]) -> Pattern | None:
        """Return the first candidate that covers the pattern, skipping those in `tried`."""
        for candidate in candidates:
            if candidate.text not in tried:
                tried[candidate.text] = None
                self.visited += 1
                if CoverAutomaton(candidate).covers(narrower):
                    return candidate
        return None

    def covered(self, wider: Pattern) -> list[Pattern]:
        """Return the patterns that this one covers.

        Cost: at most about twice the cheaper of two searches: a walk over the nodes that may match, or a comparison
            with each pattern that contains its rarest word.
        """
        automaton = CoverAutomaton(wider)
        rarest: dict[str, Pattern] | None = None
        for word in automaton.literals:
            named = self._naming.get(word)
            if named is None:
                return []
            if rarest is None or len(named) < len(rarest):
                rarest = named
        found = self._walk(automaton, -1 if rarest is None else len(rarest))
        if found is None:
            assert rarest is not None
            self.visited += len(rarest)
            found = [pattern for pattern in rarest.values() if automaton.covers(pattern)]
        return found

    def _walk(self, automaton: CoverAutomaton, limit: int) -> list[Pattern] | None:
        """Return the covered patterns, or None if that takes more than `limit` visits; below 0 means no limit."""
        found: list[Pattern] = []
        pending: list[tuple[Place, int, int]] = [(self._root, 0, automaton.start)]
        visits = 0
        while pending:
            place, depth, states = pending.pop()
            children: list[tuple[str, Place | Pattern]] = []
            if place.star is not None:
                children.append((STAR, place.star))
            if place.hash is not None:
                children.append((HASH, place.hash))
            words = place.words
            if words is not None:
                if automaton.accepts_any_word(states):
                    if 0 <= limit < visits + len(words):
                        return None
                    children += words.items()
                else:
                    for word, bits in automaton.literals.items():
                        if states & bits and word in words:
                            children.append((word, words[word]))
            visits += 1 + len(children)
            self.visited += 1 + len(children)
            if 0 <= limit < visits:
                return None
            if place.pattern is not None and automaton.covers(place.pattern, depth, states):
                found.append(place.pattern)
            for word, child in children:
                following = automaton.step(states, word)
                if following == 0:
                    continue
                if isinstance(child, Place):
                    pending.append((child, depth + 1, following))
                elif automaton.covers(child, depth + 1, following):
                    found.append(child)
        return found
