"""Workers: how queues are assigned to them, what happens when one fails, and the order of service."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.amqp.content_header import facts_of
from broker.amqp.framing import FRAME_BODY
from broker.amqp.output import ConnectionOutput
from broker.core.message.message import Envelope, Message
from broker.core.queue.consumer import Consumer
from broker.core.queue.consumer_ring import ConsumerRing
from broker.core.queue.level import Level
from broker.core.queue.queue import Queue
from broker.core.session.basic import BasicSession
from broker.delivery.awaited_queues import AwaitedQueues
from broker.delivery.reader import READ_COST
from broker.delivery.worker import FAILURES_MAX, FULL_QUEUES, QUEUE_COST, TURN_MESSAGES, Workers
from broker.slots.slot import Slot
from broker.store.damage import StoreFailed
from tests.unit.core.room import FOLDER, FRAME_HEAD, NO_PROPERTIES, Room


def count(monkeypatch: pytest.MonkeyPatch, calls: list[str], kind: type, name: str) -> None:
    """Append the name of a method to a list at each of its calls."""
    method = getattr(kind, name)

    def counted(*arguments: Any) -> Any:
        calls.append(name)
        return method(*arguments)

    monkeypatch.setattr(kind, name, counted)


class Office:
    """Workers, their queues, and everything that one connection received from these."""

    def __init__(self, count: int) -> None:
        self.scheduled = 0
        self.room = Room()
        reader: Any = SimpleNamespace(
            read_ahead=lambda _stream, _slot: None, read=self._read, read_cached=lambda _stream, _slot: False, spent=0
        )
        self.reader = reader
        self.awaited = AwaitedQueues(self.room.deadlines, self.room.clock, self._schedule)
        self.workers = Workers("node", count, reader, self._schedule, self.awaited)
        ports = self.room.vhost.ports
        ports.assign, ports.retire, ports.window_messages = self.workers.assign, self.workers.release, 100
        ports.credit = self.workers.credit
        self.room.vhost.share = self.workers.share
        self.client = self.room.enter()
        self.client.session.output_window.high_water_bytes = 1 << 30  # the output is never taken
        self.client.open_channel(2)
        self._kept: list[tuple[list[Any], int, Any]] = []

    def _schedule(self) -> None:
        self.scheduled += 1

    def _read(self, stream: Level, slot: Slot, then: Callable[[], None]) -> None:
        raise StoreFailed(FOLDER, "gone")

    def queue(self, name: str, messages: int = 0, consumers: int = 1, prefetch: int = 0) -> Queue:
        """Declare a queue with messages `name-0`, `name-1` ... and wake it.

        Its consumers are on channels 1, 2 ... and never ack; the prefetch applies to the first one.
        """
        queue = self.room.vhost.queues.declare(name)
        self.publish(queue, messages)
        for channel in range(1, consumers + 1):
            queue.add_consumer(self.client.consumer(queue, channel=channel, prefetch=prefetch if channel == 1 else 0))
        return queue

    @staticmethod
    def publish(queue: Queue, messages: int) -> None:
        """Append messages, whose bodies are numbered from the first one in the queue, and wake it."""
        envelope, facts = Envelope("", queue.name), facts_of(NO_PROPERTIES)
        for number in range(queue.level.published, queue.level.published + messages):
            body = f"{queue.name}-{number}".encode()
            header = NO_PROPERTIES[:4] + len(body).to_bytes(8, "big") + NO_PROPERTIES[12:]
            queue.level.append([Message(envelope, header, body, 1, facts, 0)])
        queue.wake()

    def share(self, prefetch: int, *queues: Queue) -> BasicSession:
        """Consume from queues on channel 1 under one prefetch, used up until `free`, and return the session."""
        session = self.client.basic()
        session.prefetch_channel = session.outstanding = prefetch
        for queue in queues:
            consumer = session.consumers[queue.name] = self.client.consumer(queue, queue.name)
            queue.add_consumer(consumer)
        self.workers.turn()
        return session

    def lose(self, queue: Queue, number: int) -> None:
        """Make every delivery of a queue's message fail with this error, until `find()`."""
        for slot in queue.level.manager.slots.values():
            index = number + 1 - slot.first  # the id of the first message is 1
            if slot.contents is not None and 0 <= index < len(slot.contents):
                self._kept.append((slot.contents, index, slot.contents[index]))
                slot.contents[index] = None

    def find(self) -> None:
        """Restore every lost message."""
        while self._kept:
            contents, index, message = self._kept.pop()
            contents[index] = message

    @property
    def delivered(self) -> list[str]:
        """The bodies that were delivered, in order."""
        octets, at = b"".join(self.client.machine.out), 0
        bodies: list[str] = []
        while at < len(octets):
            kind, _, size = FRAME_HEAD.unpack_from(octets, at)
            if kind == FRAME_BODY:
                bodies.append(octets[at + 7 : at + 7 + size].decode())
            at += 8 + size
        return bodies

    def names(self) -> list[list[str]]:
        """Return the names of the queues by worker, in the order of the workers' names."""
        ordered = sorted(self.workers.workers, key=lambda worker: worker.owner.worker)
        return [sorted(queue.name for queue in worker.queues) for worker in ordered]


