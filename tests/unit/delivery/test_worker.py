"""Workers: how queues are shared among them, what becomes of them when one fails, and who is served first."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.amqp.errors import StoreFailed
from broker.core.round import Round
from broker.core.unacked import Unacked
from broker.delivery import worker as worker_module
from broker.delivery.worker import FAILURES_MAX, FULL_QUEUES, QUEUE_COST, TURN_MESSAGES, Worker, Workers
from broker.slots.manager import SlotManager
from broker.slots.slot import Slot

pytestmark = pytest.mark.interpreted("consumers and queues are stand-ins, and what delivers is replaced")


class Taker:
    """A consumer with room for so many messages more, which it never acks."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.left = room
        self.priority = 0
        self.exclusive = False
        self.parked = False
        self.session = SimpleNamespace(unacked=Unacked())

    def room(self) -> int:
        """Returns how many messages it can take."""
        return self.left


class StandIn:
    """A queue as a worker sees it, with messages and consumers."""

    def __init__(self, name: str, messages: int = 0, *consumers: Taker) -> None:
        self.name = name
        self.manager = SlotManager(100)
        for number in range(messages):
            self.manager.publish(f"{name}-{number}", 1)
        self.consumers = Round()
        for consumer in consumers:
            as_consumer: Any = consumer
            self.consumers.add(as_consumer)
        self.streams = (self,)
        self.queue = self
        self.timed = False
        self.awake = False
        self.failures = 0
        self.deleted = False
        self.worker: Worker

    @property
    def ready(self) -> int:
        """Returns how many messages wait."""
        return self.manager.ready

    def lease(self) -> tuple[StandIn, Slot] | None:
        """Leases what comes next to its worker."""
        slot = self.manager.get(self.worker.owner)
        return None if slot is None else (self, slot)

    def wake(self) -> None:
        """Has its worker look at it."""
        if self.manager.ready:
            as_queue: Any = self
            self.worker.wake(as_queue)


class Office:
    """Workers, the queues they were given, and everything that was delivered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.scheduled = 0
        self.delivered: list[str] = []
        self.fails_at: str | None = None
        self.error: Exception = RuntimeError("a defect")
        reader: Any = SimpleNamespace(read_ahead=lambda _queue, _slot: None)
        self.workers = Workers("node", count, reader, self._schedule)
        monkeypatch.setattr(worker_module, "deliver", self._deliver)

    def _schedule(self) -> None:
        self.scheduled += 1

    def _deliver(self, consumer: Taker, queue: Any, slot: Any, indexes: Sequence[int]) -> int:
        taken = 0
        for index in indexes[: consumer.left]:
            if slot.contents[index] == self.fails_at:
                self.fails_at = None
                raise self.error
            self.delivered.append(slot.contents[index])
            consumer.session.unacked.add(queue, slot, index)
            consumer.left -= 1
            taken += 1
        return taken

    def take_in(self, *queues: StandIn) -> None:
        """Assigns queues and wakes them."""
        for queue in queues:
            as_queue: Any = queue
            queue.worker = self.workers.assign(as_queue)
            queue.wake()

    def names(self) -> list[list[str]]:
        """Returns the names of the queues by worker, in the order of the workers' own names."""
        ordered = sorted(self.workers.workers, key=lambda worker: worker.owner.worker)
        return [sorted(queue.name for queue in worker.queues) for worker in ordered]


def test_queues_go_to_whoever_has_the_fewest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue is given to the worker with the fewest, also after others were deleted."""
    office = Office(monkeypatch, 3)
    queues: list[Any] = [StandIn(str(number)) for number in range(6)]
    office.take_in(*queues)
    assert office.names() == [["0", "3"], ["1", "4"], ["2", "5"]]
    for number in (1, 4):
        office.workers.release(queues[number])
    office.take_in(StandIn("6"), StandIn("7"))
    assert office.names() == [["0", "3"], ["6", "7"], ["2", "5"]]


@pytest.mark.parametrize("count", [1, 2])
def test_a_worker_that_fails_is_retired(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Its leases are given back, a new worker takes its place, and its queues are served by others."""
    office = Office(monkeypatch, count)
    queues = [StandIn(name, 30, Taker()) for name in ("a", "b", "c", "d")]
    office.take_in(*queues)
    failing = queues[0].worker
    moved = [queue for queue in queues if queue.worker is failing]
    office.fails_at = "a-7"
    with capture_logs() as events:
        office.workers.turn()
    assert [event["queues"] for event in events if event["event"] == "worker.died"] == [len(moved)]
    assert failing not in office.workers.workers
    assert all(queue.worker is not failing for queue in queues)
    assert sorted(name for names in office.names() for name in names) == ["a", "b", "c", "d"]
    assert len(office.workers.workers) == count, "a new one took its place"
    for queue in moved:
        assert not queue.manager.leased_to(failing.owner)
    office.workers.turn()
    expected = [f"{queue.name}-{number}" for queue in queues for number in range(30)]
    assert sorted(office.delivered) == sorted(expected), "each message once"
    assert [name for name in office.delivered if name.startswith("a")] == expected[:30]
    assert not any(queue.awake for queue in queues)


