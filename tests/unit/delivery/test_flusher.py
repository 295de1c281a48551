"""The flusher: which consumer gets which message, and the frames and tags of the deliveries."""

from __future__ import annotations

import pytest
from pamqp import commands, frame, header
from pamqp.body import ContentBody

from broker.amqp.content_header import facts_of
from broker.amqp.framing import LARGE_BYTES
from broker.core.message.message import Envelope, Message
from broker.delivery.flusher import deliver, rooms_of, spread
from broker.slots.slot import Slot
from tests.unit.core.room import Room

CHANNEL = 5


# ---- spread ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rooms", "shares"),
    [
        ([9], [[10, 11, 12, 13, 14, 15, 16]]),
        ([9, 9], [[10, 12, 14, 16], [11, 13, 15]]),
        ([1, 9, 2], [[10], [11, 13, 15, 16], [12, 14]]),
        ([2, 2, 3], [[10, 13], [11, 14], [12, 15, 16]]),
        ([1 << 30, 1], [[10, 12, 13, 14, 15, 16], [11]]),
        ([9, 9, 9, 9, 9, 9, 9, 9], [[10], [11], [12], [13], [14], [15], [16], []]),
        ([0, 9, 0], [[], [10, 11, 12, 13, 14, 15, 16], []]),
    ],
)
def test_messages_are_dealt_out_in_a_round(rooms: list[int], shares: list[list[int]]) -> None:
    """Each consumer gets one message per round while it has room; a full consumer is skipped."""
    assert [list(share) for share in spread(range(10, 17), rooms)] == shares


@pytest.mark.parametrize(
    ("rooms", "sizes"),
    [
        ([999, 999], [128, 128]),
        ([1 << 30, 5, 999], [126, 5, 125]),
        ([0, 256, 0], [0, 256, 0]),
        ([1] * 300, [1] * 256 + [0] * 44),
    ],
)
def test_a_full_batch_is_dealt_out_in_pieces(rooms: list[int], sizes: list[int]) -> None:
    """Each consumer gets consecutive messages, as many as the others while it has room."""
    shares = spread(range(10, 266), rooms)
    assert [index for share in shares for index in share] == list(range(10, 266))
    assert [len(share) for share in shares] == sizes
    assert all(isinstance(share, range) for share in shares)


def test_nothing_to_deal_out() -> None:
    """Without messages every share is empty."""
    assert spread([], [3, 1]) == [[], []]


@pytest.mark.parametrize(
    ("prefetch", "own", "no_ack", "most", "rooms"),
    [
        (1, [0, 0], "", 100, [1, 0]),
        (5, [0, 0, 0], "", 100, [2, 2, 1]),
        (5, [1, 0, 2], "", 100, [1, 2, 2]),
        (9, [0, 0], "", 3, [2, 1]),
        (1, [0, 0], "b", 100, [1, 0]),
        (1, [0, 0], "a", 100, [1, 1]),
        (0, [5, 3], "", 2, [5, 3]),
    ],
)
def test_a_shared_prefetch_is_dealt_out_in_a_round(
    prefetch: int, own: list[int], no_ack: str, most: int, rooms: list[int]
) -> None:
    """Consumers of a channel share its prefetch, one message each; consumers without acks use none of it."""
    room = Room()
    client = room.enter()
    client.basic().prefetch_channel = prefetch
    queue = room.vhost.queues.declare("q")
    tags = zip("abc"[: len(own)], own, strict=True)
    consumers = [client.consumer(queue, tag, prefetch=limit, no_ack=tag in no_ack) for tag, limit in tags]
    assert rooms_of(consumers, most) == rooms


# ---- deliver ---------------------------------------------------------------------------------------------------------