@pytest.fixture
def office() -> Office:
    """Return an office with one worker."""
    return Office(1)


def test_queues_go_to_whoever_has_the_fewest() -> None:
    """A queue is assigned to the worker with the fewest queues, also after deletions."""
    office = Office(3)
    for number in range(6):
        office.queue(str(number))
    assert office.names() == [["0", "3"], ["1", "4"], ["2", "5"]]
    for number in (1, 4):
        office.room.vhost.queues.delete(str(number), None)
    for number in (6, 7):
        office.queue(str(number))
    assert office.names() == [["0", "3"], ["6", "7"], ["2", "5"]]


@pytest.mark.parametrize("count", [1, 2])
def test_a_worker_that_fails_is_retired(count: int) -> None:
    """The leases of a failed worker are returned, a new worker replaces it, and others serve its queues."""
    office = Office(count)
    queues = [office.queue(name, 30) for name in ("a", "b", "c", "d")]
    failing = queues[0].worker
    moved = [queue for queue in queues if queue.worker is failing]
    office.lose(queues[0], 7)
    with capture_logs() as events:
        office.workers.turn()
    office.find()
    assert [event["queues"] for event in events if event["event"] == "worker.died"] == [len(moved)]
    assert failing not in office.workers.workers
    assert all(queue.worker is not failing for queue in queues)
    assert sorted(name for names in office.names() for name in names) == ["a", "b", "c", "d"]
    assert len(office.workers.workers) == count, "a new one took its place"
    for queue in moved:
        assert not queue.level.manager.leased_to(failing.owner)
    office.workers.turn()
    expected = [f"{queue.name}-{number}" for queue in queues for number in range(30)]
    assert sorted(office.delivered) == sorted(expected), "each message once"
    assert [name for name in office.delivered if name.startswith("a")] == expected[:30]
    assert not any(queue.awake for queue in queues)


def test_a_queue_that_ends_every_worker_is_not_served_for_ever() -> None:
    """After failing several workers, a queue is not served until its next event; the other queues are served."""
    office = Office(2)
    queue = office.queue("q", 3)
    office.queue("other", 3)
    office.lose(queue, 0)
    with capture_logs() as events:
        for _ in range(20):
            office.workers.turn()
    assert sum(event["event"] == "worker.died" for event in events) == FAILURES_MAX
    assert office.delivered == ["other-0", "other-1", "other-2"]
    office.find()
    queue.wake()
    office.workers.turn()
    assert office.delivered[3:] == ["q-0", "q-1", "q-2"]


