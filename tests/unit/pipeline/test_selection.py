"""The selection of messages of a lake."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from broker.pipeline.selection import pattern_regex
from broker.routing.pattern import split_words
from tests.property.topic_reference import matches

WORDS = st.sampled_from(["a", "b", "", "a+", "$", "ü(", "\n"])
KEY = st.lists(WORDS, max_size=5).map(".".join)
PATTERN = st.lists(st.one_of(WORDS, st.sampled_from(["*", "#"])), max_size=5).map(".".join)


@given(PATTERN, KEY)
def test_a_pattern_is_a_regular_expression_over_dotted_words(pattern: str, key: str) -> None:
    """The regular expression matches exactly the reference's keys, with empty words, no words or special letters."""
    dotted = f".{key}" if key else ""
    found = re.fullmatch(pattern_regex(pattern), dotted) is not None
    assert found == matches(split_words(pattern), split_words(key))