class Place:
    """A queue with one slot, and a channel with one consumer."""

    def __init__(self, *bodies: bytes, no_ack: bool = False, frame_max: int = 4096) -> None:
        room = Room()
        self.client = room.enter()
        self.client.open_channel(CHANNEL)
        self.connection = self.client.machine
        self.connection.frame_max = frame_max
        self.queue = queue = room.vhost.queues.declare("q")
        self.level = queue.level
        self.manager = self.level.manager
        for body in bodies:
            content = header.ContentHeader(body_size=len(body), properties=commands.Basic.Properties(app_id="a"))
            payload = frame.marshal(content, 1)[7:-1]
            self.level.append([Message(Envelope("exchange", "the.key"), payload, body, 1, facts_of(payload), 0)])
        slot = self.manager.get(queue.worker.owner)
        assert slot is not None
        self.slot: Slot = slot
        self.session = self.client.basic(CHANNEL)
        self.consumer = self.client.consumer(queue, "tag", CHANNEL, no_ack=no_ack)
        self.woken_before = self.client.taker.told

    @property
    def wakes(self) -> int:
        """The number of times the connection was woken for output."""
        return self.client.taker.told - self.woken_before

    @property
    def settled(self) -> list[int]:
        """The messages that are settled."""
        return [index for index in range(self.slot.length) if index in self.slot.acks]

    def take(self) -> list[int]:
        """Take all messages of the slot."""
        return list(self.manager.take(self.slot, 1000))

    def deliver_all(self) -> int:
        """Deliver all messages of the slot, as the worker does, and return how many were taken."""
        return deliver(self.consumer, self.level, self.slot, self.manager.take(self.slot, 1000))

    def deliver(self, *indexes: int) -> int:
        """Deliver the messages and return how many were taken."""
        return deliver(self.consumer, self.level, self.slot, indexes)

    def sent(self) -> list[tuple[int | None, bool, bytes]]:
        """Return (tag, redelivered, body) of each whole delivery in the output."""
        octets = b"".join(self.connection.out)
        found: list[tuple[int | None, bool, bytes]] = []
        while octets:
            size, channel, value = frame.unmarshal(octets)
            assert size <= self.connection.frame_max
            assert channel == CHANNEL
            octets = octets[size:]
            if isinstance(value, commands.Basic.Deliver):
                assert (value.consumer_tag, value.exchange, value.routing_key) == ("tag", "exchange", "the.key")
                tag, redelivered, body = value.delivery_tag, value.redelivered, b""
            elif isinstance(value, header.ContentHeader):
                assert value.properties.app_id == "a"
                left = value.body_size
            else:
                assert isinstance(value, ContentBody)
                assert value.value is not None
                body += value.value
            if not isinstance(value, commands.Basic.Deliver) and len(body) == left:
                found.append((tag, redelivered, body))
        return found


def test_deliveries_are_whole_whatever_their_size() -> None:
    """Bodies of no, one and many frames arrive as published, under ascending tags."""
    bodies = [b"", b"x", b"y" * 4088, b"z" * 4089, b"w" * 20_000]
    place = Place(*bodies)
    assert place.deliver(*place.take()) == 5
    assert place.sent() == [(tag, False, body) for tag, body in enumerate(bodies, 1)]
    assert place.connection.out_bytes >= sum(map(len, bodies))
    assert (place.consumer.unacked, place.session.outstanding, place.wakes) == (5, 5, 1)
    assert place.session.last_served is place.consumer
    (delivery,) = place.session.unacked.take_all()
    assert (delivery.level, delivery.slot, delivery.consumer) == (place.level, place.slot, place.consumer)
    assert delivery.indexes == range(5)
    assert place.settled == []


def test_deliveries_one_by_one_are_those_of_a_batch() -> None:
    """The cached parts of a delivery fit only a next one with the same header and the same block of tags."""
    bodies = [b"a", b"b", b"cc", b"dd", b"e", b"", b"f" * 300, b"g" * 300, b"h"] * 60
    place = Place(*bodies)
    contents = place.slot.contents
    assert contents is not None
    headers: dict[int, bytes] = {}
    for message in contents:
        message.header = headers.setdefault(len(message.body), message.header)
    for index in place.take():
        assert place.deliver(index) == 1
    assert place.sent() == [(tag, False, body) for tag, body in enumerate(bodies, 1)]


