"""The flusher: turns messages of a leased slot into deliver frames.

It holds only references; the messages stay in their slot. Source: WSO2 Message Broker 3.0.0, "Slot Based
Architecture", the Message Flusher.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final

from broker.amqp.codec import content_frames
from broker.amqp.framing import LARGE_BYTES
from broker.core.message.delivery_count import with_delivery_count
from broker.core.queue.consumer_ring import BATCH_MESSAGES

if TYPE_CHECKING:
    from broker.core.message.message import Message
    from broker.core.queue.consumer import Consumer
    from broker.core.queue.stream import Stream
    from broker.slots.slot import Slot

__all__ = ["deliver", "rooms_of", "spread"]

_TAG: Final = Struct(">Q?")  # delivery tag and redelivered
_FRAME: Final = Struct(">BHI")  # type, channel, size
_FRAME_AFTER: Final = Struct(">BBHI")  # the previous frame's end octet, then the next frame's head
_END: Final = b"\xce"
_OVERHEAD_BYTES: Final = 48  # the constant part of a delivery in three frames
LARGE_SHARE: Final = 4  # large bodies are not copied: only this fraction of their octets counts towards high water
_TAGS: Final = 256  # consecutive tags that differ only in their last octet
pack_tag: Final = _TAG.pack
pack_frame: Final = _FRAME.pack
pack_after: Final = _FRAME_AFTER.pack
# The last octet of a delivery tag, and the redelivered octet that follows it.
_LAST_OCTETS: Final = [bytes((octet, 0)) for octet in range(_TAGS)]
_LAST_OCTETS_AGAIN: Final = [bytes((octet, 1)) for octet in range(_TAGS)]


def deliver(consumer: Consumer, stream: Stream, slot: Slot, indexes: Sequence[int]) -> int:
    """Append deliver, header and body frames to the consumer's connection and return how many messages it took. HOT.

    It stops when the connection's output reaches high water; the caller returns the rest. Messages that need no
    acknowledgement are settled here.
    Shapes: ``indexes`` ascend and are resident in ``slot``.
    Cost: one append of some byte strings per message. They are joined once per loop turn; large bodies are not copied.
    Source: AMQP 0-9-1, 4.2.3 and 4.2.6.
    """
    session = consumer.session
    connection = consumer.connection
    contents = slot.contents
    assert contents is not None
    out = connection.out
    out_bytes = connection.out_bytes
    high_water = consumer.output_window.high_water_bytes
    body_max = connection.frame_max - 8 if connection.frame_max else 1 << 62
    number = session.number
    tag = session.unacked.last_tag
    plain = slot.recovered or not slot.counts  # all messages are redelivered, or none is
    last_octets = _LAST_OCTETS_AGAIN if slot.recovered else _LAST_OCTETS
    counted = stream.queue.rules.counts_deliveries and bool(slot.counts)
    heads: dict[int, bytes] = {}  # by suffix length: the frame up to the last octet of the tag
    header = b""
    middle = b""  # the octets between suffix and body, for messages with this header
    one_frame = False
    taken = 0
    try:
        for index in indexes:
            if out_bytes >= high_water:
                break
            message: Message = contents[index]
            tag += 1
            if not tag % _TAGS:
                heads = {}
            suffix = message.envelope.suffix
            length = len(suffix)
            head = heads.get(length)
            if head is None:
                head = heads[length] = consumer.deliver_head(length) + (tag // _TAGS).to_bytes(7, "big")
            body = message.body
            if message.header is not header or counted:
                header = message.header
                if counted:
                    header = with_delivery_count(header, slot.counts.get(index, 0))
                size = len(body)
                one_frame = 0 < size <= body_max and size < LARGE_BYTES
                if one_frame:
                    middle = pack_frame(2, number, len(header)) + header + pack_after(0xCE, 3, number, size)
            octets = last_octets[tag % _TAGS] if plain else pack_tag(tag, slot.redelivered(index))[7:]
            if one_frame:
                out += (head, octets, suffix, middle, body, _END)
                out_bytes += length + len(header) + len(body) + _OVERHEAD_BYTES
            else:
                pieces = content_frames(number, header, body, connection.frame_max)
                out += (head, octets, suffix)
                out_bytes += length + _OVERHEAD_BYTES
                for piece in pieces:
                    if len(piece) >= LARGE_BYTES:
                        connection.large_at.append(len(out))
                        high_water += len(piece) - len(piece) // LARGE_SHARE
                    out.append(piece)
                    out_bytes += len(piece)
            taken += 1
    finally:  # also after an error: a tag that was sent is not used again
        connection.out_bytes = out_bytes  # hot: written here
        if taken:
            written = indexes if taken == len(indexes) else indexes[:taken]
            session.tally.delivered(stream.tally, taken, slot.redelivered_among(written), consumer.no_ack)
            if consumer.no_ack:
                session.unacked.last_tag += taken  # hot: written here
            else:
                session.unacked.handed_out(stream, slot, written, consumer)
                consumer.unacked += taken  # hot: written here
                session.outstanding += taken  # hot: written here
    if taken:
        if consumer.no_ack:
            stream.settle(slot, written)
        session.last_served = consumer  # hot: written here
        consumer.output_window.last_served = number  # hot: written here
        connection.touch()
    return taken


def spread(indexes: Sequence[int], rooms: Sequence[int]) -> list[Sequence[int]]:
    """Deal messages out evenly while consumers have room, and return each consumer's share.

    Each consumer gets one message in turn. Of a full batch, it gets its share in one piece, which costs less to deliver
    and to acknowledge.
    Shapes: ``len(indexes) <= sum(rooms)``; shares are in the order of ``rooms`` and ascend.
    """
    open_places = [place for place, room in enumerate(rooms) if room]
    if len(open_places) < len(indexes) < BATCH_MESSAGES:
        return _one_each(indexes, rooms, open_places)
    counts = [0] * len(rooms)
    left = len(indexes)
    while left:
        part = max(1, left // len(open_places))
        for place in open_places:
            count = min(part, rooms[place] - counts[place])
            count = min(count, left)
            counts[place] += count
            left -= count
        open_places = [place for place in open_places if counts[place] < rooms[place]]
    shares: list[Sequence[int]] = []
    is_range = isinstance(indexes, range)  # a slice of a range costs more than another range
    start = indexes[0] if is_range and indexes else 0
    for count in counts:
        stop = start + count
        shares.append(range(start, stop) if is_range else indexes[start:stop])
        start = stop
    return shares


def _one_each(indexes: Sequence[int], rooms: Sequence[int], open_places: list[int]) -> list[Sequence[int]]:
    """Deal out one message to each of some consumers in turn."""
    shares: list[list[int]] = [[] for _ in rooms]
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
    return list(shares)


def rooms_of(consumers: Sequence[Consumer], most: int) -> list[int]:
    """Return how many messages each of several consumers can take now.

    Consumers that share their channel's prefetch use it up together: each number is the share of `most` messages dealt
    out round-robin.
    """
    rooms = [consumer.room() for consumer in consumers]
    for consumer in consumers:
        if consumer.session.prefetch_channel:
            return _dealt(consumers, rooms, most)
    return rooms


def _dealt(consumers: Sequence[Consumer], rooms: Sequence[int], most: int) -> list[int]:
    left = {consumer.session: consumer.session.room() for consumer in consumers}
    dealt = [0] * len(rooms)
    open_places = list(range(len(rooms)))
    while open_places and most > 0:
        still_open = []
        for place in open_places:
            session = consumers[place].session
            if dealt[place] < rooms[place] and left[session] > 0 and most > 0:
                dealt[place] += 1
                most -= 1
                if not consumers[place].no_ack:
                    left[session] -= 1
                still_open.append(place)
        open_places = still_open
    return dealt
