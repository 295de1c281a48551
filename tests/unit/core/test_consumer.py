"""The room of a consumer: its prefetch, its channel's prefetch and its connection's output."""

from __future__ import annotations

import pytest

from broker.amqp.connection import Connection
from broker.core.queue.consumer import UNLIMITED, Consumer
from tests.unit.core.room import Room

CHANNEL = 3


def consumer(
    prefetch: int, shared: int = UNLIMITED, *, no_ack: bool = False, tag: str = "tag"
) -> tuple[Consumer, Connection]:
    """Return a consumer on a channel whose prefetch has this much left, and its connection."""
    room = Room()
    client = room.enter()
    client.open_channel(CHANNEL)
    session = client.basic(CHANNEL)
    if shared != UNLIMITED:
        session.prefetch_channel, session.outstanding = shared + 1, 1
    queue = room.vhost.queues.declare("q")
    return client.consumer(queue, tag, CHANNEL, prefetch=prefetch, no_ack=no_ack), client.machine


@pytest.mark.parametrize(
    ("prefetch", "unacked", "shared", "no_ack", "room"),
    [
        (0, 0, UNLIMITED, False, UNLIMITED),
        (0, 1000, UNLIMITED, False, UNLIMITED),
        (10, 0, UNLIMITED, False, 10),
        (10, 7, UNLIMITED, False, 3),
        (10, 10, UNLIMITED, False, 0),
        (10, 7, 2, False, 2),
        (10, 9, 2, False, 1),
        (0, 0, 5, False, 5),
        (0, 0, 0, False, 0),
        (10, 10, UNLIMITED, True, UNLIMITED),
        (10, 10, 1, True, UNLIMITED),
        (10, 10, 0, True, 0),
    ],
)
def test_room_is_the_least_of_the_limits(prefetch: int, unacked: int, shared: int, no_ack: bool, room: int) -> None:
    """Room is the smaller of both prefetch counts, less what is unacked.

    A consumer without acks has room unless the channel's prefetch is used up.
    """
    made, _ = consumer(prefetch, shared, no_ack=no_ack)
    made.unacked = unacked
    assert made.room() == room


@pytest.mark.parametrize("no_ack", [False, True])
def test_there_is_no_room_while_the_client_does_not_read(no_ack: bool) -> None:
    """Output at high water, or a full socket, leaves no room, and the consumer is noted for the later wake."""
    made, connection = consumer(10, no_ack=no_ack)
    output_window = made.output_window
    connection.out_bytes = output_window.high_water_bytes - 1
    assert made.room() > 0
    assert not output_window.starved
    connection.out_bytes += 1
    assert made.room() == 0
    assert output_window.starved
    output_window.starved = False
    connection.out_bytes = 0
    output_window.writable = False
    assert made.room() == 0
    assert output_window.starved


def test_the_head_of_a_delivery() -> None:
    """The head of a deliver frame has the channel, the payload size and the consumer tag."""
    made, _ = consumer(0, tag="tág")
    tag = "tág".encode()
    size = 4 + 1 + len(tag) + 8 + 1 + 20
    assert made.deliver_head(21) == b"\x01\x00\x03" + size.to_bytes(4, "big") + b"\x00\x3c\x00\x3c\x04" + tag
    assert made.deliver_head(21) is made.deliver_head(21)
    assert made.deliver_head(22)[3:7] == (size + 1).to_bytes(4, "big")
