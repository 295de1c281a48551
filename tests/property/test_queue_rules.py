"""A queue with rules against the simplest model: the same order, the same losses, for the same reasons."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.amqp.header_facts import HeaderFacts
from broker.core.deadlines import Clock, Deadlines
from broker.core.message.message import Envelope, Message
from broker.core.queue.kinds import kind_of
from broker.core.queue.level import Level
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue import Queue
from broker.core.queue.queue_arguments import QueueDeclaration
from broker.core.queue.rules import DROP_HEAD, REJECT_PUBLISH, QueueRules
from broker.slots.slot import Slot
from broker.store.memory_files import MemoryFiles
from broker.store.store import VhostStore
from tests.unit.core.room import IdleWorker

ENVELOPE = Envelope("", "q")


class Bench:
    """A queue alone: a store in memory, a clock that the test moves, and a list of dead letters."""

    def __init__(self, rules: QueueRules) -> None:
        self.clock = Clock(1000)
        self.deadlines = Deadlines(self.clock)
        self.buried: list[tuple[int, str]] = []
        self.on_disk: list[tuple[Level, Slot, Callable[[], None]]] = []
        self.ids: dict[int, Message] = {}
        worker = IdleWorker()
        store, _ = VhostStore.open(MemoryFiles(), Path("/data/vhosts/v"), segment_bytes=1 << 31, sync=True)
        ports = QueuePorts[Level, Queue](
            store=store,
            assign=lambda _queue: worker,
            retire=lambda _queue: None,
            opened=lambda _stream, _slot: None,
            read=lambda stream, slot, then: self.on_disk.append((stream, slot, then)),
            moments=lambda _stream, _slot, _then: None,
            fetch=lambda _stream, _wanted, _then: None,
            measure=lambda _stream, _slot: None,
            deadlines=self.deadlines,
            dead_letter=lambda _queue, message, reason: self.buried.append((int(message.body), reason)),
            unused=lambda _queue: None,
            kind_of=kind_of,
            level_of=Level,
            window_messages=3,
        )
        self.queue = Queue(QueueDeclaration("q", 1), ports, rules)

    def publish(self, number: int, priority: int, ttl_ms: int | None) -> bool:
        """Publish a message by the publisher's slow path, and return whether the queue accepted it."""
        facts = HeaderFacts(persistent=False, priority=priority, expiration_ms=ttl_ms)
        message = Message(ENVELOPE, b"", b"%d" % number, 1, facts, self.clock.now_ms)
        if not self.queue.admits(message):
            return False
        self.queue.level_for(message).append([message])
        self.queue.accepted(message)
        return True

    def get(self) -> tuple[Level, Slot, int] | None:
        """Take one message as basic.get does."""
        if self.queue.timed:
            self.queue.check_expiry()
        found = self.queue.lease()
        if found is None:
            return None
        stream, slot = found
        index = stream.manager.take(slot, 1)[0]
        if self.queue.timed:
            self.queue.check_expiry()
        return stream, slot, index

    def pass_time(self, by_ms: int) -> None:
        """Move the clock and run everything that is due."""
        self.clock.now_ms += by_ms
        while (next_ms := self.deadlines.next_ms) is not None and next_ms <= self.clock.now_ms:
            self.deadlines.begin_turn()
            self.deadlines.run(self.clock.now_ms)

    def ready(self) -> list[int]:
        """Return the numbers of the ready messages in delivery order."""
        numbers = []
        for stream in reversed(self.queue.levels):
            for slot in stream.manager.slots.values():
                assert slot.contents is not None
                numbers += [int(slot.contents[index].body) for index in slot.ready_indexes()]
        return numbers


