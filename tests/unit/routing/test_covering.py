"""Covering: tables, every pair of short patterns, and the work per comparison."""

from itertools import product

import pytest

from broker.routing.cover_index import CoverAutomaton, covers, narrowness
from broker.routing.pattern import MQTT, parse_pattern
from tests.property.covering_reference import samples, short_patterns
from tests.property.mqtt_reference import mqtt_matches
from tests.property.topic_reference import matches


@pytest.mark.parametrize(
    ("wider", "narrower"),
    [
        ("#", "#"),
        ("#", ""),
        ("#", "a.*.#.b"),
        ("*", "a"),
        ("*.#", "#.a"),
        ("*.#", "#.a.#"),
        ("*.*.#", "#.a.#.b"),
        ("#.a.*.#", "a.#.b"),
        ("#.a.#", "a.#.b"),
        ("#.b", "a.#.b"),
        ("a.#.b", "a.b"),
        ("a.#.b", "a.*.*.b"),
        ("a.#", "a"),
        ("a.*", "a."),
        ("#.a.#.b.#", "b.a.x.b"),
        ("a.#.a", "a.#.a.#.a"),
        (".#", "."),
    ],
)
def test_covered_pairs(wider: str, narrower: str) -> None:
    """Wildcards cover what they stand for, also nothing, and stars elsewhere; never the reverse."""
    assert covers(parse_pattern(wider), parse_pattern(narrower))
    if wider != narrower:
        assert not covers(parse_pattern(narrower), parse_pattern(wider))


@pytest.mark.parametrize(
    ("wider", "narrower"),
    [
        ("*", "#"),
        ("*.#", "#"),
        ("*.*.#", "#.a"),
        ("a.*", "a"),
        ("a.*", "a.#"),
        ("a.*.b", "a.#.b"),
        ("a.#.a", "a"),
        ("#.a.b", "a.*"),
        ("#.a.#", "*.*"),
        ("#.a.b.#", "#.a.#.b.#"),
        ("*.a", "#.a"),
        ("a.#.b.#.c", "a.#.c"),
        ("", "#"),
        ("", "*"),
        ("*", ""),
        ("a#b", "a.b"),
    ],
)
def test_pairs_that_are_not_covered(wider: str, narrower: str) -> None:
    """One key disproves covering, be it the shortest key or one with an additional word."""
    assert not covers(parse_pattern(wider), parse_pattern(narrower))


# mosquitto's tests of a subscription against an access rule; the rule comes first and must cover
ACCESS_RULES = [
    ("foo/bar", "foo/bar", True),
    ("foo/#", "foo/+/bar", True),
    ("foo/+/bar", "foo/#", False),
    ("#", "+", True),
    ("/#", "+", False),
    ("/#", "/+", True),
    ("+", "#", False),
    ("+/+", "topic/topic/topic", False),
    ("#", "$SYS/uptime", False),
    ("#", "$SYS/#", False),
    ("+/uptime", "$SYS/uptime", False),
    ("$SYS/#", "$SYS/uptime", True),
    ("$SYS/#", "$SYS/+/load", True),
    ("$SYS/#", "#", False),
    ("foo/#", "foo", True),
    ("foo/+", "foo", False),
    ("foo/+", "foo/", True),
    ("foo/+", "foo/$SYS", True),
    ("*/+", "a/b", False),
]


@pytest.mark.parametrize(("rule", "subscription", "covered"), ACCESS_RULES)
def test_access_rules_of_mqtt(rule: str, subscription: str, covered: bool) -> None:
    """A filter that starts with a wildcard does not cover `$` topics; `#` covers its parent level."""
    assert covers(MQTT.parse(rule), MQTT.parse(subscription)) == covered


def test_every_pair_of_short_patterns() -> None:
    """5,465 of 61,009 pairs cover, exactly those whose samples all match; the wider sorts first."""
    patterns = short_patterns()
    keys = sorted({key for pattern in patterns for key in samples(pattern.words, 5)})
    bits = {key: 1 << number for number, key in enumerate(keys)}
    required = [sum(bits[key] for key in samples(pattern.words, 5)) for pattern in patterns]
    matched = [sum(bit for key, bit in bits.items() if matches(pattern.words, key)) for pattern in patterns]
    lost, needless, covering = [], [], 0
    for wider, language in zip(patterns, matched, strict=True):
        automaton = CoverAutomaton(wider)
        for narrower, needed in zip(patterns, required, strict=True):
            covered = automaton.covers(narrower)
            covering += covered
            if covered and needed & ~language:
                lost.append((wider.text, narrower.text))
            elif not covered and not needed & ~language:
                needless.append((wider.text, narrower.text))
            if covered and wider is not narrower:
                assert narrowness(wider) < narrowness(narrower)
    assert not lost  # a wrong answer here would lose messages
    assert not needless
    assert len(patterns) ** 2 == 61_009
    assert covering == 5_465


def test_every_pair_of_short_filters() -> None:
    """MQTT filters of up to three levels cover exactly as the specification's matching of their topics says.

    Topics of four levels suffice: after the third level a filter has ended or matches everything.
    """
    levels = ["a", "$a", "", "+"]
    filters = ["/".join(parts) for length in (1, 2, 3) for parts in product(levels, repeat=length)]
    filters = [text for text in filters if text] + [f"{text}/#" for text in filters] + ["#"]
    topics = ["/".join(parts) for length in range(1, 5) for parts in product(["a", "$a", "", "x"], repeat=length)]
    languages = [
        sum(1 << number for number, topic in enumerate(topics) if mqtt_matches(text, topic)) for text in filters
    ]
    for wider, wide in zip(filters, languages, strict=True):
        automaton = CoverAutomaton(MQTT.parse(wider))
        for narrower, narrow in zip(filters, languages, strict=True):
            if (wider, narrower) == ("+/#", "#"):
                continue  # equal, because no topic has zero levels
            assert automaton.covers(MQTT.parse(narrower)) == (not narrow & ~wide), (wider, narrower)


def test_work_is_one_step_for_each_word() -> None:
    """Each word of the narrower pattern is read at most once, however many paths exist."""
    wider = parse_pattern(".".join(["#", "a"] * 31 + ["#"]))
    narrower = parse_pattern(".".join(["*", "a", "#", "a"] * 16))
    automaton = CoverAutomaton(wider)
    assert automaton.covers(narrower)
    assert automaton.steps <= len(narrower.words)
    automaton.steps = 0
    assert not automaton.covers(parse_pattern(".".join(["a", "#"] * 30)))
    assert automaton.steps <= 60


def test_reading_ends_when_the_answer_is_known() -> None:
    """Reading stops at a last `#` and at the first word that does not match."""
    for key in ("a.#", "a.b"):
        automaton = CoverAutomaton(parse_pattern(key))
        automaton.covers(parse_pattern(".".join(["a", "x"] + ["y"] * 60)))
        assert automaton.steps <= 2
