"""The independent matcher of the demo against the reference, and the signs that mean nothing to it."""

from itertools import product

import pytest

from demo.plan import matched
from tests.property.topic_reference import matches

KEYS = [".".join(words) for length in range(5) for words in product(["a", "b", ""], repeat=length)]
BINDING_KEYS = [".".join(words) for length in range(4) for words in product(["a", "", "*", "#"], repeat=length)]


def words_of(key: str) -> list[str]:
    """Return the words of a key; the empty key has none."""
    return key.split(".") if key else []


@pytest.mark.parametrize("binding_key", BINDING_KEYS)
def test_binding_key_matches_as_the_reference_does(binding_key: str) -> None:
    """Each binding key matches exactly the keys of the reference."""
    assert matched([binding_key], KEYS) == [matches(words_of(binding_key), words_of(key)) for key in KEYS]


@pytest.mark.parametrize(
    ("binding_key", "key", "hit"),
    [
        ("a.b|c", "a.b|c", True),
        ("a.b|c", "a.b", False),
        ("a+.c", "aa.c", False),
        ("a*.#b", "a*.#b", True),
        ("a*.b", "ax.b", False),
        ("a.*", "a.b\n", True),
        ("a.b", "a.b\n", False),
    ],
)
def test_other_signs_are_plain_letters(binding_key: str, key: str, hit: bool) -> None:
    """So are those of regular expressions, wildcards inside a word, and a line break, also at the end of a key."""
    assert matched([binding_key], [key]) == [hit]


def test_several_binding_keys_match_where_one_of_them_does() -> None:
    """A queue with overlapping bindings gets a message once."""
    assert matched(["a.#", "#.c"], ["a.b", "b.c", "a.c", "b.b"]) == [True, True, True, False]
