"""The constituent bitmap: the article's tables row by row, the work per match, and memory after removals."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import pytest
from bitarray import bitarray

from broker.routing.engines.bitmap import ConstituentBitmap
from broker.routing.engines.bitmap_side import Side
from broker.routing.index import footprint_bytes
from broker.routing.pattern import HASH, MQTT, STAR, parse_pattern, split_words
from tests.property.topic_reference import matches

TRADES = ["trade", "forex.eur", "forex.*"]


def fill(patterns: Sequence[str], *, literals_apart: bool = True) -> ConstituentBitmap[str]:
    """Return a bitmap of patterns, each with itself as the target."""
    engine: ConstituentBitmap[str] = ConstituentBitmap(literals_apart=literals_apart)
    for pattern in patterns:
        engine.add(parse_pattern(pattern), pattern)
    return engine


@dataclass(frozen=True)
class DrawnTable:
    """The table of one constituent as the article draws it: a string of 0 and 1 for each row, a digit for each pattern.

    `null` is the row of a key that has ended before this place, `other` that of a word that no pattern has here.
    """

    null: str
    words: Mapping[str, str]
    other: str


def drawn(engine: ConstituentBitmap[str], place: int) -> DrawnTable:
    """Return a table: the columns by the length of their patterns, those with a `#` last."""
    sides = [closed.side for closed in engine._closed.values()] + ([engine._open.head] if engine._open else [])
    tables = [side.tables[place] for side in sides if place < len(side.tables)]
    names = sorted({word for table in tables for word in (*table.dense, *table.few)})
    return DrawnTable(
        row(engine, place, None), {word: row(engine, place, word) for word in names}, row(engine, place, STAR)
    )


def row(engine: ConstituentBitmap[str], place: int, word: str | None) -> str:
    """Return a row; None means the end of the key, `*` any other word."""
    text = ""
    for _, closed in sorted(engine._closed.items()):
        past = ended(closed.side, place)
        bits = past if word is None else taking(closed.side, place, word) & ~past
        for column, pattern in enumerate(closed._texts):
            if pattern is None or HASH not in parse_pattern(pattern).words:
                text += "01"[bits[column]]
    opened = engine._open
    if opened is not None:
        fits = opened.fits[min(place, len(opened.fits) - 1)]
        bits = fits if word is None else taking(opened.head, place, word) | ended(opened.head, place)
        text += bits.to01()[: opened.width()]
    return text


def taking(side: Side, place: int, word: str) -> bitarray:
    """Return the columns that take a word at a place."""
    if place >= len(side.tables):
        return bitarray(side._columns)
    table = side.tables[place]
    bits = table.dense.get(word, table.default).copy()
    bits[table.few.get(word, [])] = 1
    return bits


def ended(side: Side, place: int) -> bitarray:
    """Return the columns that end before a place."""
    bits = bitarray(side._columns)
    for end in side.ends[: place + 1]:
        if end is not None:
            bits |= end
    return bits


def right(patterns: Sequence[str], key: str) -> list[str]:
    """Return the patterns that match a key, sorted."""
    words = split_words(key)
    return sorted(pattern for pattern in patterns if matches(split_words(pattern), words))


def both(left: str, right_: str) -> str:
    """Return the AND of two rows."""
    return "".join("1" if pair == ("1", "1") else "0" for pair in zip(left, right_, strict=True))


def test_the_tables_of_the_article() -> None:
    """trade, forex.eur and forex.*: rows null, trade, forex and other; then rows null, eur and other."""
    engine = fill(TRADES, literals_apart=False)
    assert drawn(engine, 0) == DrawnTable(null="000", words={"trade": "100", "forex": "011"}, other="000")
    assert drawn(engine, 1) == DrawnTable(null="100", words={"eur": "011"}, other="001")


def test_the_lookups_of_the_article() -> None:
    """forex.eur is 011 AND 011, forex.pound is 011 AND 001; the remaining bits are the matches."""
    engine = fill(TRADES, literals_apart=False)
    first, second = drawn(engine, 0), drawn(engine, 1)
    assert both(first.words["forex"], second.words["eur"]) == "011"
    assert sorted(engine.match("forex.eur")) == ["forex.*", "forex.eur"]
    assert both(first.words["forex"], second.other) == "001"
    assert engine.match("forex.pound") == ["forex.*"]
    assert both(first.words["trade"], second.null) == "100"
    assert engine.match("trade") == ["trade"]


def test_a_longer_pattern_gets_a_third_table() -> None:
    """WSO2 and WSO2.Products end before the third word of WSO2.Products.MB, so null is 1 for both."""
    engine = fill(["WSO2", "WSO2.Products"], literals_apart=False)
    assert drawn(engine, 2) == DrawnTable(null="11", words={}, other="00")
    engine.add(parse_pattern("WSO2.Products.MB"), "WSO2.Products.MB")
    assert drawn(engine, 0) == DrawnTable(null="000", words={"WSO2": "111"}, other="000")
    assert drawn(engine, 1) == DrawnTable(null="100", words={"Products": "011"}, other="000")
    assert drawn(engine, 2) == DrawnTable(null="110", words={"MB": "001"}, other="000")


def test_a_last_hash_sets_every_bit_from_its_place_on() -> None:
    """WSO2.# matches any second word, none, and any third word."""
    engine = fill(["WSO2", "WSO2.*", "WSO2.#"], literals_apart=False)
    assert drawn(engine, 1) == DrawnTable(null="101", words={}, other="011")
    assert drawn(engine, 2) == DrawnTable(null="111", words={}, other="001")


