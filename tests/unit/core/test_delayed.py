"""Messages that an x-delayed-message exchange holds: when they are released, as what, and what affects them before."""

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
from tests.unit.core.room import NO_PROPERTIES, Client, Room, messages

HOLDING = "amq.delayed.x"
REFUSED = (
    f"channel 403 ACCESS_REFUSED - queue '{HOLDING}' in vhost '/' holds delayed messages: "
    "it can be purged, nothing else"
)


class DelayedRoom(Room):
    """A vhost with a delayed exchange `x` of a routing type, and queue `q` bound to it by the key `k`."""

    def __init__(self, type_: str = "direct", *, durable: bool = False) -> None:
        super().__init__()
        arguments = {"x-delayed-type": type_}
        self.exchange = self.vhost.exchanges.declare("x", "x-delayed-message", durable=durable, arguments=arguments)
        self.queue = self.vhost.queues.declare("q", durable=durable)
        self.vhost.bindings.bind("q", "x", "k")

    @property
    def holding(self) -> Queue:
        """The queue that holds messages that are not due."""
        return self.vhost.queues[HOLDING]

    def publish(self, delay_ms: int, key: str = "k", body: bytes = b"", **properties: Any) -> None:
        """Publish a message to the exchange now."""
        header = edit_header(NO_PROPERTIES, set_headers={"x-delay": delay_ms, **properties})
        message = Message(Envelope("x", key), header, body, 1, facts_of(header), self.clock.now_ms)
        self.vhost.delays.hold(self.exchange, message, delay_ms)

    def at(self, now_ms: int) -> int:
        """Move the clock and return how many messages have arrived in `q`."""
        self.clock.now_ms = now_ms
        while (due_ms := self.deadlines.next_ms) is not None and due_ms <= now_ms:
            self.turn()
        return self.queue.ready


@pytest.fixture
def room() -> DelayedRoom:
    """Return a vhost with a transient exchange of type direct."""
    return DelayedRoom()


def test_a_message_comes_when_it_is_due_and_not_before(room: DelayedRoom) -> None:
    """Messages arrive by their own delays, in any order of publishing."""
    for delay_ms in (500, 100, 300):
        room.publish(delay_ms, body=b"%d" % delay_ms)
    assert (room.holding.ready, room.at(99)) == (3, 0)
    assert (room.at(100), room.holding.ready) == (1, 2)
    assert room.at(499) == 2
    assert (room.at(500), room.holding.ready) == (3, 0)
    assert [message.body for message in messages(room.queue)] == [b"100", b"300", b"500"]
    assert room.deadlines.next_ms is None


def test_messages_due_at_the_same_moment_come_in_the_order_of_their_publishing(room: DelayedRoom) -> None:
    """Messages due at one time arrive in publishing order, also when one turn cannot release all."""
    for number in range(2500):
        room.publish(10, body=b"%d" % number)
    room.clock.now_ms = 10
    room.deadlines.run(10)
    assert 0 < room.queue.ready < 2500  # the rest is released in the next turn
    assert room.at(10) == 2500
    assert [message.body for message in messages(room.queue)] == [b"%d" % number for number in range(2500)]


def test_the_record_of_a_held_message_says_when_it_is_due() -> None:
    """Recovery reads the due time from the record. The released message is transient here and has no record."""
    room = DelayedRoom(durable=True)
    room.clock.now_ms = 1000
    room.publish(500)
    room.at(1500)
    records = [record for group in room.groups() for record in group if record[KIND_AT] == MESSAGE]
    assert [due_of(record) for record in records] == [1500]


def test_what_comes_says_how_long_it_was_delayed_and_counts_its_time_from_then(room: DelayedRoom) -> None:
    """x-delay is negated, as by the plugin, and a TTL starts when the message enters its queue."""
    room.publish(100, other="kept")
    room.at(150)
    (message,) = messages(room.queue)
    assert decode_properties(message.header).headers == {"x-delay": -100, "other": "kept"}
    assert message.timestamp_ms == 150
    assert delay_of(message.facts.delay) is None


