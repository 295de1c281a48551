"""Regular expressions that somebody typed in."""

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


class BusyMatcher:
    """Matches everything, but only after so many searches that run out of time, in which it computed nothing."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.limits_s: list[float] = []

    def search(self, _name: str, *, timeout: float, **_options: object) -> object:
        """Search once more."""
        self.limits_s.append(timeout)
        if len(self.limits_s) <= self.failures:
            raise TimeoutError
        return self


def test_time_that_others_used_up_does_not_count() -> None:
    """A search that ran out of time while it hardly computed is repeated with more of it, and nothing is logged."""
    pattern = BoundedPattern("[a-z]+")
    matcher = pattern._compiled = BusyMatcher(SLOW_MAX + 1)
    with capture_logs() as events:
        assert pattern.told("orders") is True
    assert len(matcher.limits_s) == SLOW_MAX + 2
    assert all(after == 2 * before for before, after in pairwise(matcher.limits_s))
    assert not events


def test_a_pattern_that_one_moment_made_slow_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stood still counts it as computing; that alone is no verdict."""
    pattern = BoundedPattern("[a-z]+")
    pattern._compiled = BusyMatcher(1)
    moments_s = iter([0.0, 100.0, 100.0])
    monkeypatch.setattr("broker.core.bounded_pattern.thread_time", lambda: next(moments_s))
    assert pattern.told("orders") is True


@pytest.mark.parametrize("text", ["", ".*", "^.*$", "orders", "^orders$", "^amq\\.gen-.*$", "a.b_c/d e"])
def test_what_cannot_be_slow_has_no_time_bound(text: str) -> None:
    """However busy the machine is, a name that is written out is found, and `.*` finds every name."""
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
    """A group or a repetition is enough."""
    pattern = BoundedPattern(text)
    matcher = pattern._compiled = BusyMatcher(0)
    assert pattern.search("name")
    assert len(matcher.limits_s) == 1


def test_a_pattern_that_is_slow_again_and_again_is_given_up() -> None:
    """Ten thousand names cost no more than a handful of time bounds."""
    pattern = BoundedPattern("(a+)+$")
    hostile = "a" * 1000 + "!\n"  # two seconds' work, where 200 of them are little more than the bound
    for _ in range(SLOW_MAX):
        assert pattern.told(hostile) is None
    pattern._compiled = None  # whatever it is asked now, it does not search
    assert not any(pattern.search(f"{hostile}{number}") for number in range(10_000))