def test_what_was_taken_and_not_delivered_is_put_back(office: Office) -> None:
    """A failure during a round requeues every message that no consumer got."""
    queue = office.queue("q", 20, consumers=2, prefetch=3)
    office.lose(queue, 9)
    with capture_logs():
        office.workers.turn()
    office.find()
    held = sum(office.client.basic(channel).unacked.count for channel in (1, 2))
    assert (queue.ready, queue.unacked) == (20 - held, held)
    assert 3 <= held < 20
    office.workers.turn()
    assert sorted(office.delivered) == sorted(f"q-{number}" for number in range(20))


@pytest.mark.interpreted("the calls are counted in the classes")
def test_a_lone_message_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only message of a queue with one consumer costs neither a list of consumers nor a lease by the queue."""
    calls: list[str] = []
    office = Office(1)
    queues = [office.queue(name) for name in "abcd"]
    count(monkeypatch, calls, ConsumerRing, "next")
    count(monkeypatch, calls, Queue, "lease")
    for _ in range(3):
        for queue in queues:
            office.publish(queue, 1)
        office.workers.turn()
    assert office.delivered == [f"{name}-{number}" for number in range(3) for name in "abcd"]
    assert not calls
    office.publish(queues[0], 2)
    office.workers.turn()
    assert calls == ["next", "lease"]


@pytest.mark.interpreted("the calls are counted in the classes")
def test_one_message_for_each_consumer_costs_one_call_each(monkeypatch: pytest.MonkeyPatch, office: Office) -> None:
    """A queue is leased once and its round moved once; a consumer costs one delivery, which touches its connection."""
    queue = office.queue("q", 0, consumers=2)
    calls: list[str] = []
    count(monkeypatch, calls, ConsumerRing, "next")
    count(monkeypatch, calls, ConsumerRing, "served")
    count(monkeypatch, calls, Queue, "lease")
    count(monkeypatch, calls, Consumer, "deliver_one")
    count(monkeypatch, calls, ConnectionOutput, "touch")
    for turn in range(3):
        office.publish(queue, 2)
        office.workers.turn()
        assert office.delivered[2 * turn :] == [f"q-{2 * turn}", f"q-{2 * turn + 1}"]
        assert calls == ["next", "lease", *["deliver_one", "touch"] * 2, "served"]
        assert [office.client.basic(channel).unacked.count for channel in (1, 2)] == [turn + 1, turn + 1]
        calls.clear()


def test_one_message_for_each_consumer_goes_past_one_without_room(office: Office) -> None:
    """Two consumers share a prefetch of 1, which the first of them uses up: the third gets the second message."""
    queue = office.room.vhost.queues.declare("q")
    office.client.basic(1).prefetch_channel = 1
    for place, channel in enumerate((1, 1, 2)):
        queue.add_consumer(office.client.consumer(queue, f"c{place}", channel))
    office.publish(queue, 3)
    office.workers.turn()
    assert [office.client.basic(channel).unacked.count for channel in (1, 2)] == [1, 2]


def test_returned_messages_for_several_consumers_are_redelivered(office: Office) -> None:
    """One message for each of two consumers, which both came back, is marked."""
    office.queue("q", 2, consumers=2)
    office.workers.turn()
    for channel in (1, 2):
        session = office.client.basic(channel)
        session.requeue(session.unacked.take_all(), failed=True)
    office.workers.turn()
    assert [office.client.basic(channel).tally.redeliver for channel in (1, 2)] == [1, 1]
    assert sorted(office.delivered) == ["q-0", "q-0", "q-1", "q-1"]


@pytest.mark.parametrize("prepare", ["none", "prefetch", "paused", "counted", "recovered", "timed"])
def test_a_lone_message_is_delivered_as_any_other(prepare: str, office: Office) -> None:
    """A used-up prefetch or a pause holds it back, and a message that was delivered before is marked."""
    queue = office.queue("q", prefetch=1)
    manager = queue.level.manager
    office.publish(queue, 1)
    slot = manager.get(queue.worker.owner)
    assert slot is not None
    if prepare == "prefetch":
        office.workers.turn()
        office.publish(queue, 1)
    elif prepare == "paused":
        queue.pause()
    elif prepare == "counted":
        manager.requeue(slot, manager.take(slot, 1), failed=True)
    elif prepare == "recovered":
        slot.recovered = True
    elif prepare == "timed":
        queue.timed = True
    office.workers.turn()
    unacked = office.client.basic().unacked
    assert (queue.ready, queue.unacked, unacked.count) == {"prefetch": (1, 1, 1), "paused": (1, 0, 0)}.get(
        prepare, (0, 1, 1)
    )
    if prepare != "paused":
        assert office.delivered == ["q-0"]
    assert office.client.basic().tally.redeliver == (prepare in ("counted", "recovered"))


def test_a_lone_message_of_each_level_goes_by_its_priority(office: Office) -> None:
    """One message of a low and one of a high priority: the high one is first, though the low one is alone there."""
    queue = office.room.vhost.queues.declare("q", arguments={"x-max-priority": 1})
    office.publish(queue, 1)
    low, high = queue.levels
    header = NO_PROPERTIES[:11] + b"\x04" + NO_PROPERTIES[12:]
    high.append([Message(Envelope("", "q"), header, b"high", 1, facts_of(NO_PROPERTIES), 0)])
    queue.add_consumer(office.client.consumer(queue))
    office.workers.turn()
    assert office.delivered == ["high", "q-0"]
    assert (low.manager.ready, high.manager.ready) == (0, 0)


def test_a_lone_message_that_has_expired_is_dropped(office: Office) -> None:
    """A consumer that had no room when its message expired does not get it."""
    queue = office.room.vhost.queues.declare("q", arguments={"x-message-ttl": 10})
    queue.add_consumer(office.client.consumer(queue))
    office.publish(queue, 1)
    office.room.clock.now_ms += 11
    office.workers.turn()
    assert (office.delivered, queue.ready, queue.unacked) == ([], 0, 0)


@pytest.mark.interpreted("compiled, only a real firehose fits")
def test_the_firehose_gets_a_lone_message(office: Office) -> None:
    """While the vhost is traced, each delivery is reported."""
    told: list[Any] = []
    firehose: Any = SimpleNamespace(delivered_to=lambda _consumer, messages: told.extend(messages))
    office.workers.trace(firehose)
    office.queue("q", 1)
    office.workers.turn()
    assert [(message.body, again) for message, again in told] == [(b"q-0", False)]


def test_a_lone_message_that_cannot_be_delivered_is_put_back(office: Office) -> None:
    """Its worker is retired, as with any other message, and the next one delivers it."""
    queue = office.queue("q", 1)
    office.lose(queue, 0)
    with capture_logs() as events:
        office.workers.turn()
    assert [event["event"] for event in events] == ["worker.died"]
    assert (queue.ready, queue.unacked) == (1, 0)
    office.find()
    office.workers.turn()
    assert office.delivered == ["q-0"]


def test_a_lost_store_retires_nobody() -> None:
    """StoreFailed is not a worker's fault: it propagates and ends the broker."""
    office = Office(2)
    slot = office.queue("q", 3).level.manager.front()
    assert slot is not None
    slot.contents = None  # the message must be read
    before = office.workers.workers
    with pytest.raises(StoreFailed):
        office.workers.turn()
    assert office.workers.workers == before


