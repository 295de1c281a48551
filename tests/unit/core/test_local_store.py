"""The store of a broker that stands alone: how the messages of a run enter their streams."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from broker.amqp.content_header import facts_of
from broker.core.message.message import Envelope, Message
from broker.core.publishing.message_store import Targets
from broker.core.queue.level import Level
from broker.store.segment import OFFSET_BITS
from tests.unit.core.room import NO_PROPERTIES, Room

FACTS = facts_of(NO_PROPERTIES)


def messages(count: int) -> list[Message]:
    """Return transient messages."""
    return [Message(Envelope("", "key"), NO_PROPERTIES, b"%d" % number, 1, FACTS, 0) for number in range(count)]


@pytest.mark.interpreted("the calls are counted in the class")
def test_a_message_with_a_queue_of_its_own_is_appended_without_a_list(
    monkeypatch: pytest.MonkeyPatch, room: Room
) -> None:
    """Consecutive messages of a run for one queue are appended together, and a single one needs no list."""
    streams = [room.vhost.queues.declare(name).level for name in "abc"]
    targets = [Targets((stream,)) for stream in streams]
    room.vhost.store.accept(messages(3), targets, [1, 2, 3])  # the first message of a slot takes the long way
    lists: list[int] = []
    append = Level.append

    def counted(self: Level, contents: list[Message], *arguments: Any, **more: Any) -> None:
        lists.append(len(contents))
        append(self, contents, *arguments, **more)

    monkeypatch.setattr(Level, "append", counted)
    room.vhost.store.accept(messages(3), targets, [1, 2, 3])
    assert not lists
    room.vhost.store.accept(messages(7), [*targets, targets[0]], [1, 5, 6, 7])
    assert lists == [4]
    assert [stream.manager.ready for stream in streams] == [4, 6, 3]
    assert [message.body for message in streams[0].manager.open.contents or ()] == [b"0", b"0", b"0", b"6"]


def test_a_queue_gets_its_messages_in_order_however_they_are_mixed(room: Room) -> None:
    """Neighbours for other queues, durable ones among them, change nothing in the order within a queue."""
    streams = [room.vhost.queues.declare(name, durable=name == "b").level for name in "abc"]
    several = Targets(tuple(streams))
    order = [Targets((streams[0],)), several, Targets((streams[1],)), Targets((streams[2],)), several]
    room.vhost.store.accept(messages(8), order, [1, 3, 4, 6, 8])
    bodies = [[message.body for message in stream.manager.open.contents or ()] for stream in streams]
    assert [stream.manager.open.mixed for stream in streams] == [False, True, False]  # the durable one has no records
    assert bodies == [
        [b"0", b"1", b"2", b"6", b"7"],
        [b"1", b"2", b"3", b"6", b"7"],
        [b"1", b"2", b"4", b"5", b"6", b"7"],
    ]


def test_a_lone_transient_message_of_a_durable_queue_is_known_to_have_no_record(room: Room) -> None:
    """Behind a persistent message it has no record of its settlement either."""
    stream = room.vhost.queues.declare("q", durable=True).level
    header = NO_PROPERTIES[:12] + b"\x10\x00\x02"  # the delivery mode
    persistent = Message(Envelope("", "key"), header, b"1", 1, facts_of(header), 0)
    room.vhost.store.accept([persistent], [Targets((stream,))], [1])
    slot = stream.manager.open
    assert (slot.length, slot.mixed) == (1, False)
    room.vhost.store.accept(messages(1), [Targets((stream,))], [1])
    assert (slot.length, slot.mixed) == (2, True)


@pytest.mark.parametrize("count", [1, 5])
def test_a_queue_without_a_record_of_a_message_does_not_point_to_that_of_another(count: int, room: Room) -> None:
    """A quorum queue records transient messages; the other queues of a run share copies, which have no record."""
    queues = [
        room.vhost.queues.declare("transient"),
        room.vhost.queues.declare("durable", durable=True),
        room.vhost.queues.declare("quorum", durable=True, arguments={"x-queue-type": "quorum"}),
        room.vhost.queues.declare("second", durable=True),
    ]
    targets = Targets(tuple([queue.level for queue in queues]))
    room.vhost.store.accept(messages(2 * count), [targets, targets], [count, 2 * count])
    held = {queue.name: queue.level.manager.open.contents or [] for queue in queues}
    assert all([message.body for message in found] == [b"%d" % n for n in range(2 * count)] for found in held.values())
    assert {name: {message.logged for message in found} for name, found in held.items()} == {
        "transient": {False}, "durable": {False}, "quorum": {True}, "second": {False},
    }  # fmt: skip
    assert all(one is other for one, other in zip(held["durable"], held["transient"], strict=True))


@pytest.mark.parametrize("before", [0, 1, 2])
def test_each_slot_keeps_the_segments_of_all_its_records(before: int, room: Room) -> None:
    """Messages that are appended at once may end several slots, and several segments of the log within one slot."""
    stream = room.vhost.queues.declare("q", durable=True).level
    stream.manager.window_messages = 3
    segments = [1] * before + [1, 1, 2, 2, 3, 4, 4, 4, 5, 6]
    found = messages(len(segments))
    for message, segment in zip(found, segments, strict=True):
        message.recorded(segment << OFFSET_BITS | 64, 10)
    if before:
        stream.append(found[:before], recorded=True)
    stream.append(found[before:], recorded=True)
    slots = [slot for slot in stream.manager.slots.values() if slot.length]
    assert [slot.segments for slot in slots] == [set(segments[at : at + 3]) for at in range(0, len(segments), 3)]
    counted = Counter(segment for slot in slots for segment in slot.segments)
    assert room.store.log.live == counted
