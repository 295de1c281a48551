"""The plain bitmap: the article's table, its rows and their limit, and the positions of removed patterns."""

import random

from bench.topics.published_engines import PlainBitmap
from broker.routing.pattern import MQTT, parse_pattern, split_words
from tests.property.topic_reference import matches


def fill(patterns: list[str], *, bits_most: int = 10**6) -> PlainBitmap[str]:
    """Return a bitmap of canonical patterns, each with itself as the target."""
    engine: PlainBitmap[str] = PlainBitmap(bits_most=bits_most)
    for pattern in patterns:
        engine.add(parse_pattern(pattern), pattern)
    return engine


def test_the_table_of_the_article() -> None:
    """WSO2, WSO2.* and WSO2.Products are columns 0, 1 and 2; both keys have the article's rows."""
    engine = fill(["WSO2", "WSO2.*", "WSO2.Products"])
    assert engine.match("WSO2") == ["WSO2"]
    assert engine.match("WSO2.Products") == ["WSO2.*", "WSO2.Products"]
    assert engine.table() == {"WSO2": "100", "WSO2.Products": "011"}


def test_a_new_key_tests_every_pattern_and_a_known_one_none() -> None:
    """The first lookup of a key tests every pattern; later ones read one row."""
    engine = fill([f"a.*.{number}" for number in range(50)])
    assert engine.match("a.x.7") == ["a.*.7"]
    assert engine.visited == 50
    assert engine.match("a.x.7") == ["a.*.7"]
    assert engine.visited == 51


def test_a_new_pattern_tests_every_row() -> None:
    """Known keys find a pattern that is bound later, at a new position or at a reused one."""
    engine = fill(["a", "b"])
    for key in ("a", "b", "a.b"):
        engine.match(key)
    engine.visited = 0
    engine.add(parse_pattern("a.#"), "a.#")
    assert engine.visited == 3
    assert engine.table() == {"a": "101", "b": "010", "a.b": "001"}
    engine.remove(parse_pattern("b"))
    engine.add(parse_pattern("*.b"), "*.b")
    assert engine.table() == {"a": "101", "b": "000", "a.b": "011"}


def test_deleted_positions_are_used_again() -> None:
    """Removing the middle of WSO2, WSO2.* and WSO2.# clears its bits, moves no other, and frees its position."""
    engine = fill(["WSO2", "WSO2.*", "WSO2.#"])
    assert sorted(engine.match("WSO2.MB")) == ["WSO2.#", "WSO2.*"]
    engine.match("WSO2")
    assert engine.table() == {"WSO2.MB": "011", "WSO2": "101"}
    assert engine.remove(parse_pattern("WSO2.*")) == "WSO2.*"
    assert engine.table() == {"WSO2.MB": "001", "WSO2": "101"}
    engine.add(parse_pattern("*"), "*")
    assert engine.table() == {"WSO2.MB": "001", "WSO2": "111"}
    assert engine.counts()["columns"] == 3


def test_rows_are_bounded() -> None:
    """Neither new keys nor new patterns let the rows grow beyond the limit, and the answers stay right."""
    engine = fill(["a.*"], bits_most=400)
    for number in range(1000):
        assert engine.match(f"a.{number % 30}") == ["a.*"]
        if number % 20 == 0:
            engine.add(parse_pattern(f"b.{number}"), "b")
        counts = engine.counts()
        assert counts["rows"] * counts["columns"] <= 400


def test_no_row_is_kept_without_patterns() -> None:
    """All removals leave nothing, and later keys leave no row."""
    engine = fill(["a", "#", "*.b"])
    for key in ("a", "b", "x.b", ""):
        engine.match(key)
    for pattern in ["#", "a", "*.b"]:
        engine.remove(parse_pattern(pattern))
    assert engine.match("a") == []
    assert not any(engine.counts().values())
    assert engine.size == 0


def test_answers_are_the_references() -> None:
    """Adds, removals and matches in any order stay right, with few rows, empty words and wildcards in keys."""
    source = random.Random(3)
    engine = fill([], bits_most=30)
    held: dict[str, tuple[str, ...]] = {}
    for _ in range(500):
        pattern = parse_pattern(".".join(source.choices(["a", "b", "", "*", "#"], k=source.randrange(4))))
        if pattern.text in held:
            if source.random() < 0.7:
                assert engine.remove(pattern) == pattern.text
                del held[pattern.text]
        else:
            engine.add(pattern, pattern.text)
            held[pattern.text] = pattern.words
        key = ".".join(source.choices(["a", "b", "", "*", "#"], k=source.randrange(4)))
        expected = sorted(text for text, words in held.items() if matches(words, split_words(key)))
        assert sorted(engine.match(key)) == expected


def test_mqtt_reads_its_own_words() -> None:
    """In MQTT a slash separates, and a leading wildcard does not match `$`."""
    engine: PlainBitmap[str] = PlainBitmap(MQTT)
    for text in ("#", "home/+", "$SYS/#"):
        engine.add(MQTT.parse(text), text)
    assert sorted(engine.match("home/x")) == ["#", "home/+"]
    assert engine.match("$SYS/up") == ["$SYS/#"]
