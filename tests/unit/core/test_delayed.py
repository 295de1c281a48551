"""Messages that an x-delayed-message exchange keeps: when they come, as what, and what happens to them meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest
from pamqp import commands
from structlog.testing import capture_logs

from broker.amqp.content_header import decode_properties, facts_of
from broker.amqp.header_edit import edit_header
from broker.core.durable_topology import restore
from broker.core.message.delay import DELAY_MAX_MS, delay_of, due_ms_of
from broker.core.message.message import Envelope, Message
from broker.core.policy.policy import Policy
from broker.core.queue.queue import Queue
from broker.core.vhost import Vhost
from broker.slots.slot import Slot
from broker.store.record import KIND_AT, MESSAGE, due_of
from tests.unit.core.room import NO_PROPERTIES, Room

HOLDING = "amq.delayed.x"
REFUSED = (
    f"channel 403 ACCESS_REFUSED - queue '{HOLDING}' in vhost '/' holds delayed messages: "
    "it can be purged, nothing else"
)


class DelayedRoom(Room):
    """A room with a delayed exchange `x` of a routing type, and a queue `q` bound to it by the key `k`."""

    def __init__(self, type_: str = "direct", *, durable: bool = False) -> None:
        super().__init__()
        arguments = {"x-delayed-type": type_}
        self.exchange = self.vhost.exchanges.declare("x", "x-delayed-message", durable=durable, arguments=arguments)
        self.queue = self.vhost.queues.declare("q", durable=durable)
        self.vhost.bindings.bind("q", "x", "k")

    @property
    def holding(self) -> Queue:
        """The queue that holds what is not due."""
        return self.vhost.queues[HOLDING]

    def publish(self, delay_ms: int, key: str = "k", body: bytes = b"", **properties: Any) -> None:
        """Publish a message to the exchange now."""
        header = edit_header(NO_PROPERTIES, set_headers={"x-delay": delay_ms, **properties})
        message = Message(Envelope("x", key), header, body, 1, facts_of(header), self.clock.now_ms)
        self.vhost.delays.hold(self.exchange, message, delay_ms)

    def at(self, now_ms: int) -> int:
        """Let the time come and return how many messages have arrived in `q`."""
        self.clock.now_ms = now_ms
        while (due_ms := self.deadlines.next_ms) is not None and due_ms <= now_ms:
            self.deadlines.begin_turn()
            self.deadlines.run(now_ms)
        return self.queue.ready


def arrived(queue: Queue) -> list[Message]:
    """Return the messages of a queue."""
    return [message for slot in queue.stream.manager.slots.values() for message in slot.contents or () if message]


def test_a_message_comes_when_it_is_due_and_not_before() -> None:
    """Each by its own delay, whatever the order in which they were published."""
    room = DelayedRoom()
    for delay_ms in (500, 100, 300):
        room.publish(delay_ms, body=b"%d" % delay_ms)
    assert (room.holding.ready, room.at(99)) == (3, 0)
    assert (room.at(100), room.holding.ready) == (1, 2)
    assert room.at(499) == 2
    assert (room.at(500), room.holding.ready) == (3, 0)
    assert [message.body for message in arrived(room.queue)] == [b"100", b"300", b"500"]
    assert room.deadlines.next_ms is None


def test_messages_due_at_the_same_moment_come_in_the_order_of_their_publishing() -> None:
    """More of them than one turn releases."""
    room = DelayedRoom()
    for number in range(2500):
        room.publish(10, body=b"%d" % number)
    room.clock.now_ms = 10
    room.deadlines.run(10)
    assert 0 < room.queue.ready < 2500  # the rest has its turn when others had theirs
    assert room.at(10) == 2500
    assert [message.body for message in arrived(room.queue)] == [b"%d" % number for number in range(2500)]


def test_the_record_of_a_held_message_says_when_it_is_due() -> None:
    """Recovery finds the moment there. What comes of it is transient here, and has no record."""
    room = DelayedRoom(durable=True)
    room.clock.now_ms = 1000
    room.publish(500)
    room.at(1500)
    records = [record for group in room.groups() for record in group if record[KIND_AT] == MESSAGE]
    assert [due_of(record) for record in records] == [1500]


def test_what_comes_says_how_long_it_was_delayed_and_counts_its_time_from_then() -> None:
    """x-delay is negated, as by the plugin; a TTL begins when the message is in its queue."""
    room = DelayedRoom()
    room.publish(100, other="kept")
    room.at(150)
    (message,) = arrived(room.queue)
    assert decode_properties(message.header).headers == {"x-delay": -100, "other": "kept"}
    assert message.timestamp_ms == 150
    assert delay_of(message.facts.delay) is None


def test_a_message_does_not_expire_while_it_is_held() -> None:
    """Its own TTL is shorter than its delay."""
    room = DelayedRoom()
    header = edit_header(NO_PROPERTIES, set_headers={"x-delay": 100}, set_properties={"expiration": "10"})
    room.vhost.delays.hold(room.exchange, Message(Envelope("x", "k"), header, b"", 1, facts_of(header), 0), 100)
    assert room.at(50) == 0
    assert room.holding.ready == 1
    assert room.at(100) == 1
    assert room.at(110) == 0


@pytest.mark.parametrize(("type_", "key"), [("direct", "k"), ("topic", "k"), ("fanout", "other")])
def test_routing_is_that_of_the_type_and_of_the_moment(type_: str, key: str) -> None:
    """Who was bound meanwhile gets the message; the key decides as it does in an exchange of that type."""
    room = DelayedRoom(type_)
    late = room.vhost.queues.declare("late")
    room.publish(100, key)
    room.publish(100, "nobody's")
    room.vhost.bindings.bind("late", "x", key)
    expected = 2 if type_ == "fanout" else 1
    assert room.at(100) == expected
    assert late.ready == expected


def test_a_delayed_headers_exchange_looks_at_the_headers() -> None:
    """x-delay is among them."""
    room = DelayedRoom("headers")
    room.vhost.bindings.unbind("q", "x", "k")
    room.vhost.bindings.bind("q", "x", "", {"x-match": "all", "colour": "red"})
    room.publish(5, colour="red")
    room.publish(5, colour="blue")
    assert room.at(5) == 1


def test_copies_go_to_the_keys_of_cc() -> None:
    """Each queue once, when the message is due."""
    room = DelayedRoom()
    room.publish(5, "nobody's", CC=["k", "k"])
    assert room.at(5) == 1


def test_a_purge_takes_what_is_held_and_nothing_of_it_comes() -> None:
    """By the name of the holding queue; what is published afterwards is held as before."""
    room = DelayedRoom()
    client = room.enter()
    room.publish(100)
    room.publish(200)
    assert client.call(1, commands.Queue.Purge(queue=HOLDING), commands.Queue.PurgeOk).message_count == 2
    room.publish(150)
    assert room.at(1000) == 1


@pytest.mark.parametrize(
    "method",
    [
        commands.Basic.Consume(queue=HOLDING),
        commands.Basic.Get(queue=HOLDING),
        commands.Queue.Bind(queue=HOLDING, exchange="amq.topic"),
        commands.Queue.Delete(queue=HOLDING),
    ],
    ids=lambda method: method.name,
)
def test_a_holding_queue_can_be_purged_and_nothing_else(method: Any) -> None:
    """It is the exchange's."""
    room = DelayedRoom()
    assert room.enter().refused(method) == REFUSED


