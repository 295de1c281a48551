"""Covering: every pair of short patterns, and the work per comparison."""

from itertools import product

from broker.routing.cover_index import CoverAutomaton, narrowness
from broker.routing.pattern import MQTT, parse_pattern
from tests.property.covering_reference import samples, short_patterns
from tests.property.mqtt_reference import mqtt_matches
from tests.property.topic_reference import matches

# mosquitto's tests of a subscription against an access rule; the rule comes first and must cover


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