def test_a_deleted_position_is_used_again() -> None:
    """Removing the middle pattern clears its bits and moves no other; the next pattern reuses its position."""
    engine = fill(["MB.*", "WSO2.*", "*.Products", "WSO2", "WSO2.#"], literals_apart=False)
    before = DrawnTable(null="00000", words={"WSO2": "10101", "MB": "01010"}, other="00010")
    assert drawn(engine, 0).words.keys() == {"WSO2", "MB"}
    assert drawn(engine, 0).other == before.other
    assert drawn(engine, 0).words["WSO2"] == "10111"
    engine.remove(parse_pattern("WSO2.*"))
    assert drawn(engine, 0) == DrawnTable(null="00000", words={"WSO2": "10011", "MB": "01010"}, other="00010")
    assert drawn(engine, 1).other == "01001"
    engine.add(parse_pattern("ESB.*"), "ESB.*")
    assert drawn(engine, 0).words["ESB"] == "00110"
    assert drawn(engine, 1).other == "01101"
    assert sorted(engine.match("WSO2.Products")) == ["*.Products", "WSO2.#"]


def test_the_articles_removal_leaves_the_others() -> None:
    """After WSO2.* is removed from WSO2, WSO2.* and WSO2.#, keys still find the other two patterns."""
    engine = fill(["WSO2", "WSO2.*", "WSO2.#"])
    assert engine.remove(parse_pattern("WSO2.*")) == "WSO2.*"
    assert sorted(engine.match("WSO2")) == ["WSO2", "WSO2.#"]
    assert engine.match("WSO2.MB") == ["WSO2.#"]


@pytest.mark.parametrize("literals_apart", [True, False])
def test_names_of_rows_are_ordinary_words(literals_apart: bool) -> None:
    """null, other, `*` and `#` in keys, and null and other in patterns, are ordinary words."""
    patterns = ["forex", "forex.eur", "null", "other", "forex.null", "*.other", "null.#", "#.other", "forex.*"]
    engine = fill(patterns, literals_apart=literals_apart)
    for first in ["", "null", "other", "*", "#", "forex", "eur"]:
        for second in [None, "", "null", "other", "*", "#", "forex", "eur"]:
            key = first if second is None else f"{first}.{second}"
            assert sorted(engine.match(key)) == right(patterns, key), key


def test_a_match_looks_at_rows_and_not_at_patterns() -> None:
    """A short key reads one row per word, whatever is bound; a long key as many rows as the patterns need."""
    engine = fill([f"{first}.*.{second}.x" for first in range(100) for second in range(100)])
    assert engine.match("7.y.9.x") == ["7.*.9.x"]
    assert engine.visited == 4
    for number in range(1000):
        engine.add(parse_pattern(f"{number}.#.x"), f"{number}.#.x")
    engine.visited = 0
    assert sorted(engine.match("7.y.9.x")) == ["7.#.x", "7.*.9.x"]
    assert engine.visited == 4
    engine.visited = 0
    assert engine.match("7.1.2.3.4.5.x") == ["7.#.x"]
    assert engine.visited == 1 + 1 + 1  # its length, the first word, the last word


@pytest.mark.parametrize("length", range(12))
def test_keys_of_any_length_find_the_hashes(length: int) -> None:
    """Keys longer than the tables get the right answers, also with several `#`."""
    patterns = ["#", "a.#", "#.a", "a.#.a", "*.#", "*.*.*.#", "#.b.#", "a.#.b.#.a", "#.b.*.#.a", "*.a.#.a.*"]
    patterns += [".".join(["*"] * stars) + ".#.a" for stars in range(1, 10)]
    engine = fill(patterns)
    for words in (["a"] * length, ["b", *["a"] * length][:length], ["a", "b"] * length):
        key = ".".join(words[:length])
        assert sorted(engine.match(key)) == right(patterns, key), key


