"""The trie of cached routing keys against the reference, under changes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.routing.key_trie import KeyTrie
from broker.routing.pattern import DIALECTS, BindingKeyError, PatternLimits
from tests.property.topic_reference import matches

WORDS = st.lists(st.sampled_from(["a", "b", "", "*", "#", "+", "$", "."]), max_size=5)
STEPS = st.lists(st.tuples(st.sampled_from(["turn", "turn", "find"]), WORDS), max_size=80)


@pytest.mark.parametrize(("name", "separator"), [("amqp", "."), ("mqtt", "/")])
@given(steps=STEPS)
@settings(max_examples=150)
def test_found_are_the_keys_that_match(name: str, separator: str, steps: list[tuple[str, list[str]]]) -> None:
    """While keys come and go, each pattern finds the reference's keys, once each."""
    dialect = DIALECTS[name]
    trie = KeyTrie(dialect.words)
    held: set[str] = set()
    for verb, words in steps:
        text = separator.join(words)
        if verb == "turn":
            if text in held:
                trie.remove(text)
                held.remove(text)
            else:
                trie.add(text)
                held.add(text)
            continue
        try:
            pattern = dialect.parse(text, PatternLimits(hashes=9, words=99)).words
        except BindingKeyError:
            continue
        found = trie.find(pattern, 10**9)
        assert found is not None
        assert len(found) == len(set(found))
        assert set(found) == {key for key in held if matches(pattern, dialect.words(key))}
    for key in held:
        trie.remove(key)
    assert trie.counts() == {"keys": 0, "nodes": 0}
