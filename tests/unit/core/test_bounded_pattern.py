"""Regular expressions that somebody typed in."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from broker.core.bounded_pattern import PATTERN_MAX_CHARACTERS, SLOW_MAX, BoundedPattern


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        ("", "anything", True),
        ("orders", "all-orders-eu", True),
        ("^orders$", "orders-eu", False),
        ("^amq\\.gen", "amq.gen-x", True),
        ("^(?:eu|us)\\.[a-z]+$", "us.orders", True),
        ("[[:alpha:]]{3}", "ab1", False),
        ("^.$", "\u00e9", True),
        ("\\d", "\u0663", False),
        ("a.b", "a\nb", False),
        ("^[0-9a-f]{8}-[0-9a-f]{4}$", "00000000-0000", True),
        ("^[]{99}]{3}$", "]{9", True),
        ("^a\\{99}$", "a{99}", True),
    ],
)
def test_a_pattern_is_searched_in_the_name(text: str, name: str, found: bool) -> None:
    """Unanchored, as Erlang's re:run; classes are ASCII's."""
    assert BoundedPattern(text).search(name) is found


@pytest.mark.parametrize("text", ["(a+)+$", "((a{1,1000}){1,1000}){1,1000}$", "(?R)"])
def test_a_pattern_that_takes_too_long_matches_nothing_and_says_so_once(text: str) -> None:
    """Whoever may name a queue cannot hold up the broker, nor fill its log."""
    pattern = BoundedPattern(text)
    with capture_logs() as events:
        assert not pattern.search("a" * 200 + "!\n")
        assert not pattern.search("a" * 199 + "!\n")
    assert [event["event"] for event in events] == ["pattern.timed_out"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(", r"missing \) at position 1"),
        ("a{2,1}", "min repeat greater than max repeat at position 2"),
        ("(" * 500 + ")" * 500, "nested too deeply"),
        ("a{99999999999999999999}", "repeat count too big"),
        ("(?:(?:(?:a{99}){99}){99})b", "repeats more than 20000 times"),
        ("(?:[^]x]{2,}\\d){9000}", "repeats more than 20000 times"),
        ("(a{" + "9" * 9 + "})", "repeats more than 20000 times"),
        ("a" * (PATTERN_MAX_CHARACTERS + 1), f"longer than {PATTERN_MAX_CHARACTERS} characters"),
    ],
)
def test_what_is_no_pattern_says_why(text: str, reason: str) -> None:
    """One line for whoever typed it."""
    with pytest.raises(ValueError, match=reason):
        BoundedPattern(text)


def test_a_pattern_that_is_slow_again_and_again_is_given_up() -> None:
    """Ten thousand names cost no more than a handful of time bounds."""
    pattern = BoundedPattern("(a+)+$")
    hostile = "a" * 200 + "!\n"
    for _ in range(SLOW_MAX):
        assert not pattern.search(hostile)
    pattern._compiled = None  # whatever it is asked now, it does not search
    assert not any(pattern.search(f"{hostile}{number}") for number in range(10_000))