def hostile() -> list[str]:
    """Return 10,935 canonical patterns with two and three `#` over two words and stars."""
    middles = [".".join(words) for words in product("ab*", repeat=7)]
    return [f"{start}.{middle}.#" for start in ("#.a", "#.b", "#.a.#.b", "#.b.#.a", "#.a.*.#.a") for middle in middles]


def test_hostile_patterns_cost_a_bounded_number_of_rows() -> None:
    """Ten thousand patterns like `#.a.#`, all of them candidates, cost a key of 64 words a few rows per word."""
    patterns = hostile()
    engine = fill(patterns)
    for key in (".".join(["b"] * 32 + ["a"] * 32), ".".join(["a", "b"] * 32), ".".join(["c"] * 63 + ["a"])):
        engine.visited = 0
        engine.match(key)
        assert engine.visited <= 64 * 2 + 1  # one table: 9 to 12 places are 12
    engine.visited = 0
    assert engine.match(".".join(["c"] * 64)) == []
    assert engine.visited == 1  # no word of the key follows a first `#`
    sample = random.Random(5).sample(patterns, 100)
    few = fill(sample)
    for key in (".".join(["b"] * 12 + ["a"] * 12), ".".join(["a", "b"] * 12), "b.a.a.b.a", "a"):
        assert sorted(few.match(key)) == right(sample, key)


def test_fifteen_hashes_are_followed_once() -> None:
    """Fifteen `#` against 31 equal words: C(46,15) paths, two rows per word."""
    engine = fill([".".join(["#", "a"] * 15 + ["#"])])
    assert len(engine.match(".".join(["a"] * 31))) == 1
    assert engine.visited == 2 * 31 + 1
    assert engine.match(".".join(["a"] * 14)) == []


def test_answers_are_the_references_while_tables_grow_and_shrink() -> None:
    """Answers stay right while up to 2,000 patterns come and go, rows appear and shrink, and columns move."""
    source = random.Random(2)
    words = ["a", "b", "c", "d", "", *(str(number) for number in range(12)), "*", "*", "*", "#"]
    engine = fill([])
    held: list[str] = []
    known: set[str] = set()
    peaks: list[dict[str, int]] = []
    for target in (2000, 300, 900, 0):
        while len(held) != target:
            if len(held) < target:
                pattern = parse_pattern(".".join(source.choices(words, k=source.randrange(6))))
                if pattern.text not in known:
                    engine.add(pattern, pattern.text)
                    held.append(pattern.text)
                    known.add(pattern.text)
            else:
                text = held.pop(source.randrange(len(held)))
                known.remove(text)
                assert engine.remove(parse_pattern(text)) == text
            if len(held) % 97 == 0:
                key = ".".join(source.choices(words, k=source.randrange(7)))
                assert sorted(engine.match(key)) == right(held, key)
        assert engine.size == target
        assert all(engine.find(parse_pattern(text)) == text for text in held)
        counts = dict(engine.counts())
        peaks.append(counts)
        assert counts["columns"] <= 3 * target  # several `#` take two columns; at most half of each kind are deleted
    assert peaks[0]["rows"] > 50
    assert peaks[0]["lists"] > 0
    assert peaks[1]["columns"] < peaks[0]["columns"]
    assert peaks[1]["rows"] < peaks[0]["rows"]
    assert not any(engine.counts().values())


def test_no_bit_of_a_removed_pattern_is_left() -> None:
    """A dozen positions that long patterns reuse, mostly with several `#`, match the last pattern only."""
    source = random.Random(9)
    engine = fill([])
    held: list[str] = []
    for _ in range(1500):
        if len(held) >= 12:
            engine.remove(parse_pattern(held.pop(source.randrange(12))))
        pattern = parse_pattern(".".join(source.choices(["a", "b", "*", "#"], k=source.randrange(1, 11))))
        if pattern.text not in held:
            engine.add(pattern, pattern.text)
            held.append(pattern.text)
        key = ".".join(source.choices(["a", "b"], k=source.randrange(13)))
        assert sorted(engine.match(key)) == right(held, key)


def test_words_of_few_columns_among_many() -> None:
    """A word with seven of 2,500 columns finds the patterns that match the rest of the key, and stars."""
    patterns = [f"*.x.{number}.x" for number in range(2400)]
    patterns += [f"*.{word}.{number}.x" for word in range(20) for number in range(7)]
    engine = fill([*patterns, "*.*.3.x", "*.*.*.y"])
    table = engine._closed[4].side.tables[1]
    assert table.few.keys() == {str(word) for word in range(20)}
    assert table.dense.keys() == {"x"}
    assert sorted(engine.match("a.17.3.x")) == ["*.*.3.x", "*.17.3.x"]
    assert sorted(engine.match("a.17.6.x")) == ["*.17.6.x"]
    assert engine.match("a.17.7.x") == []
    assert engine.match("a.17.3.y") == ["*.*.*.y"]


