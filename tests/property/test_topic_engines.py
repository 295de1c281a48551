"""Every engine, alone and within the topic index, against the reference, under changes."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bench.topics.published_engines import ENGINES, make_engine
from broker.routing.index import TopicEngine, TopicIndex, footprint_bytes
from broker.routing.pattern import DIALECTS, Pattern, PatternLimits, TopicDialect
from tests.property.topic_reference import matches
from tests.property.topic_scripts import VOCABULARIES, Step, script

SLACK_BYTES = 512
"""What an engine may hold beyond its first size when all patterns are gone: counters that grew, empty containers."""

QUEUES = st.sampled_from(["q1", "q2", "q3"])
# Every character with a meaning in either dialect occurs in published keys too; "a" is frequent, so that many match.
BINDING_KEYS = {
    "amqp": st.lists(st.sampled_from(["a", "a", "b", "", "*", "*", "#", "#", "a#", "+"]), max_size=5).map(".".join),
    "mqtt": st.tuples(
        st.lists(st.sampled_from(["a", "a", "b", "", "$x", "*", "+", "+", "+"]), max_size=4),
        st.sampled_from(["a", "+", "#", "#"]),
    ).map(lambda levels: "/".join([*levels[0], levels[1]])),
}
ROUTING_KEYS = {
    "amqp": st.lists(st.sampled_from(["a", "a", "b", "", "*", "#", "c", "/"]), max_size=5).map(".".join),
    "mqtt": st.lists(st.sampled_from(["a", "a", "b", "", "$x", "*", "+", "#", "/*", "c"]), max_size=4).map("/".join),
}


class Comparison(RuleBasedStateMachine):
    """One engine alone, another within an index, and a plain table of the bindings."""

    def __init__(self, name: str, dialect: TopicDialect) -> None:
        super().__init__()
        self.dialect = dialect
        self.engine: TopicEngine[str] = make_engine(name, dialect)
        self.empty_bytes = footprint_bytes(self.engine)
        self.index = TopicIndex(make_engine(name, dialect), PatternLimits(hashes=9, words=9), dialect)
        self.empty_index_bytes = self.index.footprint_bytes(str)
        self.bindings: Counter[tuple[str, str]] = Counter()
        self.bound: dict[str, Pattern] = {}
        self.gone: list[str] = []

    def add(self, key: str, queue: str) -> None:
        """Bind once."""
        pattern = self.index.parse(key)
        assert self.index.add(pattern, queue) == ((pattern.text, queue) not in self.bindings)
        self.bindings[pattern.text, queue] += 1
        if pattern.text not in self.bound:
            assert self.engine.find(pattern) is None
            self.engine.add(pattern, pattern.text)
            self.bound[pattern.text] = pattern
        assert self.engine.find(pattern) == pattern.text

    def remove(self, text: str, queue: str) -> None:
        """Unbind once; the engine loses the pattern with its last binding."""
        pattern = self.bound[text]
        last = self.bindings[text, queue] == 1
        assert self.index.remove(pattern, queue) == last
        self.bindings[text, queue] -= 1
        self.bindings += Counter()  # drops the zeros
        if not any(other == text for other, _ in self.bindings):
            assert self.engine.remove(pattern) == text
            assert self.engine.find(pattern) is None
            del self.bound[text]
            self.gone.append(text)

    @initialize(data=st.data(), size=st.integers(0, 12))
    def start(self, data: st.DataObject, size: int) -> None:
        """Start with some patterns, so that matches occur."""
        for _ in range(size):
            self.add(data.draw(BINDING_KEYS[self.dialect.name]), "q1")

    @rule(data=st.data(), queue=QUEUES)
    def bind(self, data: st.DataObject, queue: str) -> None:
        """Bind any key."""
        self.add(data.draw(BINDING_KEYS[self.dialect.name]), queue)

    @precondition(lambda self: self.gone)
    @rule(data=st.data(), queue=QUEUES)
    def bind_again(self, data: st.DataObject, queue: str) -> None:
        """Bind a key that was bound before."""
        self.add(data.draw(st.sampled_from(self.gone)), queue)

    @precondition(lambda self: self.bindings)
    @rule(data=st.data())
    def unbind(self, data: st.DataObject) -> None:
        """Unbind any binding."""
        self.remove(*data.draw(st.sampled_from(sorted(self.bindings))))

    @precondition(lambda self: self.bound)
    @rule(data=st.data())
    def unbind_stranger(self, data: st.DataObject) -> None:
        """Check that unbinding an unknown key is refused and changes nothing."""
        pattern = self.dialect.parse(data.draw(BINDING_KEYS[self.dialect.name]))
        if pattern.text not in self.bound:
            with pytest.raises(KeyError):
                self.engine.remove(pattern)
            with pytest.raises(KeyError):
                self.index.remove(pattern, "q1")

    @rule(data=st.data())
    def match(self, data: st.DataObject) -> None:
        """Look up some keys."""
        for key in data.draw(st.lists(ROUTING_KEYS[self.dialect.name], min_size=3, max_size=6)):
            words = self.dialect.words(key)
            fitting = {text for text, pattern in self.bound.items() if matches(pattern.words, words)}
            assert set(self.engine.match(key)) == fitting, key
            found = self.index.match(key)
            assert sorted(found) == sorted({queue for text, queue in self.bindings if text in fitting}), key

    @invariant()
    def sizes(self) -> None:
        """Check that both engines count their patterns right."""
        assert self.engine.size == self.index.size == len(self.bound)

    def teardown(self) -> None:
        """Unbind everything, and check that nothing is found, nothing is left and the memory is freed."""
        for text, queue in list(self.bindings.elements())[::-1]:
            self.remove(text, queue)
        assert_empty(self.engine, self.empty_bytes)
        assert not any(self.index.counts().values()), self.index.counts()
        assert self.index.match("a") == ()
        assert self.index.footprint_bytes(str) <= self.empty_index_bytes + SLACK_BYTES


def assert_empty(engine: TopicEngine[str], empty_bytes: int) -> None:
    """Check that an engine is in its initial state."""
    assert engine.size == 0
    assert engine.match("a") == engine.match("") == []
    assert not any(engine.counts().values()), engine.counts()
    assert footprint_bytes(engine) <= empty_bytes + SLACK_BYTES


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("name", ENGINES)
def test_engine_equals_the_reference(name: str, dialect: TopicDialect) -> None:
    """Patterns are added, removed and added again, within an index and without, and every match is right."""
    machine = cast("type[Comparison]", partial(Comparison, name, dialect))  # any callable that makes one is accepted
    run_state_machine_as_test(machine, settings=settings(max_examples=15, stateful_step_count=30))


def play(name: str, dialect: TopicDialect, steps: list[Step]) -> None:
    """Run a script from no pattern to none."""
    engine: TopicEngine[str] = make_engine(name, dialect)
    empty_bytes = footprint_bytes(engine)
    for step in steps:
        if step.verb == "add":
            engine.add(step.pattern, step.pattern.text)
        elif step.verb == "remove":
            assert engine.remove(step.pattern) == step.pattern.text
        else:
            assert set(engine.match(step.key)) == step.found, step.key
    assert_empty(engine, empty_bytes)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("name", ENGINES)
def test_many_patterns_equal_the_reference(name: str, vocabulary: str, dialect: TopicDialect) -> None:
    """Hundreds of patterns are added, mostly removed, added again and all removed, and every lookup is right."""
    play(name, dialect, script(dialect.name, vocabulary, seed=7))


@pytest.mark.torture
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_many_scripts_equal_the_reference(vocabulary: str, dialect: TopicDialect) -> None:
    """A hundred scripts like the one above are right."""
    for seed in range(100, 200):
        steps = script.__wrapped__(dialect.name, vocabulary, seed)
        for name in ENGINES:
            play(name, dialect, steps)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_scripts_are_worth_the_comparison(vocabulary: str, dialect: TopicDialect) -> None:
    """Most lookups of the scripts find something, some find nothing, and removed patterns are added again."""
    steps = script(dialect.name, vocabulary, seed=7)
    found = [len(step.found) for step in steps if step.verb == "match"]
    assert len(found) > 100
    assert sum(map(bool, found)) > len(found) / 2
    assert not all(found)
    added = Counter(step.pattern.text for step in steps if step.verb == "add")
    assert max(added.values()) > 1