def test_queues_with_the_same_messages_share_frames() -> None:
    """Each consumer gets its own tags, the rest is made once; other limits, or other messages, make it anew."""
    bodies = [b"%d" % number for number in range(20)]
    first, *others = (Place(*bodies, frame_max=frame_max) for frame_max in (4096, 4096, 4096, 8192))
    for place in others:
        assert place.slot.contents is not None
        assert first.slot.contents is not None
        place.slot.contents[:] = first.slot.contents
    for place, last_tag in zip((first, *others), (0, 250, 2, 509), strict=True):  # two of them end a block of tags
        place.connection.take_output()
        place.session.unacked.last_tag = last_tag
        assert place.deliver_all() == len(bodies)
        assert place.sent() == [(tag, False, body) for tag, body in enumerate(bodies, last_tag + 1)]
        assert place.connection.out_bytes >= sum(map(len, place.connection.out))
    second, third, fourth = (place.connection.out for place in others)
    assert all(any(piece is other for other in third) for piece in second[2::3])
    assert len(second) == len(third) == 3 * len(bodies)
    assert len(fourth) > len(second)
    place = Place(*bodies[1:], b"another")
    place.connection.take_output()
    place.deliver_all()
    assert [body for _tag, _redelivered, body in place.sent()] == [*bodies[1:], b"another"]


def test_few_messages_are_appended_one_by_one_unless_other_queues_have_them() -> None:
    """A batch has a high price of its own: it pays for many messages, or for those that several queues deliver."""
    first, second, third = (Place(b"1", b"2") for _ in range(3))
    for place in (second, third):
        assert place.slot.contents is not None
        assert first.slot.contents is not None
        place.slot.contents[:] = first.slot.contents
    for place, pieces_each in ((first, 7), (second, 5), (third, 3), (Place(*[b"x"] * 16), 5), (Place(b"3", b"4"), 7)):
        place.connection.take_output()
        assert len(place.connection.out) == 0
        count = place.deliver_all()
        assert len(place.connection.out) == pieces_each * count
        assert [tag for tag, _, _ in place.sent()] == list(range(1, count + 1))


def test_consumers_share_the_octets_of_consecutive_tags() -> None:
    """All but the last octet of a delivery tag are made once for 256 deliveries, whichever consumers these are for."""
    place = Place(*[b"x"] * 600)
    place.connection.take_output()
    other = place.client.consumer(place.queue, "tag", CHANNEL)
    for index in place.take():
        assert deliver((place.consumer, other)[index % 2], place.level, place.slot, (index,)) == 1
    assert [tag for tag, _, _ in place.sent()] == list(range(1, 601))
    assert len({id(piece) for piece in place.connection.out if len(piece) == 7}) == 3  # tags from 0, 256 and 512 on


def test_shared_frames_stop_at_high_water() -> None:
    """A consumer whose output has room for some of a batch takes some of it, although it was encoded as a whole."""
    first, second = Place(*[b"x" * 100] * 10), Place(*[b"x" * 100] * 10)
    assert first.slot.contents is not None
    assert second.slot.contents is not None
    second.slot.contents[:] = first.slot.contents
    second.connection.take_output()
    assert first.deliver_all() == 10
    second.session.output_window.high_water_bytes = 500
    assert 0 < second.deliver_all() < 10


