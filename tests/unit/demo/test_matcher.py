"""The independent matcher: RabbitMQ's semantics of `*` and `#`, from hand-made tables."""

import pytest

from demo.matcher import matched, matches

# The binding keys and routing keys of RabbitMQ's own topic tests, with the expected matches.
KEYS = (
    "a.b.c",
    "a.c.b",
    "a.b.b",
    "",
    "b.b.c",
    "a.a.a.a.a",
    "vodka.gin",
    "vodka.martini",
    "nothing.here.at.all",
    "oneword",
    "a..c",
    "a.",
)
TABLE: list[tuple[str, set[str]]] = [
    ("a.b.c", {"a.b.c"}),
    ("a.*.c", {"a.b.c", "a..c"}),
    ("a.#.b", {"a.c.b", "a.b.b"}),
    ("a.b.b.c", set()),
    ("#", set(KEYS)),
    ("#.#", set(KEYS)),
    ("*", {"oneword"}),
    ("#.b", {"a.c.b", "a.b.b"}),
    ("*.#", set(KEYS) - {""}),
    ("#.*", set(KEYS) - {""}),
    ("*.*", {"vodka.gin", "vodka.martini", "a."}),
    ("vodka.*", {"vodka.gin", "vodka.martini"}),
    ("a.#", {"a.b.c", "a.c.b", "a.b.b", "a.a.a.a.a", "a..c", "a."}),
    ("#.b.#", {"a.b.c", "a.c.b", "a.b.b", "b.b.c"}),
    ("#.a.#.a.#", {"a.a.a.a.a"}),
    ("a.*.#", {"a.b.c", "a.c.b", "a.b.b", "a.a.a.a.a", "a..c", "a."}),
    ("", {""}),
    ("a..c", {"a..c"}),
    ("a.#.#.c", {"a.b.c", "a..c"}),
    ("a.*.#.*.c", set()),
    ("A.B.C", set()),
    ("a.b", set()),
    ("oneword.#", {"oneword"}),
    ("#.oneword", {"oneword"}),
]


@pytest.mark.parametrize(("binding_key", "expected"), TABLE)
def test_binding_key_matches_what_rabbitmq_says(binding_key: str, expected: set[str]) -> None:
    """Each binding key matches exactly the routing keys that the table gives."""
    assert {key for key in KEYS if matches([binding_key], key)} == expected


def test_signs_of_regular_expressions_are_plain_words() -> None:
    """Characters of regular expressions, as in `.+` or `b|c`, are literal."""
    assert matches(["a.b|c"], "a.b|c")
    assert not matches(["a.b|c"], "a.b")
    assert not matches(["a+.c"], "aa.c")


def test_wildcards_inside_a_word_are_plain_letters() -> None:
    """`*` and `#` are wildcards only as whole words."""
    assert matches(["a*.#b"], "a*.#b")
    assert not matches(["a*.b"], "ax.b")


def test_a_line_break_is_a_letter_like_any_other() -> None:
    """`*` matches a word with a line break, and the end of the key is its real end."""
    assert matches(["a.*"], "a.b\n")
    assert not matches(["a.b"], "a.b\n")


def test_several_binding_keys_match_where_one_of_them_does() -> None:
    """A queue with overlapping bindings gets a message once."""
    assert matched(["a.#", "#.c"], ["a.b", "b.c", "a.c", "b.b"]) == [True, True, True, False]
