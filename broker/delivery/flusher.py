"""The flusher: encode messages of a leased slot as deliver frames. The messages stay in their slot.

Source: WSO2 Message Broker 3.0.0, "Slot Based Architecture", the Message Flusher.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.amqp.framing import LARGE_BYTES
from broker.core.message.message import Envelope, Message, with_delivery_count
from broker.core.queue.consumer import LAST_OCTETS, LAST_OCTETS_AGAIN, NO_BODIES, TAGS, Consumer
from broker.core.queue.consumer_ring import BATCH_MESSAGES
from broker.core.queue.level import Level
from broker.slots.slot import Slot, single

_END: Final = b"\xce"
_CONSTANT_BYTES: Final = 33  # a delivery in three frames, without exchange, key, consumer tag, header and body
LARGE_SHARE: Final = 4  # large bodies are not copied: one in this many of their octets counts towards high water
_BATCH_MIN: Final = 16  # fewer messages are appended one by one, unless another queue has just delivered them
_SHARED_BYTES: Final = 256 << 10  # the frames of larger batches are not kept for the next queue


class _Batch:
    """Small messages that one queue has just delivered, and other queues may deliver next.

    Shapes: ``middles`` are the octets of each message between delivery tag and body; ``frames`` are all octets after
        the delivery tag, built when a second queue delivers the batch.
    Units: ``suffix_bytes`` is the length of each message's exchange and key, ``size_bytes`` the charge of the
        deliveries.
    Invariant: only ``frames`` changes.
    """

    __slots__ = ("channel", "frame_max", "frames", "messages", "middles", "size_bytes", "suffix_bytes")

    def __init__(
        self,
        messages: list[Message | None],
        middles: list[bytes],
        channel: int,
        frame_max: int,
        suffix_bytes: int,
        size_bytes: int,
    ) -> None:
        self.messages = messages
        self.middles = middles
        self.channel = channel
        self.frame_max = frame_max
        self.suffix_bytes = suffix_bytes
        self.size_bytes = size_bytes
        self.frames: list[bytes] = []

    def encode(self) -> list[bytes]:
        """Return the frames, which the first call builds."""
        if not self.frames:
            frames = []
            for place, message in enumerate(self.messages):
                assert message is not None
                frames.append(self.middles[place] + message.body + _END)
            self.frames = frames
        return self.frames


class _Latest:
    """The last delivered batch, and the first message of the last delivery."""

    __slots__ = ("batch", "first")

    def __init__(self) -> None:
        self.batch = _Batch([], [], 0, 0, 0, 0)
        self.first: Message | None = None

    def note(self, batch: _Batch) -> None:
        """Keep a batch for the next queue."""
        self.batch = batch

    def note_first(self, message: Message | None) -> bool:
        """Record the first message of a delivery, and return whether the previous delivery began with it."""
        again = self.first is message
        self.first = message
        return again


_latest: Final = _Latest()


def forget_latest() -> None:
    """Release the messages that were delivered last."""
    _latest.note(_Batch([], [], 0, 0, 0, 0))
    _latest.note_first(None)


def deliver(consumer: Consumer, level: Level, slot: Slot, indexes: Sequence[int]) -> int:
    """Append deliver, header and body frames to the consumer's connection, and return the number of messages delivered.
    HOT. It stops when the connection's output reaches high water; the caller puts back the rest. Messages that need
    no acknowledgement are settled here.
    Shapes: ``indexes`` ascend, and their messages are in memory.
    Cost: a few pieces per message, appended for many messages at once, and joined once per loop turn; large bodies are
        not copied. Queues that deliver the same messages in succession share the equal parts of their frames.
    Source: AMQP 0-9-1, 4.2.3 and 4.2.6.
    """
    session = consumer.session
    connection = consumer.connection
    contents = slot.contents
    assert contents is not None
    high_water = consumer.output_window.high_water_bytes
    tag = session.unacked.last_tag + 1
    again = slot.redelivered_among(indexes)
    counted = again > 0 and slot.redeliveries is not None and level.queue.rules.counts_deliveries
    alike = not counted and again in (0, len(indexes))  # all messages are redelivered, or none is
    batched = False
    octets = LAST_OCTETS_AGAIN if again else LAST_OCTETS
    count = len(indexes)
    messages: list[Message | None]
    first = -1
    if isinstance(indexes, range):
        first = indexes.start
        messages = contents[first : first + count]
    else:
        messages = [contents[index] for index in indexes]
    taken = 0
    try:
        if (
            alike
            and count > 1
            and connection.frame_max != NO_BODIES
            and (_latest.note_first(messages[0]) or count >= _BATCH_MIN)
        ):
            batched = True
            taken = _append_again(consumer, messages, tag, octets)
        while taken < count and connection.out_bytes < high_water:
            appended = 0
            if batched:
                appended = _append_small(consumer, messages, taken, tag + taken, octets, high_water)
            if not appended:
                message = messages[taken]
                if message is None:
                    raise TypeError(f"message {indexes[taken]} of slot {slot.first} is not in memory")
                header = message.header
                if not alike:
                    octets = LAST_OCTETS_AGAIN if slot.redelivered(indexes[taken]) else LAST_OCTETS
                    if counted:
                        index = indexes[taken]
                        header = with_delivery_count(header, slot.acquired_count(index), slot.delivery_count(index))
                message_id = slot.first + (first + taken if first >= 0 else indexes[taken])
                large_bytes = consumer.append(message, header, tag + taken, octets, message_id)
                high_water += large_bytes - large_bytes // LARGE_SHARE
                appended = 1
            taken += appended
    finally:  # even after an error, because a sent tag is never reused
        if taken:
            written = indexes if taken == count else indexes[:taken]
            if taken < count and again:
                again = slot.redelivered_among(written)
            session.tally.delivered(level.tally, taken, again, consumer.no_ack)
            if consumer.no_ack:
                session.unacked.last_tag += taken  # hot: set directly
            else:
                session.unacked.handed_out(level, slot, written, consumer)
                consumer.unacked += taken  # hot: set directly
                session.outstanding += taken  # hot: set directly
    if taken:
        if consumer.no_ack:
            level.settle(slot, written)
        session.last_served = consumer  # hot: set directly
        consumer.output_window.last_served = session.number  # hot: set directly
        connection.touch()
    return taken


def _append_again(consumer: Consumer, messages: list[Message | None], tag: int, octets: list[bytes]) -> int:
    """Append the deliveries if another queue has just delivered the same messages; return their number, otherwise 0."""
    batch = _latest.batch
    connection = consumer.connection
    count = len(messages)
    if (
        len(batch.messages) != count
        or batch.messages[0] is not messages[0]
        or batch.channel != consumer.session.number
        or batch.frame_max != connection.frame_max
        or connection.out_bytes + batch.size_bytes > consumer.output_window.high_water_bytes
        or batch.messages != messages
    ):
        return 0
    pieces = batch.encode() * 3
    pieces[0::3] = _heads(consumer, batch.suffix_bytes, tag, count)
    pieces[1::3] = octets[tag % TAGS : tag % TAGS + count]
    pieces[2::3] = batch.frames
    connection.out += pieces  # hot: set directly
    connection.out_bytes += batch.size_bytes  # hot: set directly
    return count


def _append_small(
    consumer: Consumer, messages: list[Message | None], start: int, tag: int, octets: list[bytes], high_water: int
) -> int:
    """Append the deliveries of small messages from index `start` on, at most TAGS, and return their number. It stops at
    high water, before a message without exactly one small body frame, and where the length of exchange and key changes.
    """
    connection = consumer.connection
    session = consumer.session
    frame_max = connection.frame_max
    # The largest body that is joined with other pieces and fits into one frame.
    body_max = min(frame_max - 8, LARGE_BYTES - 1) if frame_max else LARGE_BYTES - 1
    room_bytes = high_water - connection.out_bytes
    header = b""
    content = b""  # the frame of this header, and the head of the body's frame
    envelope: Envelope | None = None
    suffix_bytes = 0
    middle = b""  # the octets between delivery tag and body, for messages of this envelope with this header
    middles: list[bytes] = []
    bodies: list[bytes] = []
    size_bytes = 0
    for place in range(start, min(start + TAGS, len(messages))):
        message = messages[place]
        if message is None:
            break
        body = message.body
        if message.envelope is not envelope or message.header is not header:
            suffix = message.envelope.suffix
            if not 0 < len(body) <= body_max or (bodies and len(suffix) != suffix_bytes):
                break
            if message.header is not header:
                header = message.header
                content = session.content_start(header, len(body))
            envelope = message.envelope
            suffix_bytes = len(suffix)
            middle = suffix + content
        middles.append(middle)
        bodies.append(body)
        size_bytes += len(middle) + len(body) + _CONSTANT_BYTES
        if size_bytes >= room_bytes:
            break
    count = len(bodies)
    if count:
        pieces = [_END] * (5 * count)
        pieces[0::5] = _heads(consumer, suffix_bytes, tag, count)
        pieces[1::5] = octets[tag % TAGS : tag % TAGS + count]
        pieces[2::5] = middles
        pieces[3::5] = bodies
        connection.out += pieces  # hot: set directly
        connection.out_bytes += size_bytes  # hot: set directly
        if 1 < count == len(messages) and size_bytes <= _SHARED_BYTES:
            _latest.note(_Batch(messages, middles, session.number, frame_max, suffix_bytes, size_bytes))
    return count


def _heads(consumer: Consumer, suffix_bytes: int, tag: int, count: int) -> list[bytes]:
    """Return the start of each deliver frame up to the last octet of its tag, for consecutive tags."""
    head = consumer.deliver_head(suffix_bytes)
    block = tag // TAGS
    first = min(count, TAGS - tag % TAGS)
    session = consumer.session
    heads = [head + session.block_octets(block)] * first
    if first < count:
        heads += [head + session.block_octets(block + 1)] * (count - first)
    return heads


def spread(indexes: Sequence[int], rooms: Sequence[int]) -> list[Sequence[int]]:
    """Distribute messages evenly while consumers have room, and return each consumer's share. Each consumer gets one
    message in turn; of a full batch each gets a contiguous share, which costs less to deliver and to acknowledge.
    Shapes: ``len(indexes) <= sum(rooms)``; shares are in the order of ``rooms`` and ascend.
    """
    open_places = [place for place, room in enumerate(rooms) if room]
    left = len(indexes)
    if len(open_places) < left < BATCH_MESSAGES:
        return _one_each(indexes, rooms, open_places)
    counts = [0] * len(rooms)
    while left:
        part = left // len(open_places) or 1
        still_open = []
        for place in open_places:
            count = rooms[place] - counts[place]
            if count > part:
                count = part
                still_open.append(place)
            if count > left:  # not by min(): it costs a call of the interpreter for each consumer
                count = left
            counts[place] += count
            left -= count
        open_places = still_open
    shares: list[Sequence[int]] = []
    is_range = isinstance(indexes, range)  # a slice of a range costs more than another range
    start = indexes[0] if is_range and indexes else 0
    for count in counts:
        stop = start + count
        if is_range:
            shares.append(single(start) if count == 1 else range(start, stop))
        else:
            shares.append(indexes[start:stop])
        start = stop
    return shares


def _one_each(indexes: Sequence[int], rooms: Sequence[int], open_places: list[int]) -> list[Sequence[int]]:
    """Distribute messages one by one to the consumers in turn."""
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


def rooms_of(consumers: Sequence[Consumer], limit: int) -> list[int]:
    """Return how many messages each consumer can take now. If consumers share their channel's prefetch, each number is
    the consumer's share of `limit` messages distributed round-robin.
    """
    rooms = [consumer.room() for consumer in consumers]
    for consumer in consumers:
        if consumer.session.prefetch_channel:
            return _dealt(consumers, rooms, limit)
    return rooms


def _dealt(consumers: Sequence[Consumer], rooms: Sequence[int], limit: int) -> list[int]:
    left = {consumer.session: consumer.session.room() for consumer in consumers}
    dealt = [0] * len(rooms)
    open_places = list(range(len(rooms)))
    while open_places and limit > 0:
        still_open = []
        for place in open_places:
            session = consumers[place].session
            if dealt[place] < rooms[place] and left[session] > 0 and limit > 0:
                dealt[place] += 1
                limit -= 1
                if not consumers[place].no_ack:
                    left[session] -= 1
                still_open.append(place)
        open_places = still_open
    return dealt