def test_a_queue_that_ends_every_worker_is_not_served_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """After it ended a few workers a queue waits until something happens to it, and the others go on."""
    office = Office(monkeypatch, 2)
    queue, other = StandIn("q", 3, Taker()), StandIn("other", 3, Taker())
    office.take_in(queue, other)
    with capture_logs() as events:
        for _ in range(20):
            office.fails_at = "q-0"
            office.workers.turn()
    assert sum(event["event"] == "worker.died" for event in events) == FAILURES_MAX
    assert office.delivered == ["other-0", "other-1", "other-2"]
    office.fails_at = None
    queue.wake()
    office.workers.turn()
    assert office.delivered[3:] == ["q-0", "q-1", "q-2"]


def test_what_was_taken_and_not_delivered_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure in the middle of a round leaves no message behind: what nobody holds is ready again."""
    office = Office(monkeypatch, 1)
    first, second = Taker(3), Taker(1000)
    queue = StandIn("q", 20, first, second)
    office.take_in(queue)
    office.fails_at = "q-9"
    with capture_logs():
        office.workers.turn()
    held = len(first.session.unacked) + len(second.session.unacked)
    assert (queue.manager.ready, queue.manager.unacked) == (20 - held, held)
    assert 3 <= held < 20
    office.workers.turn()
    assert sorted(office.delivered) == sorted(f"q-{number}" for number in range(20))


def test_a_lost_store_retires_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """StoreFailed is no worker's fault: it goes on to whoever ends the broker."""
    office = Office(monkeypatch, 2)
    office.take_in(StandIn("q", 3, Taker()))
    before = list(office.workers.workers)
    office.fails_at, office.error = "q-1", StoreFailed(tmp_path, "gone")
    with pytest.raises(StoreFailed):
        office.workers.turn()
    assert office.workers.workers == before


def test_who_has_delivered_goes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who handed something out comes after the other workers in the next turn; one that did not keeps its place."""
    office = Office(monkeypatch, 3)
    one, two, three = office.workers.workers
    office.take_in(StandIn("a"), StandIn("b", 5, Taker()), StandIn("c"))
    office.workers.turn()
    assert office.workers.workers == [one, three, two]
    office.workers.turn()
    assert office.workers.workers == [one, three, two]


def test_a_turn_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn hands out a bounded number of messages; queues with more stay awake, and those not reached come first."""
    office = Office(monkeypatch, 1)
    many = [StandIn(str(number), TURN_MESSAGES + 200, Taker()) for number in range(FULL_QUEUES + 1)]
    office.take_in(*many)
    scheduled = office.scheduled
    office.workers.turn()
    assert TURN_MESSAGES * FULL_QUEUES <= len(office.delivered) < (TURN_MESSAGES + 200) * FULL_QUEUES
    assert [queue.manager.unacked > 0 for queue in many] == [True] * FULL_QUEUES + [False]
    assert all(queue.awake for queue in many)
    assert office.scheduled == scheduled + 1
    left: Any = many[-1]
    assert left in office.workers.workers[0].ready
    office.workers.turn()
    assert not any(queue.manager.ready for queue in many[:FULL_QUEUES])
    assert left.manager.unacked > 0


def test_who_had_to_wait_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """More queues with long backlogs than fill a turn: those behind them have the next one, and nobody waits longer."""
    office = Office(monkeypatch, 1)
    queues = [StandIn(str(number), 10 * TURN_MESSAGES, Taker()) for number in range(2 * FULL_QUEUES)]
    office.take_in(*queues)
    office.workers.turn()
    assert {name.partition("-")[0] for name in office.delivered} == {str(number) for number in range(FULL_QUEUES)}
    office.workers.turn()
    assert {name.partition("-")[0] for name in office.delivered} == {queue.name for queue in queues}


def test_a_turn_has_an_end_for_queues_of_one_message_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one message brings to each of twenty thousand queues: so many of them in a turn, in their order."""
    office = Office(monkeypatch, 1)
    share = TURN_MESSAGES * FULL_QUEUES // QUEUE_COST
    queues = [StandIn(str(number), 1, Taker()) for number in range(2 * share + 1)]
    office.take_in(*queues)
    handed_out = []
    while any(queue.awake for queue in queues):
        before = len(office.delivered)
        office.workers.turn()
        handed_out.append(len(office.delivered) - before)
    assert handed_out == [share, share, 1]
    assert [name.partition("-")[0] for name in office.delivered] == [queue.name for queue in queues]
