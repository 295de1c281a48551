"""Binding keys: words, canonical form and limits."""

from collections.abc import Iterator
from functools import cache
from itertools import product

import pytest

from broker.routing.pattern import BindingKeyError, PatternLimits, parse_pattern, split_words
from tests.property.topic_reference import matches


def keys(alphabet: str, longest: int) -> Iterator[str]:
    """Yield every key of up to `longest` one-letter words, the empty key first."""
    for length in range(longest + 1):
        for words in product(alphabet, repeat=length):
            yield ".".join(words)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("", []),
        (".", ["", ""]),
        ("a", ["a"]),
        ("a..b", ["a", "", "b"]),
        (".a", ["", "a"]),
        ("a.", ["a", ""]),
    ],
)
def test_every_dot_separates(key: str, words: list[str]) -> None:
    """An empty word is a word; the empty key has no words."""
    assert split_words(key) == words


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("#.*.#", "*.#"),
        ("a.#.#", "a.#"),
        ("#.#", "#"),
        ("#.*", "*.#"),
        ("#.#.#", "#"),
        ("a.#.*.*.b.#.c", "a.*.*.#.b.#.c"),
        ("*.#", "*.#"),
        ("a.*.b", "a.*.b"),
        (".#.", ".#."),
        ("", ""),
    ],
)
def test_canonical_form(key: str, text: str) -> None:
    """A run of wildcards with a `#` is replaced by its stars and one `#`."""
    assert parse_pattern(key).text == text


def test_canonical_form_matches_the_same_keys() -> None:
    """Every pattern of up to six words over a, `*` and `#` matches the same keys in canonical form."""
    routing_keys = [split_words(key) for key in keys("ax", 6)]

    @cache
    def language(pattern: str) -> list[bool]:
        words = split_words(pattern)
        return [matches(words, key) for key in routing_keys]

    changed = [key for key in keys("a*#", 6) if parse_pattern(key).text != key]
    assert len(changed) > 500
    for key in changed:
        assert language(parse_pattern(key).text) == language(key), key


def test_canonical_form_is_unique() -> None:
    """The patterns of up to four words over a, b, `*` and `#` have 247 forms, no two of which are equivalent."""
    forms = {parse_pattern(key).text for key in keys("ab*#", 4)}
    routing_keys = [split_words(key) for key in keys("abc", 5)]
    languages = {tuple(matches(split_words(form), key) for key in routing_keys) for form in forms}
    assert len(forms) == 247
    assert len(languages) == 247


@pytest.mark.parametrize("key", ["a#b", "##", "**", "a*", "#a.b", "##.##.##"])
def test_wildcards_are_whole_words(key: str) -> None:
    """A `*` or `#` within a longer word is an ordinary character."""
    assert parse_pattern(key, PatternLimits()).literal


@pytest.mark.parametrize("key", ["", "a#b", "##.##.##", "#.a.#", "#.#.#", ".".join(["#"] * 128), ".".join(["a"] * 64)])
def test_keys_within_the_limits(key: str) -> None:
    """Two `#` and 64 words are allowed in canonical form: `#.#.#`, which RabbitMQ refuses, is `#`."""
    assert parse_pattern(key, PatternLimits()).text is not None


@pytest.mark.parametrize(
    "key", ["#.a.#.b.#", ".".join(["#", "a"] * 60), ".".join(["a"] * 65), ".".join(["*"] * 64 + ["#"])]
)
def test_keys_over_the_limits_are_refused(key: str) -> None:
    """A third `#`, or a 65th word, is refused with a message that names the key."""
    with pytest.raises(BindingKeyError, match="the limit is") as caught:
        parse_pattern(key, PatternLimits())
    assert key in str(caught.value)


def test_limits_are_settings() -> None:
    """A key that the default limit refuses is accepted by a higher limit."""
    assert parse_pattern("#.a.#.b.#", PatternLimits(hashes=3)).words == ("#", "a", "#", "b", "#")
