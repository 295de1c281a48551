"""The independent matcher: RabbitMQ's semantics of `*` and `#`, from hand-made tables."""

import pytest

from demo.plan import matched

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
    assert {key for key, hit in zip(KEYS, matched([binding_key], KEYS), strict=True) if hit} == expected


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