def test_a_message_does_not_expire_while_it_is_held(room: DelayedRoom) -> None:
    """A held message does not expire, even if its TTL is shorter than its delay."""
    header = edit_header(NO_PROPERTIES, set_headers={"x-delay": 100}, set_properties={"expiration": "10"})
    room.vhost.delays.hold(room.exchange, Message(Envelope("x", "k"), header, b"", 1, facts_of(header), 0), 100)
    assert room.at(50) == 0
    assert room.holding.ready == 1
    assert room.at(100) == 1
    assert room.at(110) == 0


@pytest.mark.parametrize(("type_", "key"), [("direct", "k"), ("topic", "k"), ("fanout", "other")])
def test_routing_is_that_of_the_type_and_of_the_moment(type_: str, key: str) -> None:
    """Queues that are bound meanwhile get the message; the key decides as in an exchange of that type."""
    room = DelayedRoom(type_)
    late = room.vhost.queues.declare("late")
    room.publish(100, key)
    room.publish(100, "nobody's")
    room.vhost.bindings.bind("late", "x", key)
    expected = 2 if type_ == "fanout" else 1
    assert room.at(100) == expected
    assert late.ready == expected


def test_a_delayed_headers_exchange_looks_at_the_headers() -> None:
    """A delayed headers exchange matches all headers, x-delay among them."""
    room = DelayedRoom("headers")
    room.vhost.bindings.unbind("q", "x", "k")
    room.vhost.bindings.bind("q", "x", "", {"x-match": "all", "colour": "red"})
    room.publish(5, colour="red")
    room.publish(5, colour="blue")
    assert room.at(5) == 1


def test_copies_go_to_the_keys_of_cc(room: DelayedRoom) -> None:
    """CC keys are routed when the message is due; each queue gets one copy."""
    room.publish(5, "nobody's", CC=["k", "k"])
    assert room.at(5) == 1


def test_a_purge_takes_what_is_held_and_nothing_of_it_comes(room: DelayedRoom, client: Client) -> None:
    """Purging the holding queue by its name drops all held messages; later messages are held as before."""
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
def test_a_holding_queue_can_be_purged_and_nothing_else(method: Any, room: DelayedRoom) -> None:
    """A holding queue belongs to its exchange: clients may purge it and nothing else."""
    assert room.enter().refused(method) == REFUSED


def test_a_holding_queue_is_counted_and_cannot_be_declared_or_published_to(room: DelayedRoom, client: Client) -> None:
    """The name of a holding queue is reserved, and the default exchange does not route to it."""
    room.publish(100)
    declared = client.call(1, commands.Queue.Declare(queue=HOLDING, passive=True), commands.Queue.DeclareOk)
    assert declared.message_count == 1
    client.publish("", HOLDING)
    assert room.holding.ready == 1
    refusal = client.refused(commands.Queue.Declare(queue=HOLDING))
    assert refusal == f"channel 403 ACCESS_REFUSED - queue name '{HOLDING}' contains reserved prefix 'amq.*'"


def test_a_deleted_exchange_drops_what_it_held() -> None:
    """A deleted exchange drops its held messages; a new one of that name starts empty."""
    room = DelayedRoom(durable=True)
    room.publish(100)
    room.vhost.exchanges.delete("x")
    assert HOLDING not in room.vhost.queues
    assert room.at(1000) == 0
    kinds = [change["change"] for change in room.journal]
    assert kinds.count("queue_declared") - kinds.count("queue_deleted") == 1


def restarted(room: DelayedRoom) -> tuple[Room, Vhost]:
    """Return a vhost restored from the journal, before its messages are restored."""
    again = Room()
    restore(again.vhost, room.journal)
    return again, again.vhost


def test_what_was_held_before_a_restart_comes_when_it_is_due() -> None:
    """Recovery finds the due times in the messages themselves."""
    room = DelayedRoom(durable=True)
    room.publish(100)
    room.publish(300)
    again, vhost = restarted(room)
    for message in messages(room.holding):
        vhost.queues[HOLDING].level.append([message])
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
    """Holds paged-out messages and answers reads when the test says so."""

    def __init__(self, room: Room) -> None:
        self.looks: list[Callable[[], None]] = []
        self.fetches: list[Callable[[], None]] = []
        self.fetched: list[int] = []
        self.at_once = 1000  # one fetch returns at most this many messages
        self._contents: dict[Slot, list[Message | None]] = {}
        room.vhost.ports.moments = self._moments
        room.vhost.ports.fetch = self._fetch

    def page_out(self, queue: Queue) -> None:
        """Page out all messages of a queue."""
        queue.level.manager.seal()
        for slot in queue.level.manager.slots.values():
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
        """Answer all reads, and the reads that follow from the answers."""
        while self.looks or self.fetches:
            (self.looks or self.fetches).pop(0)()