@pytest.mark.parametrize("literals_apart", [True, False])
def test_a_look_up_leaves_nothing(literals_apart: bool) -> None:
    """Keys with unknown words, of any length, leave the tables unchanged."""
    engine = fill(["a.*", "a.b.c", "#.x.#", "*.y.#.z", "#.a.#.b"], literals_apart=literals_apart)
    counts, footprint = dict(engine.counts()), footprint_bytes(engine)
    for key in ["", "q", "a.q", ".".join("abcdefghij"), ".".join(["x"] * 200), "*.#", "x.y.z"]:
        engine.match(key)
    engine.visited = 0
    assert dict(engine.counts()) == counts
    assert footprint_bytes(engine) == footprint


def test_memory_is_back_after_the_removals() -> None:
    """Removing 3,000 patterns in any order frees their memory."""
    empty = footprint_bytes(fill([]))
    source = random.Random(4)
    patterns = [f"{number % 7}.*.{number}" for number in range(1000)]
    patterns += [f"{number % 7}.#.{number}" for number in range(1000)]
    patterns += [f"#.{number}.#.{number % 7}" for number in range(500)] + [f"lit.{number}" for number in range(500)]
    engine = fill(patterns)
    full_bytes = footprint_bytes(engine)
    assert full_bytes > 100 * empty
    source.shuffle(patterns)
    for pattern in patterns[:-30]:
        engine.remove(parse_pattern(pattern))
    assert footprint_bytes(engine) < full_bytes / 5  # dicts are rebuilt when their section shrinks, not at each removal
    for pattern in patterns[-30:]:
        engine.remove(parse_pattern(pattern))
    assert not any(engine.counts().values())
    assert footprint_bytes(engine) == empty


@pytest.mark.parametrize(
    "patterns", [["#"], ["*"], ["a.#", "a.#.b"], ["*.*.#", "*.*", "*.b.#.c.#.d"], ["a.b.*.c", "#.a.#", "a", ""]]
)
def test_nothing_is_left_after_the_removals(patterns: list[str]) -> None:
    """No table is left when all patterns are removed, in any order."""
    for order in (patterns, patterns[::-1]):
        engine = fill(patterns, literals_apart=False)
        for pattern in order:
            assert engine.size > 0
            engine.remove(parse_pattern(pattern))
        assert not any(engine.counts().values())
        assert engine.size == 0


@pytest.mark.parametrize("stranger", ["a", "a.b", "a.b.c.d", "b.b.*", "a.b.#", "#", "#.a.#", "#.b.#", "", "*.*.*"])
def test_removing_a_stranger_changes_nothing(stranger: str) -> None:
    """Removing an unknown pattern raises KeyError and changes nothing."""
    engine = fill(["a.b.*", "#.b.#.c"])
    counts = dict(engine.counts())
    with pytest.raises(KeyError):
        engine.remove(parse_pattern(stranger))
    assert engine.find(parse_pattern(stranger)) is None
    assert dict(engine.counts()) == counts
    assert engine.match("a.b.c") == ["a.b.*", "#.b.#.c"]


def test_mqtt_reads_its_own_words() -> None:
    """In MQTT a slash separates, a leading wildcard does not match `$`, and a star is an ordinary level."""
    engine: ConstituentBitmap[str] = ConstituentBitmap(MQTT)
    texts = ["#", "home/+", "home/#", "$SYS/#", "home/*", "+/+/x"]
    for text in texts:
        engine.add(MQTT.parse(text), text)
    assert sorted(engine.match("home")) == ["#", "home/#"]
    assert sorted(engine.match("home/*")) == ["#", "home/#", "home/*", "home/+"]
    assert engine.match("$SYS/up/x") == ["$SYS/#"]
    for text in texts:
        assert engine.remove(MQTT.parse(text)) == text
    assert not any(engine.counts().values())


def test_words_that_come_and_go_leave_no_rows() -> None:
    """Thousands of patterns with words of their own, added and removed beside others, leave no rows."""
    engine: ConstituentBitmap[str] = ConstituentBitmap()
    for key in ("a.*", "*.b", "a.b.#", "#.c", "*.*.c"):
        engine.add(parse_pattern(key), key)
    before = engine.counts()
    for number in range(500):
        pattern = parse_pattern(f"w{number}.*.v{number}.#")
        engine.add(pattern, "passing")
        engine.remove(pattern)
    after = engine.counts()
    assert (after["rows"], after["lists"]) == (before["rows"], before["lists"])
