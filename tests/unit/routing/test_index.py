"""The topic index: its counts, its costs and its memory."""

from sys import getsizeof
from typing import Any

import pytest

from broker.routing.engines.trie import Trie
from broker.routing.index import TopicIndex
from tests.unit.routing.topic_tables import SUITE_BINDINGS


def fill(index: TopicIndex, bindings: dict[int, str]) -> TopicIndex:
    """Return the index after adding these bindings."""
    for destination, key in bindings.items():
        index.add(index.parse(key), destination)
    return index


@pytest.mark.parametrize("key", ["news.*.today", "news.#", "news.today"])
def test_many_destinations_of_one_key(key: str) -> None:
    """20,000 destinations of one key are one pattern, stay in order and are removed individually."""
    trie: Trie[Any] = Trie()
    index = TopicIndex(trie)
    pattern = index.parse(key)
    for destination in range(20_000):
        assert index.add(pattern, destination)
    assert index.size == 1
    assert trie.visited <= 6  # the pattern was added for the first destination, and once more for all
    assert index.match("news.x.today" if "*" in key else "news.today") == tuple(range(20_000))
    for destination in reversed(range(20_000)):
        assert index.remove(pattern, destination)
    assert index.size == 0
    assert not any(index.counts().values())


def test_counts_tell_literal_keys_from_patterns() -> None:
    """The index counts literal keys beside the engine's counts, whatever their number of destinations."""
    index = fill(TopicIndex(), SUITE_BINDINGS)
    index.add(index.parse("a.*"), "another")
    assert index.counts()["literals"] == 9
    assert index.counts()["wildcards"] == 12
    assert index.size == 21


class Large:
    """A destination that takes more memory than its pattern."""

    def __init__(self) -> None:
        self.content = bytes(10_000)


def test_footprint_is_that_of_the_patterns() -> None:
    """The footprint grows with patterns, hardly with the contents of destinations, and shrinks back."""
    index = TopicIndex()
    empty_bytes = index.footprint_bytes(Large)
    destinations = [Large() for _ in range(100)]
    for number, destination in enumerate(destinations):
        index.add(index.parse(f"a.*.{number}"), destination)
    assert empty_bytes + 100 * 50 <= index.footprint_bytes(Large) <= empty_bytes + 100 * 500
    for number, destination in enumerate(destinations):
        index.remove(index.parse(f"a.*.{number}"), destination)
    assert index.footprint_bytes(str) <= empty_bytes + getsizeof(
        1
    )  # `visited` is no longer 0, which is a shared object


def test_removal_is_not_a_scan() -> None:
    """Beside 10,000 other bindings, a removal visits only the nodes of its own pattern."""
    trie: Trie[Any] = Trie()
    index = TopicIndex(trie)
    for number in range(10_000):
        index.add(index.parse(f"{number % 100}.*.{number // 100}.#"), number)
    index.add(index.parse("5.*.5.x.#"), "mine")
    trie.visited = 0
    index.remove(index.parse("5.*.5.x.#"), "mine")
    assert trie.visited <= 6