def test_a_holding_queue_is_counted_and_cannot_be_declared_or_published_to() -> None:
    """Its name is reserved; the default exchange does not lead to it."""
    room = DelayedRoom()
    client = room.enter()
    room.publish(100)
    declared = client.call(1, commands.Queue.Declare(queue=HOLDING, passive=True), commands.Queue.DeclareOk)
    assert declared.message_count == 1
    client.publish("", HOLDING)
    assert room.holding.ready == 1
    refusal = client.refused(commands.Queue.Declare(queue=HOLDING))
    assert refusal == f"channel 403 ACCESS_REFUSED - queue name '{HOLDING}' contains reserved prefix 'amq.*'"


def test_a_deleted_exchange_drops_what_it_held() -> None:
    """A namesake begins empty."""
    room = DelayedRoom(durable=True)
    room.publish(100)
    room.vhost.exchanges.delete("x")
    assert HOLDING not in room.vhost.queues
    assert room.at(1000) == 0
    kinds = [change["change"] for change in room.journal]
    assert kinds.count("queue_declared") - kinds.count("queue_deleted") == 1


def restarted(room: DelayedRoom) -> tuple[Room, Vhost]:
    """Return a room with what was journalled, before its messages are back."""
    again = Room()
    restore(again.vhost, room.journal)
    return again, again.vhost


