"""Regular expressions that users supply."""

from __future__ import annotations

from itertools import pairwise

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from broker.core.bounded_pattern import PATTERN_MAX_CHARACTERS, BoundedPattern, linear


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
    """A name of two lines is nothing for RE2: it matches nothing, is logged once, and does not hold up the broker."""
    pattern = BoundedPattern(text)
    with capture_logs() as events:
        assert not pattern.search("a" * 200 + "!\n")
        assert not pattern.search("a" * 199 + "!\n")
    assert [event["event"] for event in events] == ["pattern.timed_out"]


needs_re2 = pytest.mark.skipif(linear("") is None, reason="the extra re2 is not installed")


@needs_re2
@pytest.mark.parametrize("text", ["([a-z]+-?)+$", "(a|aa)+$", "(?i)(A+)+$"])
def test_re2_decides_what_takes_too_long(text: str) -> None:
    """With the extra `re2` a hostile name has an answer, however many there are."""
    pattern = BoundedPattern(text)
    searches = []
    search = pattern._compiled.search

    class Matcher:
        pattern = text

        def search(self, name: str, **options: object) -> object:
            searches.append(name)
            return search(name, **options)

    pattern._compiled = Matcher()
    assert [pattern.try_search("a" * 200 + f"!{number}") for number in "!?," * 10] == [False] * 30
    assert pattern.try_search("a" * 250) is True
    assert set(searches) == {"a" * 200 + "!!"}


@pytest.mark.parametrize("text", ["(?!x)([a-z]+-?)+$", r"(a|aa)+(b)\2$"])
def test_a_name_that_takes_too_long_changes_nothing_for_others(text: str) -> None:
    """A pattern that RE2 does not support is undecided for that name only, with the same bound each time."""
    pattern = BoundedPattern(text)
    assert [pattern.try_search("a" * 200 + f"!{number}") for number in range(20)] == [None] * 20
    assert pattern.try_search("aaabb") is True
    assert pattern.try_search("aaab!") is False


ATOMS = r"a b K . - _ 1 { } ^ $ \. \w \d \s \S \b \B \A \Z \z \v \1 \12 \x41 \pL \Q [a-c] [^a] []a] [[a] [a&&b]".split()
ATOMS += [" ", "\u00e9", "[[:alpha:]_]"]
ENDS = ["", "", "", "*", "+", "?", "{2}", "{1,}", "{,2}", "{0,2}", "{a}", "{e<=1}", "*?", "++", "**"]
GROUPS = ["(?:", "(", "(?i:", "(?i)(", "(?P<n>", "(?=", "(?!", "(?>"]
PATTERNS = st.recursive(
    st.builds("".join, st.lists(st.builds("{}{}".format, st.sampled_from(ATOMS), st.sampled_from(ENDS)), max_size=4)),
    lambda inner: st.builds("{}{}|{}){}".format, st.sampled_from(GROUPS), inner, inner, st.sampled_from(ENDS)),
    max_leaves=4,
)
NAMES = st.text("abcAK1_-. {}&[\u00e9\u212a", max_size=12)


@needs_re2
@given(PATTERNS, st.lists(NAMES, min_size=5, max_size=5))
@example("(?i:k)", ["\u212a"])
@example(r"a{,2}b\12", ["aab\n", "a{,2}b\n"])
def test_both_engines_read_a_pattern_alike(text: str, names: list[str]) -> None:
    """RE2 is asked only where it tells the same as `regex`."""
    try:
        pattern = BoundedPattern(text)
    except ValueError:
        return
    other = linear(text)
    if other is None:
        return
    for name in [*names, "a\n"]:
        if pattern._is_same_in_both(name):
            assert (other.search(name) is not None) == (regex.search(text, name, regex.ASCII) is not None)


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


FAILURES = 9


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
    matcher = pattern._compiled = BusyMatcher(FAILURES)
    with capture_logs() as events:
        assert pattern.try_search("orders") is True
    assert len(matcher.limits_s) == FAILURES + 1
    assert all(after == 2 * before for before, after in pairwise(matcher.limits_s))
    assert not events


def test_a_pattern_that_one_moment_made_slow_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One slow search is retried, because a suspended machine counts as computing."""
    pattern = BoundedPattern("[a-z]+")
    pattern._compiled = BusyMatcher(1)
    moments_s = iter([0.0, 100.0, 100.0])
    monkeypatch.setattr("broker.core.bounded_pattern.thread_time", lambda: next(moments_s))
    assert pattern.try_search("orders") is True


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
