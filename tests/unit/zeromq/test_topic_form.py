"""Routing keys and topic patterns on one side, topic frames and prefixes on the other."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.routing.pattern import split_words, words_match
from broker.zeromq.bridge import TopicForm

DOTTED = TopicForm(trailing_dot=True, words_max=64)
BARE = TopicForm(trailing_dot=False, words_max=64)
FORMS = pytest.mark.parametrize("form", [DOTTED, BARE], ids=["dot", "bare"])
words = st.lists(st.sampled_from(["", "a", "b", "ab", "é", "*", "#"]), max_size=4)


def matches(pattern: str, key: str) -> bool:
    """Return whether a topic pattern matches a routing key."""
    return words_match(split_words(pattern), split_words(key))


@pytest.mark.parametrize(
    ("prefix", "key"),
    [
        (b"", "#"), (b".", "#"), (b"a", "#"), (b"a.", "a.#"), (b"a.b", "a.#"), (b"a.b.", "a.b.#"), (b"..", "..#"),
        (b"a.*.b.", "a.#"), (b"#.", "#"), (b"a.\xff.b.", "a.#"), ("é.".encode(), "é.#"), ("é".encode()[:1], "#"),
    ],
)  # fmt: skip
def test_binding_key_of_a_prefix(prefix: bytes, key: str) -> None:
    """The words that are whole, and everything below them; what is a wildcard in AMQP ends them."""
    assert DOTTED.binding_key(prefix) == key


@pytest.mark.parametrize(
    ("pattern", "dotted", "bare"),
    [
        ("a.b.#", b"a.b.", b"a.b"), ("a.b", b"a.b.", b"a.b"), ("a.*.c", b"a.", b"a"), ("#", b"", b""),
        ("*.a", b"", b""), ("", b".", b""), ("a", b"a.", b"a"),
    ],
)  # fmt: skip
def test_prefix_of_a_pattern(pattern: str, dotted: bytes, bare: bytes) -> None:
    """The words in front of the first wildcard; without the dot a.bc comes too, and the exchange filters it."""
    assert (DOTTED.prefix(pattern), BARE.prefix(pattern)) == (dotted, bare)


@FORMS
@given(words, st.data())
def test_a_prefix_never_asks_for_less(form: TopicForm, parts: list[str], data: st.DataObject) -> None:
    """Every routing key whose topic has a prefix matches the binding key of the prefix, wherever it ends."""
    key = ".".join(parts)
    topic = form.topic(key)
    prefix = topic[: data.draw(st.integers(0, len(topic)))]
    assert matches(form.binding_key(prefix), key)


@FORMS
def test_a_pattern_never_asks_for_less(form: TopicForm) -> None:
    """The topic of every routing key that a pattern matches begins with the prefix of the pattern."""
    patterns = [".".join(parts) for count in range(4) for parts in itertools.product(["a", "", "*", "#"], repeat=count)]
    keys = [".".join(parts) for count in range(4) for parts in itertools.product(["a", "", "ab"], repeat=count)]
    for pattern, key in itertools.product(patterns, keys):
        if matches(pattern, key):
            assert form.topic(key).startswith(form.prefix(pattern)), (pattern, key)


def test_binding_keys_keep_the_limits() -> None:
    """A prefix of more words or bytes than a binding key may have asks for what its first words want."""
    assert TopicForm(trailing_dot=True, words_max=3).binding_key(b"a.b.c.d.") == "a.b.#"
    assert DOTTED.binding_key(b"a." + b"x" * 252 + b".") == "a.#"
    assert len(DOTTED.binding_key(b"x" * 253 + b".")) == 255


def test_keys_of_topics() -> None:
    """A missing dot does not matter; what cannot be a routing key is refused."""
    assert [DOTTED.key(topic) for topic in (b"a.b.", b"a.b", b".", b"", b"a..")] == ["a.b", "a.b", "", "", "a."]
    assert BARE.key(b"a.") == "a."
    for topic in (b"\xff", b"x" * 256):
        with pytest.raises(ValueError, match="a topic"):
            DOTTED.key(topic)
