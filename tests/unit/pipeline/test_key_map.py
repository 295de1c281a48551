"""Mapping old routing keys to new ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from broker.pipeline.routes.key_map import BadKeyMap, KeyMap, read_key_map
from broker.routing.pattern import PatternLimits
from tests.property.topic_reference import matches


@pytest.mark.parametrize(
    ("pair", "old", "new"),
    [
        ("a.b=x", "a.b", "x"),
        ("a.b=x", "a.c", "a.c"),
        ("a.b=", "a.b", ""),
        ("stock.*.eu=test.*", "stock.acme.eu", "test.acme"),
        ("*.*=*.swapped.*", "a.b", "a.swapped.b"),
        ("a.#=b.#", "a", "b"),
        ("a.#=b.#", "a.x.y", "b.x.y"),
        ("#=copy.#", "", "copy"),
        ("#.eu.#=#.us.#", "a.eu.b.eu.c", "a.us.b.eu.c"),
        ("*.#=#", "a..b", ".b"),
    ],
)
def test_wildcards_on_the_right_are_what_those_on_the_left_met(pair: str, old: str, new: str) -> None:
    """The n-th wildcard of a kind on the right stands for the n-th on the left; other keys are unchanged."""
    assert read_key_map([pair])(old) == new


def test_a_key_wins_over_patterns_and_the_first_pattern_over_later_ones() -> None:
    """A literal key wins over patterns, and the first matching pattern over later ones, however specific."""
    mapped = KeyMap([("#", "any"), ("a.*", "never"), ("a.b", "named")])
    assert (mapped("a.b"), mapped("a.c"), len(mapped)) == ("named", "any", 3)


WORD = st.sampled_from(["a", "b", ""])


@given(st.lists(st.sampled_from(["a", "b", "*", "#"]), max_size=5), st.lists(WORD, max_size=6))
def test_a_pattern_meets_words_exactly_where_it_matches(pattern: list[str], words: list[str]) -> None:
    """A pattern captures words exactly where the reference matches; substituting them gives the key."""
    assume(pattern.count("#") <= PatternLimits().hashes)
    old, key = ".".join(pattern), ".".join(words)
    words = key.split(".") if key else []
    assert KeyMap([(old, f"new.{old}" if old else "new")])(key) == (
        ".".join(["new", *words]) if matches(pattern, words) else key
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [("map.json", '{"a.*": "b.*", "c": "d"}'), ("map.csv", "a.*,b.*\n\nc , d\n")],
)
def test_a_file_is_json_or_csv(tmp_path: Path, name: str, text: str) -> None:
    """The JSON and the CSV form have the same meaning."""
    path = tmp_path / name
    path.write_text(text)
    mapped = read_key_map([str(path), "e=f"])
    assert [mapped(key) for key in ("a.x", "c", "e")] == ["b.x", "d", "f"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("a=*", "more '*' than the left"),
        ("a.*=#", "more '#' than the left"),
        ("#.#.#=x", "at most 2 '#'"),
        ("a=" + "x" * 256, "at most 255 bytes"),
        ("nowhere.csv", "neither old=new nor a file"),
    ],
)
def test_a_bad_map_is_said_in_one_line(source: str, said: str) -> None:
    """An invalid map is refused before anything is published."""
    with pytest.raises(BadKeyMap, match=r"^[^\n]*$") as caught:
        read_key_map([source])
    assert said in str(caught.value)


def test_a_file_that_is_no_csv_is_said_in_one_line(tmp_path: Path) -> None:
    """The refusal names the file."""
    (tmp_path / "map").write_text(f"a,{'b' * 140_000}")
    with pytest.raises(BadKeyMap, match=r"/map: not valid CSV: field larger than field limit"):
        read_key_map([str(tmp_path / "map")])


def test_two_new_keys_for_one_are_refused() -> None:
    """Two new keys for one old key are refused."""
    with pytest.raises(BadKeyMap, match="mapped twice"):
        KeyMap([("a", "b"), ("a", "c")])


def test_a_new_key_that_no_frame_holds_is_refused() -> None:
    """A new key that exceeds a frame is reported with both keys."""
    with pytest.raises(BadKeyMap, match="at most 255 bytes"):
        KeyMap([("*", "*." + "y" * 200)])("x" * 100)
