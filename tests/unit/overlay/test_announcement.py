"""The updates of one link."""

from __future__ import annotations

from broker.overlay.announcement import PART_PATTERNS, REPEAT_MS, WINDOW_PARTS, Announcement
from broker.overlay.packets import Update
from tests.unit.overlay.network import SPACE, wants

REST = Update(0, full=False, last=True, slice={"sb": 1})


def started() -> Announcement:
    """Return an announcement whose full update has arrived."""
    announcement = Announcement()
    announcement.enqueue([wants("a")], REST)
    announcement.take(0)
    announcement.acknowledge(1)
    return announcement


def test_a_link_begins_with_everything() -> None:
    """One full update, and then nothing until something changes."""
    announcement = Announcement()
    assert announcement.ready
    announcement.enqueue([wants("a"), wants("b")], REST)
    assert announcement.take(0) == [Update(1, full=True, last=True, added=(wants("a"), wants("b")), slice={"sb": 1})]
    assert not announcement.ready
    assert announcement.take(1) == []


def test_a_pattern_that_comes_and_goes_before_it_is_sent_leaves_nothing() -> None:
    """In either order."""
    announcement = started()
    for added in (True, False):
        announcement.note(wants("b"), added=added)
    assert not announcement.ready
    for added in (False, True):
        announcement.note(wants("a"), added=added)
    assert not announcement.ready
    announcement.note(wants("a"), added=False)
    announcement.note(wants("b"), added=True)
    announcement.mark({"sb"}, (), {SPACE}, durable=False)
    assert announcement.ready
    announcement.enqueue((), REST)
    (update,) = announcement.take(0)
    assert (update.serial, update.full, update.last) == (2, False, True)
    assert (update.added, update.removed) == ((wants("b"),), (wants("a"),))


def test_many_patterns_go_in_parts_within_a_window() -> None:
    """The first part begins the full update, the last ends it and has all else; acknowledgements make room."""
    announcement = Announcement()
    number = 3 * WINDOW_PARTS * PART_PATTERNS
    announcement.enqueue([wants(str(place)) for place in range(number)], REST)
    parts = announcement.take(0)
    assert len(parts) == WINDOW_PARTS
    announcement.note(wants("later"), added=True)
    assert not announcement.ready
    while len(parts) < 3 * WINDOW_PARTS:
        announcement.acknowledge(parts[-1].serial - WINDOW_PARTS // 2)
        parts += announcement.take(0)
    assert [part.serial for part in parts] == list(range(1, 3 * WINDOW_PARTS + 1))
    assert [part.full for part in parts] == [True] + [False] * (len(parts) - 1)
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert sum(len(part.added) for part in parts) == number
    assert [part.slice for part in parts if part.slice] == [{"sb": 1}]
    announcement.acknowledge(parts[-1].serial)
    assert announcement.ready


def test_updates_are_repeated_until_they_are_acknowledged() -> None:
    """Later and later, and from the first on that is missing; an acknowledgement of nothing new repeats nothing."""
    announcement = started()
    announcement.note(wants("b"), added=True)
    announcement.enqueue((), REST)
    (first,) = announcement.take(0)
    announcement.note(wants("c"), added=True)
    announcement.enqueue((), REST)
    (second,) = announcement.take(10)
    assert announcement.take(REPEAT_MS - 1) == []
    assert announcement.take(REPEAT_MS) == [first, second]
    announcement.acknowledge(1)
    assert announcement.take(3 * REPEAT_MS - 1) == []
    assert announcement.take(3 * REPEAT_MS) == [first, second]
    announcement.acknowledge(first.serial)
    assert announcement.take(4 * REPEAT_MS) == []
    assert announcement.take(5 * REPEAT_MS) == [second]
    announcement.acknowledge(second.serial)
    assert announcement.take(100 * REPEAT_MS) == []


def test_a_resync_sends_everything_once() -> None:
    """While a full update is under way it is repeated, and not begun again."""
    announcement = started()
    announcement.note(wants("b"), added=True)
    announcement.enqueue((), REST)
    announcement.take(0)
    announcement.resync()
    assert announcement.ready
    announcement.enqueue([wants("a"), wants("b")], REST)
    (full,) = announcement.take(1)
    assert full.full
    assert full.serial == 3
    announcement.resync()
    assert not announcement.ready
    assert announcement.take(2) == [full]