class Model:
    """The same queue as a sorted list."""

    def __init__(self, rules: QueueRules) -> None:
        self.rules = rules
        self.now_ms = 1000
        self.waiting: list[tuple[int, int, int | None, int]] = []  # (-level, number, expires_ms, size)
        self.buried: list[tuple[int, str]] = []

    def publish(self, number: int, priority: int, ttl_ms: int | None) -> bool:
        rules, size = self.rules, len(str(number))
        if rules.overflow == REJECT_PUBLISH and self.over(1, size):
            return False
        lives = [one for one in (ttl_ms, rules.ttl_ms) if one is not None]
        expires_ms = self.now_ms + min(lives) if lives else None
        self.waiting.append((-min(priority, rules.max_priority), number, expires_ms, size))
        self.waiting.sort()
        self.expire()
        self.tidy()
        return True

    def over(self, more: int = 0, more_bytes: int = 0) -> bool:
        rules = self.rules
        size = sum(entry[3] for entry in self.waiting) + more_bytes
        by_length = rules.max_length is not None and len(self.waiting) + more > rules.max_length
        return by_length or (rules.max_bytes is not None and size > rules.max_bytes)

    def tidy(self) -> None:
        """Apply limits first, because another message may become the head."""
        self.waiting.sort()
        while self.rules.overflow == DROP_HEAD and self.over():
            self.drop("maxlen")
        self.expire()

    def expire(self) -> None:
        while self.waiting and self.waiting[0][2] is not None and self.waiting[0][2] <= self.now_ms:
            self.drop("expired")

    def drop(self, reason: str) -> None:
        number = self.waiting.pop(0)[1]
        if self.rules.dead_letter_exchange is not None:
            self.buried.append((number, reason))


RULES = st.builds(
    QueueRules,
    ttl_ms=st.none() | st.integers(0, 30),
    max_length=st.none() | st.integers(0, 6),
    max_bytes=st.none() | st.integers(0, 12),
    overflow=st.sampled_from([DROP_HEAD, REJECT_PUBLISH]),
    dead_letter_exchange=st.sampled_from([None, "dlx"]),
    max_priority=st.integers(0, 3),
)
STEPS = st.lists(
    st.tuples(st.just("publish"), st.integers(0, 5), st.none() | st.integers(0, 30))
    | st.tuples(st.sampled_from(["get", "ack", "requeue", "reject"]), st.integers(0, 9), st.none())
    | st.tuples(st.just("pass"), st.integers(0, 20), st.none())
    | st.tuples(st.just("purge"), st.just(0), st.none()),
    max_size=60,
)


@settings(max_examples=200)
@given(RULES, STEPS)
@example(QueueRules(max_bytes=1), [("publish", 0, None), ("publish", 0, 0)])
@example(
    QueueRules(max_length=1, dead_letter_exchange="dlx"),
    [("publish", 0, 5), ("get", 0, None), ("pass", 10, None), ("publish", 0, None), ("requeue", 0, None)],
)
def test_a_queue_keeps_its_rules(rules: QueueRules, steps: list[tuple[str, int, int | None]]) -> None:
    """Order, expiry, limits, refusals, returns and dead letters equal those of the model after each step."""
    bench, model = Bench(rules), Model(rules)
    held: list[tuple[tuple[Level, Slot, int], tuple[int, int, int | None, int]]] = []
    for number, (verb, amount, ttl_ms) in enumerate(steps):
        if verb == "publish":
            assert bench.publish(number, amount, ttl_ms) == model.publish(number, amount, ttl_ms)
        elif verb == "get":
            got = bench.get()
            model.expire()
            assert (got is None) == (not model.waiting)
            if got is not None:
                held.append((got, model.waiting.pop(0)))
                model.expire()
        elif verb in ("ack", "requeue", "reject") and held:
            (stream, slot, index), entry = held.pop(amount % len(held))
            if verb == "ack":
                stream.settle(slot, [index])
            elif verb == "reject":
                stream.dead_letter(slot, [index], "rejected")
                if rules.dead_letter_exchange is not None:
                    model.buried.append((entry[1], "rejected"))
            else:
                stream.requeue(slot, [index], failed=True)
                model.waiting.append(entry)
                model.tidy()
        elif verb == "pass":
            bench.pass_time(amount)
            model.now_ms += amount
            model.expire()
        elif verb == "purge":
            purged: list[int] = []
            bench.queue.purge(purged.append)
            assert purged == [len(model.waiting)]
            model.waiting.clear()
        assert bench.ready() == [entry[1] for entry in model.waiting]
        assert bench.buried == model.buried
        assert bench.queue.ready == len(model.waiting)
        assert bench.queue.unacked == len(held)
    assert not bench.on_disk