def test_what_is_due_and_on_disk_is_read_and_comes(room: DelayedRoom) -> None:
    """Messages that become due during the read follow it; messages that are not due stay on disk."""
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
    assert [message.body for message in messages(room.queue)] == [b"10", b"5", b"20", b"30"]
    assert room.deadlines.next_ms is None


def test_what_a_read_leaves_out_is_read_next(room: DelayedRoom) -> None:
    """Reads return messages in the order of their due times, across slots and however small a read is."""
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
    assert [int(message.body) for message in messages(room.queue)] == list(range(1, 61))
    assert sorted(disk.fetched) == list(range(1, 61)), "each was read once"
    assert room.deadlines.next_ms is None


def test_a_message_that_cannot_be_read_is_left_out(room: DelayedRoom) -> None:
    """With quarantine, an unreadable message is skipped and the others arrive."""
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
    assert (room.holding.ready, messages(room.queue)[0].body) == (0, b"there")


@pytest.mark.parametrize("reading", ["looks", "fetches"])
def test_a_purge_while_what_is_due_is_read_leaves_nothing_to_come(reading: str, room: DelayedRoom) -> None:
    """A purge settles the messages of a read that is under way."""
    disk = Disk(room)
    room.publish(10)
    room.publish(20)
    disk.page_out(room.holding)
    room.at(10)
    if reading == "fetches":
        disk.looks.pop()()
        room.at(10)
    question = getattr(disk, reading).pop()
    room.holding.purge(lambda _count: None)
    question()
    assert room.at(20) == 0
    room.publish(5)
    assert room.at(25) == 1
    assert not disk.looks


def test_a_deletion_while_what_is_due_is_read_leaves_nothing_to_come(room: DelayedRoom) -> None:
    """A deletion ends a read that is under way; a new exchange of that name gets nothing."""
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
    """One read at a time restores the due times; new messages are held meanwhile, and nothing is released before."""
    room = DelayedRoom(durable=True)
    again, vhost = restarted(room)
    disk = Disk(again)
    holding = vhost.queues[HOLDING]
    for delay_ms in (40, 20):
        room.publish(delay_ms)
        holding.level.append([messages(room.holding)[-1]])
        holding.level.manager.seal()
    disk.page_out(holding)
    vhost.restored()
    assert len(disk.looks) == 1
    disk.looks.pop()()
    assert (len(disk.looks), again.deadlines.next_ms) == (1, None)
    disk.looks.pop()()
    assert (disk.looks, disk.fetched, again.deadlines.next_ms) == ([], [], 20)


def test_a_crash_between_exchange_and_holding_queue_is_mended() -> None:
    """A holding queue without its exchange is deleted; an exchange without its queue gets one. Both are journalled."""
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
    """An invalid x-delay is not a delay, as in the plugin."""
    assert delay_of(value) == delay_ms


def test_a_message_of_an_exchange_that_went_meanwhile_is_dropped(room: DelayedRoom) -> None:
    """A transaction that commits to a deleted exchange loses the message; a new one of that name gets nothing."""
    room.vhost.exchanges.delete("x")
    room.publish(1)
    room.vhost.exchanges.declare("x", "x-delayed-message", arguments={"x-delayed-type": "direct"})
    room.publish(1)
    assert room.holding.ready == 0


def test_no_policy_applies_to_a_holding_queue(room: DelayedRoom) -> None:
    """A limit for all queues must not drop messages that another queue would accept."""
    room.vhost.policies.set(Policy("all", ".*", "all", {"max-length": 1}))
    for _ in range(3):
        room.publish(5)
    assert (room.holding.policy, room.holding.ready) == (None, 3)