def test_who_has_delivered_goes_last() -> None:
    """Workers that delivered come last in the next turn; others keep their place."""
    office = Office(3)
    one, two, three = office.workers.workers
    for name, messages in (("a", 5), ("b", 5), ("c", 0)):
        office.queue(name, messages)
    office.workers.turn()
    assert office.workers.workers == (three, one, two)
    office.workers.turn()
    assert office.workers.workers == (three, one, two)


def test_a_turn_has_an_end(office: Office) -> None:
    """A turn delivers a limited number of messages; unserved queues stay awake and come first."""
    many = [office.queue(str(number), TURN_MESSAGES + 200) for number in range(FULL_QUEUES + 1)]
    scheduled = office.scheduled
    office.workers.turn()
    assert TURN_MESSAGES * FULL_QUEUES <= len(office.delivered) < (TURN_MESSAGES + 200) * FULL_QUEUES
    assert [queue.unacked > 0 for queue in many] == [True] * FULL_QUEUES + [False]
    assert all(queue.awake for queue in many)
    assert office.scheduled == scheduled + 1
    assert many[-1] in office.workers.workers[0].ready
    office.workers.turn()
    assert not any(queue.ready for queue in many[:FULL_QUEUES])
    assert many[-1].unacked > 0


def test_who_had_to_wait_goes_first(office: Office) -> None:
    """Queues with backlogs that exceed one turn are served in the next, and none waits longer."""
    queues = [office.queue(str(number), 10 * TURN_MESSAGES) for number in range(2 * FULL_QUEUES)]
    office.workers.turn()
    assert {name.partition("-")[0] for name in office.delivered} == {str(number) for number in range(FULL_QUEUES)}
    office.workers.turn()
    assert {name.partition("-")[0] for name in office.delivered} == {queue.name for queue in queues}


