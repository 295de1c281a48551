"""Covering against matching, and the cover set against maximal patterns found by comparing all pairs."""

from __future__ import annotations

from collections import Counter
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.routing.cover_index import covers, narrowness
from broker.routing.cover_set import CoverSet, RootDiff
from broker.routing.pattern import HASH, STAR, Pattern, parse_pattern
from tests.property.covering_reference import FRESH, reference_covers
from tests.property.topic_reference import matches

WORDS = ["a", "b", "", STAR, HASH]
LITERALS = ["a", "b", "", FRESH, "c"]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Pattern, Pattern]:
    """Draw two patterns: unrelated, or one made from the other by widening it."""
    narrower = draw(st.lists(st.sampled_from(WORDS), max_size=9))
    if draw(st.booleans()):
        return parse_pattern(".".join(draw(st.lists(st.sampled_from(WORDS), max_size=9)))), parse_pattern(
            ".".join(narrower)
        )
    wider: list[str] = []
    for word in narrower:
        match draw(st.sampled_from(["keep", "keep", "star", "hash", "swallow", "insert"])):
            case "keep":
                wider.append(word)
            case "star":
                wider.append(STAR)
            case "hash":
                wider.append(HASH)
            case "insert":
                wider += [HASH, word]
            case _:
                pass
    return parse_pattern(".".join(wider)), parse_pattern(".".join(narrower))


@given(pairs())
@settings(max_examples=500)
def test_covering_is_exact(pair: tuple[Pattern, Pattern]) -> None:
    """A cover of longer patterns matches every key of the covered one, none is missed, and the wider sorts first."""
    wider, narrower = pair
    if narrower.words.count(HASH) <= 3:  # 1,000 samples at most
        assert covers(wider, narrower) == reference_covers(wider.words, narrower.words)
    if covers(wider, narrower) and wider != narrower:
        assert narrowness(wider) < narrowness(narrower)
        assert not covers(narrower, wider)


@given(pairs(), st.data())
@settings(max_examples=200)
def test_a_key_of_the_narrower_is_one_of_the_wider(pair: tuple[Pattern, Pattern], data: st.DataObject) -> None:
    """A covering pattern matches the covered pattern's keys, whatever words its wildcards stand for."""
    wider, narrower = pair
    key: list[str] = []
    for word in narrower.words:
        if word == HASH:
            key += data.draw(st.lists(st.sampled_from([*LITERALS, STAR, HASH]), max_size=4))
        else:
            key.append(data.draw(st.sampled_from(LITERALS)) if word == STAR else word)
    assert matches(narrower.words, key)
    if covers(wider, narrower):
        assert matches(wider.words, key)


@given(pairs(), pairs())
@settings(max_examples=100)
def test_covering_is_an_order(first: tuple[Pattern, Pattern], second: tuple[Pattern, Pattern]) -> None:
    """Covering is reflexive and transitive, and `#` covers everything."""
    patterns = [*first, *second]
    for one in patterns:
        assert covers(one, one)
        assert covers(parse_pattern(HASH), one)
        for two in patterns:
            for three in patterns:
                assert not (covers(one, two) and covers(two, three)) or covers(one, three)


is_covered = cache(reference_covers)
SPELLINGS = st.lists(st.sampled_from(["a", "b", "a", "b", STAR, HASH]), max_size=5)
# With few words a `#` soon covers everything; many of these patterns stay roots, share a stem, and have rare words.
STEMMED = st.tuples(st.sampled_from("ab*"), st.sampled_from("abcdefgh"), st.sampled_from("*#a"), st.sampled_from("ab#"))


class CoverMachine(RuleBasedStateMachine):
    """Counts patterns beside the set, and finds the maximal ones by comparing all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.cover_set = CoverSet()
        self.held: Counter[tuple[str, ...]] = Counter()

    def maximal(self) -> set[tuple[str, ...]]:
        """Return the words of the patterns that no other pattern covers."""
        return {
            words for words in self.held if not any(other != words and is_covered(other, words) for other in self.held)
        }

    def check(self, before: set[tuple[str, ...]], diff: RootDiff) -> None:
        """Compare a diff with the change of the roots."""
        after = self.maximal()
        added, removed = ([pattern.words for pattern in part] for part in (diff.added, diff.removed))
        assert set(added) == after - before
        assert set(removed) == before - after
        assert (len(added), len(removed)) == (len(set(added)), len(set(removed)))
        assert bool(diff) == (before != after)

    @rule(words=st.one_of(SPELLINGS, STEMMED), times=st.integers(1, 2))
    def add(self, words: list[str], times: int) -> None:
        """Add a pattern in any spelling: `#.*` and `*.#.#` are one pattern."""
        pattern = parse_pattern(".".join(words))
        for _ in range(times):
            before = self.maximal()
            self.held[pattern.words] += 1
            self.check(before, self.cover_set.add(pattern))

    @rule(data=st.data(), widest=st.booleans(), entirely=st.booleans())
    def remove(self, data: st.DataObject, widest: bool, entirely: bool) -> None:
        """Remove a present pattern, more often a root than by chance."""
        if not self.held:
            return
        choices = self.maximal() if widest else set(self.held)
        words = data.draw(st.sampled_from(sorted(choices)))
        for _ in range(self.held[words] if entirely else 1):
            before = self.maximal()
            self.held[words] -= 1
            if not self.held[words]:
                del self.held[words]
            self.check(before, self.cover_set.remove(parse_pattern(".".join(words))))

    @rule(words=SPELLINGS)
    def ask(self, words: list[str]) -> None:
        """Check that a covering root is found exactly if one exists."""
        pattern = parse_pattern(".".join(words))
        root = self.cover_set.covering(pattern)
        if root is None:
            assert not any(is_covered(held, pattern.words) for held in self.held)
        else:
            assert root.words in self.maximal()
            assert is_covered(root.words, pattern.words)

    @invariant()
    def roots_are_the_maximal_patterns(self) -> None:
        """Check that the roots are the maximal patterns, each once, and the counts of the set."""
        roots = [pattern.words for pattern in self.cover_set.roots]
        assert len(roots) == len(set(roots))
        assert set(roots) == self.maximal()
        counts = self.cover_set.counts()
        assert counts["patterns"] == self.cover_set.counts()["patterns"] == len(self.held)
        assert counts["roots"] == len(roots)
        assert counts["words"] == len({word for words in roots for word in words if word not in (STAR, HASH)})

    def teardown(self) -> None:
        """Check that nothing is left after removing everything."""
        for words, count in self.held.items():
            for _ in range(count):
                self.cover_set.remove(parse_pattern(".".join(words)))
        assert not any(self.cover_set.counts().values())
        assert not list(self.cover_set.roots)


CoverMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50)
TestCoverMachine = CoverMachine.TestCase
