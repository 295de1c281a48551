"""The trie of cached routing keys: the cost of a search, and the memory."""

import random
import sys
from typing import Any

import pytest

from broker.routing.key_trie import KeyTrie
from broker.routing.pattern import AMQP

MANY = 10**9


def trie_of(keys: list[str]) -> KeyTrie:
    """Return a trie of AMQP keys."""
    trie = KeyTrie(AMQP.words)
    for key in keys:
        trie.add(key)
    return trie


def find(trie: KeyTrie, pattern: str, visits_max: int = MANY) -> list[str] | None:
    """Return what an AMQP pattern finds."""
    return trie.find(AMQP.parse(pattern).words, visits_max)


@pytest.mark.parametrize(
    ("pattern", "visits", "keys"),
    [
        ("w1.7.z", 2 + 3, 1),  # the root, a node, and a key whose last word is compared
        ("w1.7.x", 2 + 3, 0),
        ("none.7.z", 1, 0),
        ("none.#", 1, 0),
        ("w1.none.#", 2, 0),
        ("w1.#", 2 + 100, 100),
        ("w1.*.z", 2 + 100 * 3, 100),
        ("*.7.z", 1 + 50 * (1 + 3), 50),
        ("*.*.none", 1 + 50 * (1 + 100 * 3), 0),
    ],
)
def test_words_lead_to_what_they_match(pattern: str, visits: int, keys: int) -> None:
    """A literal word visits one place, a star all next ones, a hash everything below; a key counts by its words."""
    trie = trie_of([f"w{first}.{number}.z" for first in range(50) for number in range(100)])
    assert len(find(trie, pattern) or ()) == keys
    assert trie.visited == visits


def test_what_would_visit_more_is_given_up_at_once() -> None:
    """A search that would exceed its visits is given up before a star over many words, or a hash, starts."""
    trie = trie_of([f"{number}.z" for number in range(5000)])
    for pattern in ("*.z", "#.z", "#", "*.*"):
        before = trie.visited
        assert find(trie, pattern, 500) is None
        assert trie.visited == before + 1
    assert find(trie, "7.*", 500) == ["7.z"]


def test_a_key_of_many_words_counts_as_many() -> None:
    """Comparing words counts as visits, so that the limit bounds the time."""
    keys = [".".join(["a"] * 100 + [str(number)]) for number in range(50)]
    trie = trie_of(keys)
    assert find(trie, "#." + "a." * 50 + "b", 20_000) is None
    assert trie.visited <= 20_000 + 101 * 51
    assert find(trie, "#.a.49", 20_000) == [keys[49]]


def test_a_search_in_steps_finds_what_stays() -> None:
    """It finds what `find` does; while keys come and go, each that stays is found, and none twice."""
    rng = random.Random(7)
    keys = list({".".join(rng.choices(["a", "b", "c", ""], k=rng.randrange(1, 6))) for _ in range(400)})
    for pattern in ("#", "a.#", "*.b", "*.*.#", "a.b.c", "none.#", "*"):
        words = AMQP.parse(pattern).words
        assert sorted(key for key in trie_of(keys).search(words) if key is not None) == sorted(
            find(trie_of(keys), pattern) or ()
        )
        for _ in range(20):
            trie = trie_of(keys)
            present, touched, found = set(keys), set[str](), list[str]()
            for key in trie.search(words):
                if key is not None:
                    found.append(key)
                one = rng.choice(keys)
                touched.add(one)
                if one in present:
                    trie.remove(one)
                    present.remove(one)
                else:
                    trie.add(one)
                    present.add(one)
            untouched = set(find(trie_of(keys), pattern) or ()) - touched
            assert untouched <= set(found)
            assert [key for key in found if key in untouched and found.count(key) > 1] == []


def footprint(node: Any) -> int:
    """Return the bytes of a node and everything below it, with the words but without the keys."""
    if isinstance(node, str):
        return 0
    return sys.getsizeof(node) + 16 + sum(sys.getsizeof(word) + footprint(below) for word, below in node.items())


@pytest.mark.parametrize(
    "keys",
    [
        [f"k{number}" for number in range(3000)],
        [f"{number % 50}.{number}.tail" for number in range(3000)],
        [f"{number}.{'a.' * 50}{end}" for number in range(30) for end in "xy"],
    ],
    ids=["flat", "two levels", "long ways in common"],
)
def test_memory_is_counted_in_full(keys: list[str]) -> None:
    """The trie's own count is at least its real memory and less than three times that, for any shape."""
    trie = trie_of(keys)
    taken = footprint(trie._root)
    assert taken <= trie.used_bytes <= 3 * taken
