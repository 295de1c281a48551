"""The cover set: how a change affects the roots, and its cost."""

import random
from itertools import product

from broker.routing.cover_index import covers
from broker.routing.cover_set import CoverSet
from broker.routing.index import footprint_bytes
from broker.routing.pattern import Pattern, parse_pattern


def texts(patterns: tuple[Pattern, ...]) -> list[str]:
    """Return the texts of patterns, in order."""
    return sorted(pattern.text for pattern in patterns)


def fill(*keys: str) -> CoverSet:
    """Return a set of binding keys."""
    cover_set = CoverSet()
    for key in keys:
        cover_set.add(parse_pattern(key))
    return cover_set


def roots(cover_set: CoverSet) -> list[str]:
    """Return the texts of the roots."""
    return texts(tuple(cover_set.roots))


SIZES = (20, 50, 2000, 30, 5)


def workload(count: int) -> list[Pattern]:
    """Return distinct patterns as on a busy broker: levels of few and of many words, 10 % `*`, 1 % `#`.

    Each has a literal word. A pattern without one, like `*.*.#`, would cover most others.
    """
    source = random.Random(1)
    patterns: dict[str, Pattern] = {}
    while len(patterns) < count:
        words = [f"w{level}_{source.randrange(SIZES[level])}" for level in range(source.randrange(3, 6))]
        words = [source.choices((word, "*", "#"), (89, 10, 1))[0] for word in words]
        pattern = parse_pattern(".".join(words))
        if not pattern.literal and any(word not in "*#" for word in words):
            patterns[pattern.text] = pattern
    return list(patterns.values())


def test_ten_thousand_patterns_are_not_compared_with_each_other() -> None:
    """Adding or removing one of up to 10,000 patterns visits 40 places and patterns on average."""
    patterns = workload(10_000)
    cover_set = CoverSet()
    for pattern in patterns:
        cover_set.add(pattern)
    assert cover_set.visited <= 40 * len(patterns)
    assert 2_000 < len(list(cover_set.roots)) < 5_000
    random.Random(2).shuffle(patterns)
    before = cover_set.visited
    for pattern in patterns:
        cover_set.remove(pattern)
    assert cover_set.visited - before <= 40 * len(patterns)
    assert not any(cover_set.counts().values())
    assert footprint_bytes(cover_set) <= footprint_bytes(CoverSet()) + 256  # containers may be empty but not large


def test_patterns_that_nobody_covers_are_looked_up_by_what_they_share() -> None:
    """A query visits only a few of 10,000 roots that differ in one word, wherever its wildcards are."""
    shapes = ("{}.on.*", "*.{}.on", "#.{}.#", "x.#.{}")
    for shape in shapes:
        cover_set = fill(*(shape.format(f"n{number}") for number in range(10_000)))
        before = cover_set.visited
        for number in range(100):
            assert cover_set.add(parse_pattern(shape.format(f"new{number}")))
            assert cover_set.remove(parse_pattern(shape.format(f"new{number}")))
        assert cover_set.visited - before <= 100 * 10, shape


def test_a_broad_root_that_goes_costs_its_children() -> None:
    """A diff exposes ten thousand children, and patterns below them are not visited."""
    stems = [f"s{number}.#" for number in range(1_000)]
    below = [f"s{number}.*.{word}" for number, word in product(range(1_000), "abcdefghi")]
    cover_set = fill(*stems, *below)
    assert cover_set.counts()["patterns"] == 10_000
    assert len(cover_set.add(parse_pattern("#")).removed) == 1_000
    before = cover_set.visited
    diff = cover_set.remove(parse_pattern("#"))
    assert texts(diff.added) == sorted(stems)
    assert texts(diff.removed) == ["#"]
    assert cover_set.visited - before <= 5 * len(stems)


def test_a_removal_below_a_root_searches_nothing() -> None:
    """Removing a covered pattern detaches it from its parent and visits no place."""
    cover_set = fill("#", *(f"a.*.{number}" for number in range(100)))
    before = cover_set.visited
    for number in range(100):
        cover_set.remove(parse_pattern(f"a.*.{number}"))
    assert cover_set.visited == before


def test_hostile_patterns_visit_each_place_once_a_word() -> None:
    """With many `#` a search visits at most places times words, and compares each pattern once."""
    source = random.Random(7)
    patterns = {
        pattern.text: pattern
        for pattern in (parse_pattern(".".join(source.choices("ab*##", k=15))) for _ in range(600))
        if "#" not in pattern.words[:1]
    }
    cover_set = CoverSet()
    probes = [parse_pattern(".".join(["a", "#"] * 20)), parse_pattern(".".join(["*", "a"] * 30))]
    for pattern in patterns.values():
        cover_set.add(pattern)
        counts = cover_set.counts()
        for probe in probes:
            before = cover_set.visited
            root = cover_set.covering(probe)
            assert cover_set.visited - before <= (counts["places"] + 1) * (len(probe.words) + 1) + counts["roots"]
            assert root is None or covers(root, probe)