def test_what_was_held_before_a_restart_comes_when_it_is_due() -> None:
    """The moments are found again from the messages themselves."""
    room = DelayedRoom(durable=True)
    room.publish(100)
    room.publish(300)
    again, vhost = restarted(room)
    for message in arrived(room.holding):
        vhost.queues[HOLDING].stream.append([message])
    vhost.restored()
    again.deadlines.run(100)
    assert vhost.queues["q"].ready == 0
    again.clock.now_ms = 100
    again.deadlines.run(100)
    assert vhost.queues["q"].ready == 1
    again.clock.now_ms = 300
    again.deadlines.run(300)
    assert vhost.queues["q"].ready == 2


class Disk:
    """Keeps what was paged out, and tells of it when it is told to."""

    def __init__(self, room: Room) -> None:
        self.looks: list[Callable[[], None]] = []
        self.fetches: list[Callable[[], None]] = []
        self.fetched: list[int] = []
        self.at_once = 1000  # so many messages are fetched at most
        self._contents: dict[Slot, list[Message | None]] = {}
        room.vhost.ports.moments = self._moments
        room.vhost.ports.fetch = self._fetch

    def page_out(self, queue: Queue) -> None:
        """Take what a queue has out of memory."""
        queue.stream.manager.seal()
        for slot in queue.stream.manager.slots.values():
            if slot.length and slot.contents is not None:
                self._contents[slot], slot.contents = slot.contents, None

    def _moments(self, _stream: Any, slot: Slot, then: Callable[[Sequence[int]], None]) -> None:
        self.looks.append(lambda: then([due_ms_of(message) for message in self._contents[slot]]))

    def _fetch(
        self, _stream: Any, wanted: Sequence[tuple[int, Slot]], then: Callable[[Mapping[int, Message | None]], None]
    ) -> None:
        wanted = wanted[: self.at_once]
        self.fetched += [message_id for message_id, _ in wanted]
        found = {message_id: self._contents[slot][message_id - slot.first] for message_id, slot in wanted}
        self.fetches.append(lambda: then(found))

    def answer(self) -> None:
        """Answer all questions, and those that come of the answers."""
        while self.looks or self.fetches:
            (self.looks or self.fetches).pop(0)()


def test_what_is_due_and_on_disk_is_read_and_comes() -> None:
    """What becomes due while it is read comes behind it; what is not due is not read, and no slot comes back."""
    room = DelayedRoom()
    disk = Disk(room)
    for delay_ms in (10, 20, 30):
        room.publish(delay_ms, body=b"%d" % delay_ms)
    disk.page_out(room.holding)
    assert room.at(10) == 0
    assert (len(disk.looks), room.deadlines.next_ms) == (1, None)
    disk.looks.pop()()
    assert room.at(10) == 0
    room.publish(5, body=b"5")
    assert room.at(15) == 0
    assert len(disk.fetches) == 1
    disk.answer()
    assert room.at(15) == 2
    assert disk.fetched == [1]
    room.at(30)
    disk.answer()
    assert room.at(30) == 4
    assert [message.body for message in arrived(room.queue)] == [b"10", b"5", b"20", b"30"]
    assert room.deadlines.next_ms is None


def test_what_a_read_leaves_out_is_read_next() -> None:
    """In the order of the moments, whatever slots they are in, and however little is read at a time."""
    room = DelayedRoom()
    disk = Disk(room)
    disk.at_once = 3
    for number in range(60):
        room.publish(1 + number * 37 % 60, body=b"%d" % (1 + number * 37 % 60))
        if number % 7 == 6:
            disk.page_out(room.holding)
    disk.page_out(room.holding)
    for _ in range(200):
        room.at(100)
        disk.answer()
    assert [int(message.body) for message in arrived(room.queue)] == list(range(1, 61))
    assert sorted(disk.fetched) == list(range(1, 61)), "each was read once"
    assert room.deadlines.next_ms is None


def test_a_message_that_cannot_be_read_is_left_out() -> None:
    """With quarantine; the others come."""
    room = DelayedRoom()
    disk = Disk(room)
    room.publish(10, body=b"lost")
    room.publish(20, body=b"there")
    disk.page_out(room.holding)
    room.at(20)
    disk.looks.pop()()
    (slot,) = disk._contents
    disk._contents[slot][0] = None
    room.at(20)
    with capture_logs() as logged:
        disk.answer()
        assert room.at(20) == 1
    assert [entry["event"] for entry in logged] == ["messages.lost"]
    assert (room.holding.ready, arrived(room.queue)[0].body) == (0, b"there")


