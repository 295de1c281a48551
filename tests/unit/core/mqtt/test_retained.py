"""Retained messages that expire."""

from __future__ import annotations

import pytest

from broker.amqp.header_edit import encode_header
from broker.core.mqtt.mapping import MessageMapping
from broker.core.mqtt.retained import RetainedMessages
from tests.unit.core.room import Room

EXPIRING = encode_header({"delivery_mode": 2, "expiration": "1000"}, 1)
LASTING = encode_header({"delivery_mode": 2}, 1)


@pytest.mark.parametrize("again", [b"", EXPIRING, LASTING])
def test_a_message_leaves_when_its_time_is_up(again: bytes, room: Room) -> None:
    """An expired message frees its room; the one that has replaced it stays for its own time."""
    retained = RetainedMessages(room.vhost, MessageMapping(64), 10, 1000)
    retained.retain("a", EXPIRING, b"x")
    retained.retain("b", LASTING, b"x")
    room.clock.now_ms += 999
    if again:
        retained.retain("a", again, b"y")
    assert (room.deadlines.next_ms is None) == (again == LASTING)
    room.deadlines.run(room.clock.now_ms)
    assert len(retained) == 2
    room.clock.now_ms += 1
    room.deadlines.run(room.clock.now_ms)
    assert len(retained) == (2 if again else 1)
    room.clock.now_ms += 999
    room.deadlines.run(room.clock.now_ms)
    assert len(retained) == (2 if again == LASTING else 1)
    assert room.vhost.queues["amq.retained"].ready == len(retained)
    assert room.deadlines.next_ms is None
