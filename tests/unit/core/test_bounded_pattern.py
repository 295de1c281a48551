"""Regular expressions that users supply."""

from __future__ import annotations

from itertools import pairwise

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
    """A pattern is unanchored, like Erlang's re:run, and its classes are ASCII."""
    assert BoundedPattern(text).search(name) is found


@pytest.mark.parametrize("text", ["(a|aa)+$", "((a{1,1000}){1,1000}){1,1000}$", "(?R)"])
def test_a_pattern_that_takes_too_long_matches_nothing_and_says_so_once(text: str) -> None:
    """A pattern that takes too long matches nothing, is logged once, and does not hold up the broker."""
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
    """An invalid pattern is refused with one line of explanation."""
    with pytest.raises(ValueError, match=reason):
        BoundedPattern(text)


class BusyMatcher:
    """Matches everything, but the first searches run out of time without using CPU."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.limits_s: list[float] = []

    def search(self, _name: str, *, timeout: float, **_options: object) -> object:
        """Count the search."""
        self.limits_s.append(timeout)
        if len(self.limits_s) <= self.failures:
            raise TimeoutError
        return self


def test_time_that_others_used_up_does_not_count() -> None:
    """A search that ran out of time with little CPU time is repeated with a longer limit, and nothing is logged."""
    pattern = BoundedPattern("[a-z]+")
    matcher = pattern._compiled = BusyMatcher(SLOW_MAX + 1)
    with capture_logs() as events:
        assert pattern.told("orders") is True
    assert len(matcher.limits_s) == SLOW_MAX + 2
    assert all(after == 2 * before for before, after in pairwise(matcher.limits_s))
    assert not events


def test_a_pattern_that_one_moment_made_slow_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One slow search is retried, because a suspended machine counts as computing."""
    pattern = BoundedPattern("[a-z]+")
    pattern._compiled = BusyMatcher(1)
    moments_s = iter([0.0, 100.0, 100.0])
    monkeypatch.setattr("broker.core.bounded_pattern.thread_time", lambda: next(moments_s))
    assert pattern.told("orders") is True


@pytest.mark.parametrize("text", ["", ".*", "^.*$", "orders", "^orders$", "^amq\\.gen-.*$", "a.b_c/d e"])
def test_what_cannot_be_slow_has_no_time_bound(text: str) -> None:
    """A literal name and `.*` match without a time limit, however busy the machine is."""
    pattern = BoundedPattern(text)
    compiled, bounded = pattern._compiled, []

    class Matcher:
        def search(self, name: str, **options: object) -> object:
            bounded.append(options)
            return compiled.search(name)

    pattern._compiled = Matcher()
    assert [pattern.search(name) for name in ("orders", "amq.gen-1", "axb_c/d e", "\n")] == [
        compiled.search(name) is not None for name in ("orders", "amq.gen-1", "axb_c/d e", "\n")
    ]
    assert bounded == [{}] * 4


@pytest.mark.parametrize(
    "text", [".*.*.*.*.*x$", "(a|a)(a|a)x", "a?a?a?a?aaaa", "^(orders|[a-z]+)$", "x{3}", ".*a", "[a]"]
)
def test_what_may_be_slow_has_a_time_bound(text: str) -> None:
    """A pattern with a group or a repetition has a time limit."""
    pattern = BoundedPattern(text)
    matcher = pattern._compiled = BusyMatcher(0)
    assert pattern.search("name")
    assert len(matcher.limits_s) == 1


def test_a_pattern_that_is_slow_again_and_again_is_given_up() -> None:
    """A pattern that is slow repeatedly is disabled: ten thousand names cost a handful of time limits."""
    pattern = BoundedPattern("(a+)+$")
    hostile = "a" * 1000 + "!\n"  # two seconds of work; 200 of them are little more than the time limit
    for _ in range(SLOW_MAX):
        assert pattern.told(hostile) is None
    pattern._compiled = None  # a disabled pattern does not search
    assert not any(pattern.search(f"{hostile}{number}") for number in range(10_000))
