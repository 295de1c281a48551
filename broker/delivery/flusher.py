"""The flusher: turns messages of a leased slot into deliver frames of consumers (street step 11).

It only holds references; the messages stay in their slot. Source: WSO2 Message Broker 3.0.0, "Slot Based
Architecture", the Message Flusher.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final

from broker.amqp.codec import content_frames
from broker.core.delivery_count import with_delivery_count

if TYPE_CHECKING:
    from broker.core.consumer import Consumer
    from broker.core.message import Message
    from broker.core.stream import Stream
    from broker.slots.slot import Slot

__all__ = ["deliver", "spread"]

_TAG: Final = Struct(">Q?")  # delivery tag and redelivered
_FRAME: Final = Struct(">BHI")  # type, channel, size
_FRAME_AFTER: Final = Struct(">BBHI")  # the previous frame's end octet, then the next frame's head


def deliver(consumer: Consumer, stream: Stream, slot: Slot, indexes: Sequence[int]) -> int:
    """Appends deliver, header and body frames to the consumer's connection and returns how many messages it took.

    Stops when the connection's output reaches high water; the caller puts the rest back. What needs no acknowledgement
    is settled here.
    Shapes: ``indexes`` ascend and are resident in ``slot``.
    Cost: one append of some byte strings per message; they are joined once per loop turn.
    Source: AMQP 0-9-1, 4.2.3 and 4.2.6.
    """
    session = consumer.session
    connection = consumer.connection
    contents = slot.contents
    assert contents is not None
    out = connection.out
    out_bytes = connection.out_bytes
    high_water = consumer.outflow.high_water_bytes
    body_max = connection.frame_max - 8 if connection.frame_max else 1 << 62
    number = session.number
    no_ack = consumer.no_ack
    deliveries = session.unacked.deliveries
    tag = session.unacked.last_tag
    all_fresh = not slot.recovered and not slot.counts
    counted = stream.queue.rules.counts_deliveries and bool(slot.counts)
    head_of = consumer.deliver_head
    pack_tag, pack_frame, pack_after = _TAG.pack, _FRAME.pack, _FRAME_AFTER.pack
    taken = 0
    try:
        for index in indexes:
            if out_bytes >= high_water:
                break
            message: Message = contents[index]
            tag += 1
            suffix = message.envelope.suffix
            header = with_delivery_count(message.header, slot.counts.get(index, 0)) if counted else message.header
            body = message.body
            size = len(body)
            flags = pack_tag(tag, False if all_fresh else slot.redelivered(index))
            if 0 < size <= body_max:
                header_size = len(header)
                out += (
                    head_of(len(suffix)),
                    flags,
                    suffix,
                    pack_frame(2, number, header_size),
                    header,
                    pack_after(0xCE, 3, number, size),
                    body,
                    b"\xce",
                )
                out_bytes += size + header_size + len(suffix) + 48
            else:
                frames = content_frames(number, header, body, connection.frame_max)
                out += (head_of(len(suffix)), flags, suffix, frames)
                out_bytes += len(frames) + len(suffix) + 32
            if not no_ack:
                deliveries[tag] = (stream, slot, index, consumer)
            taken += 1
    finally:  # whatever happens, a tag that went out is not given again
        session.unacked.last_tag = tag
        connection.out_bytes = out_bytes
        if not no_ack:
            consumer.unacked += taken
            session.outstanding += taken
    if taken:
        if no_ack:
            stream.settle(slot, indexes[:taken])
        session.last_served = consumer
        consumer.outflow.last_served = session
        connection.touch()
    return taken


def spread(indexes: Sequence[int], rooms: Sequence[int]) -> list[list[int]]:
    """Deals messages out in a round, one each, as long as there is room; returns each consumer's share.

    Shapes: ``len(indexes) <= sum(rooms)``; shares are in the order of ``rooms`` and ascend.
    """
    shares: list[list[int]] = [[] for _ in rooms]
    open_places = list(range(len(rooms)))
    position = 0
    while position < len(indexes):
        still_open = []
        for place in open_places:
            if position == len(indexes):
                break
            shares[place].append(indexes[position])
            position += 1
            if len(shares[place]) < rooms[place]:
                still_open.append(place)
        else:
            open_places = still_open
    return shares
