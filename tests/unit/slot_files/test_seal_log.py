"""The lines of a seal log: the state that they add up to, what a reader has lost, and how far a cursor lags."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from broker.slot_files.seal_log import BadSealLine, Cursor, Gap, Released, Seal, decode_line, decode_lines, encode_line
from broker.slot_files.seal_view import LagTable, SealView
from tests.slot_folders import STORE

HEAD = {"k": "store", "format": 1, "store": STORE, "last_seal": 0}


def seal(number: int, queue: int = 1, *, vhost: str = "/", tap: str = "audit") -> Seal:
    """Return a seal of ten messages."""
    return Seal(number, vhost, tap, queue, number * 10, number * 10 + 10, 10, number, number + 1, 500, number)


def gap(number: int, queue: int = 1) -> Gap:
    """Return the gap that this seal leaves."""
    return Gap(number, "/", "audit", queue, number * 10, number * 10 + 10, 10, 500, "bytes")


def view(*facts: Any) -> SealView:
    """Return the view of a log with these lines."""
    found = SealView([HEAD])
    for fact in facts:
        fold(found, fact)
    return found


def fold(found: SealView, fact: Any) -> None:
    """Apply a fact in the form of its line."""
    found.fold(decode_line(encode_line(fact.kind, fact.to_json())))


def numbers(seals: list[Seal]) -> list[int]:
    """Return the sequence numbers."""
    return [one.seal for one in seals]


def test_a_line_comes_back() -> None:
    """A line is read as it was written, as one line, with any character in a name."""
    name = 'tab\there\nline "quoted" \u2028 é 漢 \U0001f600'
    line = encode_line("cursor", Cursor(name, "/", "audit", 3, 99).to_json())
    assert line.count(b"\n") == 1
    assert Cursor.from_json(decode_line(line)) == Cursor(name, "/", "audit", 3, 99)


def test_every_damaged_byte_of_a_line_is_noticed() -> None:
    """A line with any wrong bit is refused."""
    line = encode_line("seal", seal(1).to_json())[:-1]
    for at in range(len(line)):
        for bit in range(8):
            wrong = line[:at] + bytes([line[at] ^ 1 << bit]) + line[at + 1 :]
            with pytest.raises(BadSealLine):
                decode_line(wrong)


def test_an_unfinished_line_is_left_for_later() -> None:
    """A log that is cut anywhere yields its whole lines and the offset from which to continue."""
    lines = [encode_line("store", HEAD), *(encode_line("seal", seal(number).to_json()) for number in (1, 2))]
    block = b"".join(lines)
    ends = [sum(map(len, lines[:count])) for count in range(4)]
    for size in range(len(block) + 1):
        found, good_bytes = decode_lines(block[:size])
        assert good_bytes == max(end for end in ends if end <= size)
        assert len(found) == ends.index(good_bytes)


def test_damage_before_a_good_line_is_no_torn_tail() -> None:
    """A bad line before a good one is reported with its offset; a bad last line is an incomplete one."""
    head, first, second = (encode_line("store", HEAD), *(encode_line("seal", seal(n).to_json()) for n in (1, 2)))
    bad = first.replace(b"audit", b"other")
    with pytest.raises(BadSealLine, match=f"the line at byte {len(head)} is damaged: its checksum is wrong"):
        decode_lines(head + bad + second)
    assert decode_lines(head + bad)[1] == len(head)


def test_after_shows_what_is_there() -> None:
    """A reader gets the seals after its own, in order, for its queues and up to its limit."""
    found = view(seal(1), seal(2, 2), seal(3), seal(5, 1, vhost="other"), seal(6))
    assert numbers(found.seals) == numbers(found.after(0)) == [1, 2, 3, 5, 6]
    assert numbers(found.after(2)) == [3, 5, 6]
    assert numbers(found.after(0, limit=2)) == [1, 2]
    assert found.after(0, limit=0) == []
    assert numbers(found.after(0, queues={("/", 1)})) == [1, 3, 6]
    assert numbers(found.after(1, queues={("/", 1), ("other", 1)}, limit=2)) == [3, 5]
    assert found.after(6) == []
    assert found.last_seal == 6
    assert found.queues == [("/", 1), ("/", 2), ("other", 1)]


def test_what_was_released_is_gone() -> None:
    """A release removes the files of its queue up to its seal, and no others; it is never undone."""
    found = view(seal(1), seal(2, 2), seal(3), seal(4), Released("/", "audit", 1, 3))
    assert numbers(found.seals) == [2, 4]
    fold(found, Released("/", "audit", 1, 1))
    assert found.released["/", 1].seal == 3
    assert found.last_seal == 4
    fold(found, Released("/", "audit", 1, 4))
    fold(found, Released("/", "audit", 2, 2))
    assert (found.seals, found.queues, found.last_seal) == ([], [], 4)


def test_what_a_reader_has_lost() -> None:
    """A reader before a gap is told the gaps of its queues; a reader after it is told nothing."""
    found = view(seal(1), seal(2), seal(3, 2), seal(4), gap(2), Released("/", "audit", 1, 2))
    assert found.lost(0) == found.lost(1) == [gap(2)]
    assert found.lost(2) == []
    assert found.lost(0, queues={("/", 2)}) == []


def test_a_reader_that_never_had_a_cursor_is_told_too() -> None:
    """A reader without a cursor, before files that all cursors had passed, is told the last released seal."""
    found = view(seal(1), seal(2), seal(3), Released("/", "audit", 1, 2))
    assert found.lost(1) == [Gap(2, "/", "audit", 1, 0, 0, 0, 0, "released")]
    assert found.lost(2) == []
    fold(found, seal(4))
    fold(found, gap(4))
    assert [(one.seal, one.reason) for one in found.lost(1)] == [(2, "released"), (4, gap(4).reason)]


def test_only_the_newest_gaps_are_kept() -> None:
    """A thousand gaps are kept; a reader before older ones is still told that messages are lost."""
    found = view()
    for number in range(1, 1502):
        fold(found, seal(number))
        fold(found, gap(number))
    fold(found, Released("/", "audit", 1, 1501))
    assert [one.seal for one in found.gaps] == list(range(502, 1502))
    assert [one.seal for one in found.lost(0)][:1] == [502]


def test_cursors() -> None:
    """A cursor is identified by name, vhost and tap, and its last line counts."""
    found = view(
        Cursor("lake", "/", "audit", 1, 5), Cursor("lake", "/", "other", 2, 6), Cursor("lake", "/", "audit", 3, 7)
    )
    assert found.cursor("lake", "/", "audit") == Cursor("lake", "/", "audit", 3, 7)
    assert found.cursors_of("/", "audit") == [Cursor("lake", "/", "audit", 3, 7)]
    found.fold({"k": "cursor_removed", "name": "lake", "vhost": "/", "tap": "audit"})
    found.fold({"k": "cursor_removed", "name": "lake", "vhost": "/", "tap": "audit"})
    assert found.cursors == [Cursor("lake", "/", "other", 2, 6)]


def test_seals_rise() -> None:
    """A seal that repeats or descends is damage, also if its predecessor is released."""
    found = view(seal(4), Released("/", "audit", 1, 4))
    for number in (3, 4):
        with pytest.raises(BadSealLine):
            fold(found, seal(number))


def test_lines_of_later_versions() -> None:
    """Unknown kinds and fields are ignored; a log of another format is refused."""
    found = view(seal(1))
    found.fold({"k": "weather", "sun": True})
    found.fold({"k": "seal", **seal(2).to_json(), "colour": "red"})
    assert found.seals == [seal(1), seal(2)]
    with pytest.raises(BadSealLine, match="newer SlotMQ, format 3; this version reads up to 2"):
        SealView([{**HEAD, "format": 3}])
    with pytest.raises(BadSealLine, match="it has no 'crc'"):
        found.fold({"k": "seal", **{name: value for name, value in seal(3).to_json().items() if name != "crc"}})


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ({"k": "cursor_removed", "name": "a", "vhost": "/"}, "tap"),
        ({"k": "incarnation", "seal": 1}, "incarnation"),
        ({"k": "store", "format": 1}, "store"),
    ],
)
def test_a_line_without_a_field_is_refused(line: dict[str, Any], missing: str) -> None:
    """The error names the missing field."""
    with pytest.raises(BadSealLine, match=f"it has no '{missing}'"):
        view().fold(line)


@pytest.mark.parametrize(
    ("fact", "field", "value"),
    [
        (seal(3), "seal", "3"),
        (seal(3), "bytes", 1.5),
        (seal(3), "vhost", None),
        (gap(1), "seal", [1]),
        (gap(1), "number", {}),
        (Released("/", "audit", 1, 1), "seal", "1"),
        (Cursor("lake", "/", "audit", 1, 5), "name", ["lake"]),
        (Cursor("lake", "/", "audit", 1, 5), "seal", True),
    ],
)
def test_a_field_of_another_type_is_damage(fact: Any, field: str, value: Any) -> None:
    """The error names the field, and the line changes nothing."""
    found = view(seal(1), seal(2))
    with pytest.raises(BadSealLine, match=f"its '{field}' is no (int|str)"):
        found.fold({"k": fact.kind, **fact.to_json(), field: value})
    assert (numbers(found.seals), found.last_seal, found.lines) == ([1, 2], 2, 3)


@pytest.mark.parametrize(
    "line",
    [
        {"k": "cursor_removed", "name": "a", "vhost": "/", "tap": []},
        {"k": "incarnation", "seal": "1", "incarnation": ""},
        {"k": "incarnation", "seal": 1, "incarnation": 2},
        {"k": "store", "format": 1, "store": 7},
        {"k": "store", "format": 1, "store": STORE, "last_seal": "9"},
    ],
)
def test_another_line_with_a_field_of_another_type_is_damage(line: dict[str, Any]) -> None:
    """It raises the error of a damaged log."""
    with pytest.raises(BadSealLine, match=r"its '.*' is no (int|str)"):
        view().fold(line)


def test_a_rewritten_log_adds_up_to_the_same() -> None:
    """After any history the live lines give the same view, and later lines change both views equally."""
    chance = random.Random(5)
    for _ in range(30):
        found, last = view(), 0
        for _ in range(chance.randrange(60)):
            last = change(found, chance, last)
        again = SealView(map(decode_line, found.to_lines()))
        for _ in range(20):
            assert facts(again) == facts(found)
            state = chance.getstate()
            change(found, chance, last)
            chance.setstate(state)
            last = change(again, chance, last)
        assert again.live_lines() == len(list(again.to_lines()))


def change(found: SealView, chance: random.Random, last: int) -> int:
    """Apply a line that a broker might write next, and return the last seal."""
    queue = chance.randrange(1, 4)
    mine = found.of_queue(("/", queue))
    match chance.randrange(6):
        case 0 | 1 | 2:
            last += chance.randrange(1, 3)
            fold(found, seal(last, queue))
        case 3 if mine:
            fold(found, replace(gap(mine[0].seal, queue)))
        case 4 if mine:
            fold(found, Released("/", "audit", queue, chance.choice(mine).seal))
        case _:
            fold(found, Cursor(f"c{queue}", "/", "audit", last, 0))
    return last


def facts(found: SealView) -> tuple[Any, ...]:
    """Return everything that a view shows."""
    lost = [found.lost(number) for number in range(0, found.last_seal + 1, 3)]
    return (
        found.store,
        found.last_seal,
        found.seals,
        found.gaps,
        dict(found.released),
        found.cursors,
        found.queues,
        lost,
    )


def test_who_wrote_a_seal_outlives_its_line_and_tells_histories_apart() -> None:
    """The start that wrote a seal is known after its release, so two copies that diverge after seal 2 differ."""
    store = {"k": "store", "format": 2, "store": STORE}
    before = [store, {"k": "seal", **seal(1).to_json()}, {"k": "seal", **replace(seal(2), incarnation="x").to_json()}]
    ours, theirs = SealView(before), SealView(before)
    for number in (3, 4):
        ours.fold({"k": "seal", **replace(seal(number), incarnation="x").to_json()})
    theirs.fold({"k": "seal", **replace(seal(3), incarnation="y").to_json()})
    for each in (ours, theirs):
        each.fold({"k": "released", **Released("/", "audit", 1, 3, 40).to_json()})
    again = [SealView(map(decode_line, each.to_lines())) for each in (ours, theirs)]
    for one, other in ((ours, theirs), again):
        assert [one.starts.of(number) for number in (0, 1, 2, 3, 4)] == ["", "", "x", "x", "x"]
        assert [other.starts.of(number) for number in (1, 2, 3)] == ["", "x", "y"]
        assert not any(other.diverged(*place) for place in [(0, "z"), (1, ""), (2, "x"), (3, "y"), (3, None)])
        assert all(other.diverged(*place) for place in [(3, "x"), (4, "x"), (4, None), (2, "y"), (1, "x")])
        assert [other.last_shared(*place) for place in [(4, "x"), (1, ""), (4, ""), (3, "z"), (9, None)]] == [
            2,
            1,
            1,
            0,
            3,
        ]
        assert one.last_shared(9, "x") == 4
        assert other.live_lines() == len(list(other.to_lines()))


def lagging(number: int, count: int, first_ts_ms: int, *, ahead_ms: int = 0) -> Seal:
    """Return a seal with 100 bytes per message."""
    return Seal(number, "/", "t", 1, 1, 1 + count, count, first_ts_ms, first_ts_ms, 100 * count, 0, ahead_ms)


@pytest.mark.parametrize(
    ("passed", "lag"),
    [(0, (3, 9, 900, 50.0)), (2, (2, 7, 700, 40.0)), (4, (2, 7, 700, 40.0)), (5, (1, 4, 400, 10.0)), (9, (0, 0, 0, 0))],
)
def test_what_a_cursor_has_yet_to_pass(passed: int, lag: tuple[float, ...]) -> None:
    """Lag is in slot files, messages, bytes and seconds; seals of other taps in between do not count."""
    table = LagTable([lagging(2, 2, 10_000), lagging(5, 3, 20_000), lagging(9, 4, 50_000)])
    assert tuple(table.behind(passed, 60_000).values()) == lag


def test_a_tap_without_slot_files() -> None:
    """Without slot files no cursor has a lag."""
    assert not any(LagTable([]).behind(0, 60_000).values())


def test_a_corrected_clock_makes_no_lag() -> None:
    """The system clock went back an hour between two slot files: the older file's lag is 10 s, not an hour."""
    table = LagTable([lagging(1, 1, 3_600_000), lagging(2, 1, 5_000, ahead_ms=3_600_000)])
    assert table.behind(0, 10_000)["lag_s"] == 10
    assert table.behind(0, 0)["lag_s"] == 0
