"""A node for tests of the data path: shared levels and their consumers, without engine, sessions or sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from broker.amqp.content_header import facts_of
from broker.amqp.header_edit import encode_header
from broker.cluster.caller import SharedCommitter
from broker.cluster.data_path import DataPath
from broker.cluster.shared_level import SharedLevel
from broker.cluster.shared_store import SharedStore
from broker.core.deadlines import Clock, Deadlines
from broker.core.message.message import Envelope, Message
from broker.core.publishing.message_store import Targets
from broker.core.queue.consumer_ring import RingMember
from broker.core.queue.level_owner import LevelOwner
from broker.core.queue.rules import QueueRules, queue_rules
from broker.core.sliced_work import SlicedWork
from broker.slots.slot import Slot
from broker.slots.states import Owner
from broker.store.memory_files import MemoryFiles
from broker.store.store import VhostStore

OWNER = Owner("test", "worker")
ENVELOPE = Envelope("", "q")


class TestConsumer(RingMember):
    """A consumer that holds its deliveries until a test settles them."""

    __test__ = False

    def __init__(self, prefetch: int) -> None:
        super().__init__("tag", priority=0, exclusive=False)
        self.prefetch = prefetch
        self.got: list[bytes] = []
        self.again: list[bool] = []
        self.held: list[tuple[Slot, int]] = []

    def room(self) -> int:
        """Return the unused part of the prefetch."""
        return max(0, self.prefetch - len(self.held))


class TestPublisher:
    """Counts its publishes, confirms and refusals."""

    __test__ = False

    def __init__(self) -> None:
        self.published = self.confirmed = self.logged = 0
        self.waiting = False
        self.confirming = True
        self.refused: list[int] = []

    def confirm(self, upto: int) -> None:
        self.confirmed = max(self.confirmed, upto)

    def refuse(self, number: int) -> None:
        self.refused.append(number)


class PathQueue(LevelOwner):
    """A queue with one level, and its worker."""

    def __init__(self, node: PathNode, number: int, rules: QueueRules | None = None) -> None:
        super().__init__("q", rules or queue_rules({}), durable=True)
        self.node = node
        self.level: SharedLevel = SharedLevel(cast("Any", self), 0, number, node.ports, node.path.levels)
        self.levels = (self.level,)

    @property
    def ready(self) -> int:
        """The number of ready messages."""
        return self.level.manager.ready

    def wake(self) -> None:
        """Deliver ready messages, and lease free ones."""
        self.node.path.ask(cast("Any", self))
        if not self.awake and self.ready:
            self.wake_worker()

    def returned(self) -> None:
        """Deliver returned messages."""
        self.wake()

    def add(self, prefetch: int) -> TestConsumer:
        """Add a consumer."""
        consumer = TestConsumer(prefetch)
        self.consumers.add(consumer)
        self.node.path.touch(cast("Any", self))
        self.wake()
        return consumer

    def remove(self, consumer: TestConsumer) -> None:
        """Remove a consumer; its unacked messages are requeued."""
        self.consumers.remove(consumer)
        held, consumer.held = consumer.held, []
        self.node.path.touch(cast("Any", self))
        for slot, index in held:
            self.level.requeue(slot, [index], failed=True)

    def settle(self, consumer: TestConsumer, count: int = 1 << 30) -> None:
        """Ack the oldest deliveries."""
        for slot, index in consumer.held[:count]:
            self.level.settle(slot, range(index, index + 1))
        del consumer.held[:count]
        self.credit(consumer)

    def credit(self, consumer: TestConsumer) -> None:
        """Return a consumer to the ring, because it may have room."""
        if consumer.parked:
            self.consumers.unpark(consumer)
        self.wake()

    def wake_worker(self) -> None:
        """Deliver in a later step of the loop."""
        self.awake = True
        asyncio.get_running_loop().call_soon(self.serve)

    def serve(self) -> None:
        """Deliver, round robin, as long as consumers have room."""
        self.awake = False
        manager = self.level.manager
        while manager.ready and (consumers := self.consumers.next(manager.ready)):
            for consumer in cast("list[TestConsumer]", consumers):
                slot = manager.get(OWNER)
                if slot is None:
                    return
                assert slot.contents is not None
                (index,) = manager.take(slot, 1)
                consumer.got.append(slot.contents[index].body)
                consumer.again.append(slot.redelivered(index))
                consumer.held.append((slot, index))
                self.consumers.served(consumer)


class PathNode:
    """One node over a database."""

    def __init__(self, database: Any) -> None:
        self.failures: list[BaseException] = []
        self.buried: list[tuple[bytes, str]] = []
        self.path = DataPath(database, asyncio.get_running_loop(), failed=self.failures.append)
        self.unused: list[set[str]] = []
        self.path.caller.on_unused(self.unused.append)
        database.handle_hint = self.path.leases.handle_hint
        database.reconcile = self.path.reconcile
        recorder = VhostStore.open(MemoryFiles(), Path("/unused"), segment_bytes=1 << 20, sync=False)[0].recorder
        store = SimpleNamespace(
            recorder=recorder, unpin=lambda _: None, forget_queue=lambda _, **_how: None, drop_entries=None
        )
        self.ports = cast(
            "Any",
            SimpleNamespace(
                store=store,
                window_messages=5,
                window_bytes=1 << 20,
                opened=lambda _level, _slot: None,
                dead_letter=lambda _queue, message, reason: self.buried.append((message.body, reason)),
                sliced=SlicedWork(Deadlines(Clock())),
            ),
        )
        self.store = SharedStore(self.path.levels, lambda mark: f"producer-{mark & 0xFF}")

    def publish(
        self,
        queues: Iterable[PathQueue],
        bodies: Iterable[bytes],
        publisher: TestPublisher | None = None,
        *,
        persistent: bool = True,
        number: bytes = b"",
    ) -> None:
        """Publish messages into all of the queues."""
        messages = [message_of(body, persistent=persistent) for body in bodies]
        targets = Targets(tuple([queue.level for queue in queues]))
        self.store.accept(messages, [targets], [len(messages)], number, cast("Any", publisher))
        if publisher is not None:
            publisher.published += len(messages)
            if not publisher.waiting:
                publisher.waiting = True
                SharedCommitter(self.path.caller).wait(publisher)

    async def close(self) -> None:
        """Stop, and assert that no task has failed."""
        await self.path.close()
        assert not self.failures, self.failures


def message_of(body: bytes, *, persistent: bool = True) -> Message:
    """Return a message with a header of its own size."""
    header = encode_header({"delivery_mode": 2 if persistent else 1}, len(body))
    return Message(ENVELOPE, header, body, 400 + len(body), facts_of(header), 1)