@pytest.mark.parametrize("frame_max", [131_072, 0])
def test_large_bodies_go_out_as_they_are(frame_max: int) -> None:
    """Large bodies are handed on apart from the joined output, and none is copied."""
    sizes = [1, LARGE_BYTES - 1, LARGE_BYTES, 200_000, 131_064 + 5, 16]
    bodies = [bytes([place + 1]) * size for place, size in enumerate(sizes)]
    place = Place(*bodies, frame_max=frame_max)
    place.session.output_window.high_water_bytes = 1 << 20
    place.connection.take_output()
    assert place.deliver(*place.take()) == len(bodies)
    whole = b"".join(place.connection.out)
    assert place.connection.out_bytes >= len(whole)
    assert not frame_max or place.sent() == [(tag, False, body) for tag, body in enumerate(bodies, 1)]
    pieces = place.connection.take_output()
    assert b"".join(pieces) == whole
    parts = [LARGE_BYTES, 131_064, 200_000 - 131_064, 131_064] if frame_max else [LARGE_BYTES, 200_000, 131_069]
    assert [len(piece) for piece in pieces[1::2]] == parts
    assert len(pieces) == 2 * len(parts) + 1
    held = {id(body) for body in bodies}
    assert all(id(piece.obj if isinstance(piece, memoryview) else piece) in held for piece in pieces[1::2])


def test_deliveries_without_acks_are_settled_at_once() -> None:
    """Delivered messages without acks are settled at once and take a tag, but are not unacked."""
    place = Place(b"1", b"2", b"3", no_ack=True)
    place.session.output_window.high_water_bytes = 1
    assert place.deliver(*place.take()) == 1
    assert place.settled == [0]
    assert (place.consumer.unacked, place.session.outstanding) == (0, 0)
    assert place.session.unacked.last_tag == 1
    assert place.session.unacked.count == 0


def test_deliveries_stop_at_high_water() -> None:
    """The message that passes high water is sent, the ones after it are not; without messages no one is woken."""
    place = Place(*[b"x" * 1000] * 10)
    indexes = place.take()
    place.session.output_window.high_water_bytes = 2500
    assert place.deliver(*indexes) == 3
    assert len(place.sent()) == 3
    assert place.connection.out_bytes >= 2500
    place.connection.take_output()
    place.session.output_window.high_water_bytes = 0
    assert place.deliver(*indexes[3:]) == 0
    assert place.wakes == 1
    assert place.session.unacked.last_tag == 3


def test_large_bodies_count_a_quarter_towards_high_water() -> None:
    """A turn may bring more octets of large bodies than of small ones, because they are handed on and not joined."""
    place = Place(*[b"x" * 100_000] * 8, frame_max=131_072)
    place.session.output_window.high_water_bytes = 100_000
    assert place.deliver(*place.take()) == 4
    assert place.connection.out_bytes >= 400_000


def test_redelivered_messages_say_so() -> None:
    """Messages that were delivered before are marked; in a slot recovered after a crash all are."""
    place = Place(b"1", b"2", b"3")
    indexes = place.take()
    place.manager.requeue(place.slot, [1], failed=True)
    assert place.manager.take(place.slot, 1) == range(1, 2)
    place.deliver(*indexes)
    assert [redelivered for _, redelivered, _ in place.sent()] == [False, True, False]
    place = Place(b"1", b"2")
    place.slot.recovered = True
    place.deliver(*place.take())
    assert [redelivered for _, redelivered, _ in place.sent()] == [True, True]


def test_a_failure_in_between_keeps_the_books() -> None:
    """An undeliverable message fails, the messages before it are recorded, and no tag is used twice."""
    place = Place(b"1", b"2", b"3", b"4")
    indexes = place.take()
    assert place.slot.contents is not None
    place.slot.contents[2] = None
    with pytest.raises((AttributeError, TypeError)):  # the compiled module raises the latter
        place.deliver(*indexes)
    assert (place.session.unacked.count, place.session.unacked.last_tag) == (2, 2)
    assert (place.consumer.unacked, place.session.outstanding) == (2, 2)
    assert place.deliver(3) == 1
    tags = [tag for tag, _, _ in place.sent()]
    assert tags == sorted(set(tags), key=lambda tag: tag or 0)
    assert [body for _, _, body in place.sent()] == [b"1", b"2", b"4"]
    assert place.connection.out_bytes > 0
