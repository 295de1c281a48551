"""The data path against any order of events: what consumers get, in which order, and nothing lost or doubled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.cluster.model_database import ModelDatabase, SharedTables
from tests.cluster.path_node import PathNode, PathQueue, TestConsumer

pytestmark = pytest.mark.interpreted("queues, consumers and publishers of the test take the place of native ones")

LEVEL = 7
Event = tuple[str, int, int]

EVENTS = ("publish", "ack", "steps") * 3 + ("requeue", "prefetch", "come", "go", "tick", "look")

events = st.lists(
    st.tuples(
        st.sampled_from(
            "publish publish publish ack ack ack requeue prefetch come go tick look steps steps steps steps".split()
        ),
        st.integers(0, 2),  # the node
        st.integers(0, 12),
    ),
    max_size=60,
)


@dataclass
class Course:
    """Three nodes, their consumers, and what happened."""

    alone: bool
    tables: SharedTables = field(default_factory=SharedTables)
    nodes: list[PathNode] = field(default_factory=list)
    queues: list[PathQueue] = field(default_factory=list)
    consumers: list[list[TestConsumer]] = field(default_factory=lambda: [[], [], []])
    gone: list[TestConsumer] = field(default_factory=list)
    published: list[int] = field(default_factory=lambda: [0, 0, 0])
    settled: list[bytes] = field(default_factory=list)
    requeued: set[bytes] = field(default_factory=set)

    def happen(self, event: str, node: int, number: int) -> None:
        """Let one event happen."""
        queue = self.queues[node]
        consumers = self.consumers[0 if self.alone else node]
        match event:
            case "publish":
                first = self.published[node]
                self.published[node] += number
                if number:
                    bodies = [b"%d %06d" % (node, index) for index in range(first, first + number)]
                    self.nodes[node].publish([queue], bodies)
            case "ack" if consumers:
                self.ack(self.queues[0] if self.alone else queue, consumers[number % len(consumers)], number)
            case "requeue" if consumers and not self.alone:
                self.requeue(queue, consumers[number % len(consumers)])
            case "prefetch" if consumers:
                consumer = consumers[number % len(consumers)]
                consumer.prefetch = 1 + number
                (self.queues[0] if self.alone else queue).credit(consumer)
            case "come" if not self.alone and len(consumers) < 3:
                consumers.append(queue.add(1 + number))
            case "go" if consumers and not self.alone:
                consumer = consumers.pop(number % len(consumers))
                self.requeued.update(body_of(held) for held in consumer.held)
                self.gone.append(consumer)
                queue.remove(consumer)
            case "tick":
                self.nodes[node].path.leases._tick()
            case "look":
                self.nodes[node].path.leases._look()

    def ack(self, queue: PathQueue, consumer: TestConsumer, count: int) -> None:
        """Ack the oldest deliveries of a consumer."""
        self.settled += [body_of(held) for held in consumer.held[:count]]
        queue.settle(consumer, count)

    def requeue(self, queue: PathQueue, consumer: TestConsumer) -> None:
        """Requeue the oldest delivery of a consumer."""
        if consumer.held:
            slot, index = consumer.held.pop(0)
            self.requeued.add(body_of((slot, index)))
            queue.level.requeue(slot, [index], failed=True)
            queue.credit(consumer)

    async def finish(self) -> None:
        """Let everything be delivered and settled."""
        if not self.consumers[0]:
            self.consumers[0].append(self.queues[0].add(50))
        for _ in range(20_000):
            for queue, consumers in zip(self.queues, self.consumers, strict=True):
                for consumer in consumers:
                    if consumer.held:
                        self.ack(queue, consumer, 1 << 30)
            if len(self.settled) >= sum(self.published):
                break
            for node in self.nodes:
                node.path.leases._tick()
                node.path.leases._look()
            await asyncio.sleep(0)
        for node in self.nodes:
            await node.path.drain()
            await node.close()


def body_of(held: tuple[object, int]) -> bytes:
    """Return the body of a delivery that is not settled."""
    slot, index = held
    body: bytes = slot.contents[index].body  # type: ignore[attr-defined]
    return body


def of(node: int, bodies: Sequence[bytes]) -> list[bytes]:
    """Return the messages that were published on one node."""
    return [body for body in bodies if body.startswith(b"%d " % node)]


async def run(script: list[Event], seed: int, *, alone: bool) -> Course:
    """Let the events happen, and return the course after everything was settled."""
    course = Course(alone)
    chance = random.Random(seed)
    for name in "abc":
        database = ModelDatabase(course.tables, name)
        database.steps = lambda: chance.choice((0, 1, 3, 20))
        course.nodes.append(PathNode(database))
        course.queues.append(PathQueue(course.nodes[-1], LEVEL))
    if alone:
        course.consumers[0].append(course.queues[0].add(20))
    for event, node, number in script:
        course.happen(event, node, number)
        for _ in range(number if event == "steps" else 0):
            await asyncio.sleep(0)
    await course.finish()
    return course


OVERTAKING: list[Event] = [("publish", 0, 1), ("publish", 1, 1), ("publish", 2, 1), ("steps", 0, 10), ("publish", 0, 1)]
"""With seed 238 a call of B is in flight while one of C with a higher number is leased."""


@settings(max_examples=300)
@given(script=events, seed=st.integers(0, 1 << 16))
@example(OVERTAKING, 238)
def test_a_single_consumer_gets_each_publishers_messages_in_order(script: list[Event], seed: int) -> None:
    """Born leased, free or returned in between: the messages of one publisher come once and in order."""
    course = asyncio.run(run(script, seed, alone=True))
    consumer = course.consumers[0][0]
    for node in range(3):
        assert of(node, consumer.got) == [b"%d %06d" % (node, index) for index in range(course.published[node])]
    assert not any(consumer.again)
    assert not course.tables.rows


@settings(max_examples=300)
@given(script=events, seed=st.integers(0, 1 << 16))
def test_consumers_on_several_nodes_get_each_message_once(script: list[Event], seed: int) -> None:
    """While consumers come and go, each message is settled once; a second delivery was requeued, and is marked."""
    course = asyncio.run(run(script, seed, alone=False))
    published = [b"%d %06d" % (node, index) for node in range(3) for index in range(course.published[node])]
    assert sorted(course.settled) == published
    seen: set[bytes] = set()
    for consumer in (*course.gone, *chain.from_iterable(course.consumers)):
        got = list(zip(consumer.got, consumer.again, strict=True))
        first = [body for body, again in got if not again]
        assert not seen.intersection(first)
        assert len(set(first)) == len(first)
        seen.update(first)
        assert course.requeued.issuperset(
            body for body, again in zip(consumer.got, consumer.again, strict=True) if again
        )
    assert seen == set(published)
    assert not course.tables.rows