def test_a_turn_has_an_end_for_queues_of_one_message_too(office: Office) -> None:
    """A turn serves a limited number of queues with one message each, in their order."""
    share = TURN_MESSAGES * FULL_QUEUES // QUEUE_COST
    queues = [office.queue(str(number), 1) for number in range(2 * share + 1)]
    handed_out = []
    while any(queue.awake for queue in queues):
        before = len(office.delivered)
        office.workers.turn()
        handed_out.append(len(office.delivered) - before)
    assert handed_out == [share, share, 1]
    assert [name.partition("-")[0] for name in office.delivered] == [queue.name for queue in queues]


@pytest.mark.parametrize("count", [1, 100])
def test_a_turn_that_reads_slots_has_an_end(count: int, office: Office) -> None:
    """Slots that are read on the loop count as more than their messages, be they of one queue or of many."""
    office.room.vhost.ports.window_messages = 10
    queues = [office.queue(str(number), 2000 // count, consumers=0) for number in range(count)]
    stored: dict[Slot, list[Any]] = {}
    for queue in queues:
        for slot in queue.level.manager.slots.values():
            if slot.length:
                stored[slot] = slot.contents or []
                slot.contents = None

    def read_cached(_stream: Level, slot: Slot) -> bool:
        slot.contents = stored.pop(slot)
        office.reader.spent += READ_COST + slot.length
        return True

    office.reader.read_cached = read_cached
    for queue in queues:
        queue.add_consumer(office.client.consumer(queue))
        queue.wake()
    read = []
    while stored:
        before = len(stored)
        office.workers.turn()
        read.append(before - len(stored))
    assert len(office.delivered) == 2000
    one = -(-TURN_MESSAGES // (READ_COST + 10))  # a queue's share
    many = 2 * -(-TURN_MESSAGES * FULL_QUEUES // (2 * (READ_COST + 10 + 10)))  # queues with two slots each
    assert set(read[:-1]) == {one if count == 1 else many}


# ---- a shared prefetch -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
def test_queues_take_turns_in_a_shared_prefetch(count: int) -> None:
    """Room for one message goes to one queue after the other, whichever worker serves it and however often it wakes."""
    office = Office(count)
    queues = [office.queue(name, 20, consumers=0) for name in ("a", "b", "c")]
    session = office.share(1, *queues)
    for _ in range(9):
        session.outstanding = 0
        session.wake()
        session.wake()
        queues[0].wake()  # as a publish does
        office.workers.turn()
    assert [name[0] for name in office.delivered] == ["a", "b", "c"] * 3


def test_a_shared_prefetch_goes_past_an_empty_queue() -> None:
    """An empty queue keeps no room, and the room goes to the next queue."""
    office = Office(2)
    session = office.share(9, *[office.queue(name, many, consumers=0) for name, many in (("a", 2), ("b", 0), ("c", 5))])
    session.outstanding = 4
    session.wake()
    office.workers.turn()
    assert office.delivered == ["a-0", "a-1", "c-0", "c-1", "c-2"]
    assert not office.workers.busy


def test_what_exceeds_a_turn_of_a_shared_prefetch_is_left_to_the_workers(office: Office) -> None:
    """A prefetch of tens of thousands that is acked at once takes no longer than two turns."""
    queues = [office.queue(str(number), 2 * TURN_MESSAGES, consumers=0) for number in range(4 * FULL_QUEUES)]
    session = office.share(65_535, *queues)
    session.outstanding = 0
    session.wake()
    office.workers.turn()
    everything = 2 * TURN_MESSAGES * len(queues)
    assert len(office.delivered) < everything // 2
    while office.workers.busy:
        office.workers.turn()
    assert len(office.delivered) == everything


def test_a_failure_in_a_shared_prefetch_costs_no_other_its_turn() -> None:
    """The failure is logged, and the other queues of the channel are served."""
    office = Office(2)
    queues = [office.queue(name, 5, consumers=0) for name in ("a", "b")]
    session = office.share(1, *queues)
    office.lose(queues[0], 0)
    session.outstanding = 0
    session.wake()
    with capture_logs() as events:
        office.workers.turn()
    assert [event["queue"] for event in events if event["event"] == "queue.failed"] == ["a"]
    assert office.delivered == ["b-0"]
    office.find()
    session.outstanding = 0
    session.wake()
    office.workers.turn()
    assert office.delivered == ["b-0", "a-0"]


def test_a_lost_store_in_a_shared_prefetch_goes_on(office: Office) -> None:
    """StoreFailed propagates and ends the broker here too."""
    queue = office.queue("q", 3, consumers=0)
    session = office.share(1, queue)
    slot = queue.level.manager.front()
    assert slot is not None
    slot.contents = None  # the message must be read
    session.outstanding = 0
    session.wake()
    with pytest.raises(StoreFailed):
        office.workers.turn()


def test_a_channel_that_closed_meanwhile_shares_nothing(office: Office) -> None:
    """A channel that closed has no consumers left when its turn comes."""
    session = office.share(1, office.queue("q", 3, consumers=0))
    session.outstanding = 0
    session.wake()
    session.close()
    office.workers.turn()
    assert office.delivered == []


# ---- before a method -------------------------------------------------------------------------------------------------


def test_a_queue_is_served_before_a_method_as_far_as_there_is_room(office: Office) -> None:
    """The messages that a method would see are delivered first; those that exceed the consumers' room stay."""
    queue = office.queue("q", 10, prefetch=4)
    assert office.workers.workers[0].serve_first(queue) == 4
    assert office.workers.workers[0].serve_first(queue) == 0
    assert (queue.ready, office.delivered) == (6, ["q-0", "q-1", "q-2", "q-3"])


def test_what_is_served_before_a_method_has_an_end(office: Office) -> None:
    """A long backlog is served for some turns of the queue, and the other queues are served as usual."""
    queue = office.queue("q", 20 * TURN_MESSAGES)
    handed_out = office.workers.workers[0].serve_first(queue)
    assert TURN_MESSAGES < handed_out < 10 * TURN_MESSAGES
    while office.workers.busy:
        office.workers.turn()
    assert len(office.delivered) == 20 * TURN_MESSAGES


def test_a_failure_before_a_method_ends_the_worker_in_its_turn() -> None:
    """The client that sent the method is not affected: the next turn fails again and retires the worker."""
    office = Office(2)
    queue = office.queue("q", 3)
    failing = queue.worker
    office.lose(queue, 0)
    with capture_logs() as events:
        assert failing.serve_first(queue) == 0
        assert failing in office.workers.workers
        office.workers.turn()
    assert failing not in office.workers.workers
    assert [event["event"] for event in events][:2] == ["queue.failed", "worker.died"]