@pytest.mark.parametrize("reading", ["looks", "fetches"])
def test_a_purge_while_what_is_due_is_read_leaves_nothing_to_come(reading: str) -> None:
    """The read ends with messages that are settled already."""
    room = DelayedRoom()
    disk = Disk(room)
    room.publish(10)
    room.publish(20)
    disk.page_out(room.holding)
    room.at(10)
    if reading == "fetches":
        disk.looks.pop()()
        room.at(10)
    question = getattr(disk, reading).pop()
    room.holding.purge()
    question()
    assert room.at(20) == 0
    room.publish(5)
    assert room.at(25) == 1
    assert not disk.looks


def test_a_deletion_while_what_is_due_is_read_leaves_nothing_to_come() -> None:
    """A namesake does not get it."""
    room = DelayedRoom()
    disk = Disk(room)
    room.publish(10)
    disk.page_out(room.holding)
    room.at(10)
    room.vhost.exchanges.delete("x")
    room.vhost.exchanges.declare("x", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    room.vhost.bindings.bind("q", "x", "")
    disk.answer()
    assert (room.at(20), room.deadlines.next_ms) == (0, None)


def test_the_moments_are_read_from_disk_slot_by_slot() -> None:
    """One read at a time, while what is published since the start is held already; nothing comes before that."""
    room = DelayedRoom(durable=True)
    again, vhost = restarted(room)
    disk = Disk(again)
    holding = vhost.queues[HOLDING]
    for delay_ms in (40, 20):
        room.publish(delay_ms)
        holding.stream.append([arrived(room.holding)[-1]])
        holding.stream.manager.seal()
    disk.page_out(holding)
    vhost.restored()
    assert len(disk.looks) == 1
    disk.looks.pop()()
    assert (len(disk.looks), again.deadlines.next_ms) == (1, None)
    disk.looks.pop()()
    assert (disk.looks, disk.fetched, again.deadlines.next_ms) == ([], [], 20)


def test_a_crash_between_exchange_and_holding_queue_is_mended() -> None:
    """The queue without its exchange goes, the exchange without its queue gets one, and both are journalled."""
    room = DelayedRoom(durable=True)
    changes = [change for change in room.journal if change.get("name") != HOLDING]
    again = Room()
    restore(again.vhost, changes)
    again.vhost.restored()
    assert HOLDING in again.vhost.queues
    assert [change["change"] for change in again.journal] == ["queue_declared"]
    orphan = Room()
    restore(orphan.vhost, [change for change in room.journal if change.get("name") != "x"])
    orphan.vhost.restored()
    assert HOLDING not in orphan.vhost.queues
    assert [change["change"] for change in orphan.journal] == ["queue_deleted"]


@pytest.mark.parametrize(
    ("value", "delay_ms"),
    [
        (1, 1),
        (DELAY_MAX_MS, DELAY_MAX_MS),
        ("250", 250),
        (2.9, 2),
        (Decimal("2.9"), 2),
        (0, None),
        (-5, None),
        (DELAY_MAX_MS + 1, None),
        ("soon", None),
        (True, None),
        (None, None),
        (float("inf"), None),
        ([1], None),
    ],
)
def test_a_delay_is_read_as_the_plugin_reads_it(value: object, delay_ms: int | None) -> None:
    """What is no time is no delay."""
    assert delay_of(value) == delay_ms


def test_a_message_of_an_exchange_that_went_meanwhile_is_dropped() -> None:
    """A transaction may commit a publish to it; a namesake does not take it."""
    room = DelayedRoom()
    room.vhost.exchanges.delete("x")
    room.publish(1)
    room.vhost.exchanges.declare("x", "x-delayed-message", arguments={"x-delayed-type": "direct"})
    room.publish(1)
    assert room.holding.ready == 0


def test_no_policy_applies_to_a_holding_queue() -> None:
    """A limit for all queues must not drop what another queue's limit will let through."""
    room = DelayedRoom()
    room.vhost.policies.set(Policy("all", ".*", "all", {"max-length": 1}))
    for _ in range(3):
        room.publish(5)
    assert (room.holding.policy, room.holding.ready) == (None, 3)
