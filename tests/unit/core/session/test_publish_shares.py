"""Every kind of publish counts against the share of entries that a connection has in a turn."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from pamqp import commands

from broker.core.publish_credit import SHARE_ENTRIES
from tests.raw_client import publish_frames
from tests.unit.core.room import Client, Room

QUEUES = 128


@pytest.mark.parametrize("kind", ["plain", "numbered", "expiring"])
def test_a_connection_is_held_when_its_publishes_have_made_enough_entries(
    kind: str, room: Room, client: Client
) -> None:
    """With more publishes than a share, one share of them is handled; the others follow in the next turn."""
    for number in range(QUEUES):
        client.tell(1, commands.Queue.Declare(queue=f"q{number}"))
        client.tell(1, commands.Queue.Bind(queue=f"q{number}", exchange="amq.fanout"))
        while client.machine.held:  # by the method budget
            room.deadlines.run(room.clock.now_ms)
            client.machine.feed(b"")
    numbers = count(1)

    def properties() -> commands.Basic.Properties:
        kinds: dict[str, dict[str, Any]] = {
            "plain": {},
            "numbered": {"headers": {"x-producer": "p", "x-seq": next(numbers)}},
            "expiring": {"expiration": "60000"},
        }
        return commands.Basic.Properties(delivery_mode=1, **kinds[kind])

    share = SHARE_ENTRIES // QUEUES
    frames = [publish_frames(1, "amq.fanout", "", b"x", properties=properties()) for _ in range(2 * share)]
    client.machine.feed(b"".join(frames))
    made = []
    for _ in range(2):
        for _ in range(4):  # the method budget, which the first publishes use up, holds the connection too
            room.deadlines.run(room.clock.now_ms)
            client.machine.feed(b"")
        made.append(room.vhost.queues["q0"].ready)
        room.vhost.ports.credit.turn(0, behind=False, crowded=False)
    assert made == [share, 2 * share]
