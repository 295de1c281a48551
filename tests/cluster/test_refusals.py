"""Publishes that full queues refuse: PostgreSQL alone decides, and each publisher hears of exactly those refused."""

from __future__ import annotations

import pytest
from bitarray import bitarray

from broker.core.queue.rules import queue_rules
from broker.store.record import PRODUCER, TARGET
from tests.cluster.members import until
from tests.cluster.model_pair import LEVEL, ModelPair, bodies
from tests.cluster.path_node import PathQueue, TestPublisher

OTHER = 8
consuming = pytest.mark.interpreted("consumers of the test take the place of native ones")


def number(sequence: int) -> bytes:
    """Return what a producer's number adds to the targets of a message."""
    return TARGET.pack(PRODUCER | 3, sequence)


def bodies_of(pair: ModelPair, level: int) -> int:
    """Count the messages of a level that are not settled."""
    return sum(row.bits.count() for key, row in pair.tables.rows.items() if key[0] == level)


async def answered(publisher: TestPublisher) -> list[int]:
    """Return the numbers of the refused publishes, once all are answered."""
    await until(lambda: publisher.confirmed == publisher.published)
    return publisher.refused


async def test_the_answer_to_the_call_decides_whatever_rules_the_node_knows(pair: ModelPair) -> None:
    """A node that has not heard of a limit, or has heard of its end too early, confirms nothing that was refused."""
    publisher = TestPublisher()
    pair.tables.limits[LEVEL] = 2
    pair.node_a.publish([pair.queue_a], bodies(4), publisher)
    assert await answered(publisher) == [3, 4]
    pair.queue_a.rules = queue_rules({"x-max-length": 1, "x-overflow": "reject-publish"})
    del pair.tables.limits[LEVEL]
    pair.node_a.publish([pair.queue_a], bodies(4), publisher)
    assert await answered(publisher) == [3, 4]
    assert pair.tables.left() == 6


async def test_rules_may_change_while_a_batch_gathers(pair: ModelPair) -> None:
    """A limit that comes or goes between two publishes of one batch changes only whether sizes are told."""
    publisher = TestPublisher()
    limited = queue_rules({"x-max-length": 2, "x-overflow": "reject-publish"})
    for rules in (queue_rules({}), limited, queue_rules({})):
        pair.queue_a.rules = rules
        pair.node_a.publish([pair.queue_a], bodies(1), publisher)
    assert await answered(publisher) == []
    assert [call.s_sizes for call in pair.a.calls] == [[b"\0\0\0\6" * 3]]


async def test_publishers_hear_of_their_own_messages(pair: ModelPair) -> None:
    """Messages of several publishers, and of no one, share a call."""
    one, other = TestPublisher(), TestPublisher()
    pair.tables.limits[LEVEL] = 3
    pair.node_a.publish([pair.queue_a], bodies(2), one)
    pair.node_a.publish([pair.queue_a], bodies(2))
    pair.node_a.publish([pair.queue_a], bodies(2), other)
    pair.node_a.publish([pair.queue_a], bodies(1), one)
    assert (await answered(one), await answered(other)) == ([3], [1, 2])
    assert len(pair.a.calls) == 1


@consuming
async def test_what_was_delivered_ahead_of_the_commit_is_not_refused(pair: ModelPair) -> None:
    """A consumer of the node has it by then; only what is free may be too much."""
    publisher = TestPublisher()
    consumer = pair.queue_a.add(2)
    await until(lambda: not pair.queue_a.level.demand.backlog)
    pair.tables.limits[LEVEL] = 0
    pair.node_a.publish([pair.queue_a], bodies(3), publisher)
    assert await answered(publisher) == [3]
    assert consumer.got == bodies(2)


async def test_postgresql_says_what_is_dead_lettered(pair: ModelPair) -> None:
    """The node's own rules do not."""
    pair.tables.limits[LEVEL] = 2
    pair.tables.burying.add(LEVEL)
    pair.node_a.publish([pair.queue_a], bodies(4))
    await until(lambda: len(pair.node_a.buried) == 2)
    assert pair.node_a.buried == [(body, "maxlen") for body in bodies(4)[2:]]


@consuming
async def test_a_refused_transaction_leaves_nothing(pair: ModelPair) -> None:
    """One full queue refuses the publishes to others as well, and the settlements; what else gathered is taken."""
    publisher, transaction = TestPublisher(), TestPublisher()
    other = PathQueue(pair.node_a, OTHER)
    consumer = pair.queue_a.add(1)
    pair.node_a.publish([pair.queue_a], [b"settled"])
    await until(lambda: bool(consumer.held))
    pair.tables.limits[OTHER] = 1
    pair.node_a.publish([pair.queue_a], [b"before"], publisher)
    pair.node_a.store.note_origin((transaction, 1))
    with pair.node_a.store.transaction():
        pair.node_a.publish([pair.queue_a], [b"in the transaction"])
        pair.node_a.publish([other], bodies(2))
        pair.queue_a.settle(consumer)
    pair.node_a.store.note_origin(None)
    pair.node_a.publish([pair.queue_a], [b"after"], publisher)
    assert await answered(publisher) == []
    assert transaction.refused == [1]
    assert bodies_of(pair, OTHER) == 0
    pair.queue_a.remove(consumer)
    consumer = pair.queue_a.add(9)
    await until(lambda: len(consumer.got) == 3)
    assert sorted(consumer.got) == [b"after", b"before", b"settled"]
    assert consumer.again[consumer.got.index(b"settled")]


@consuming
async def test_nothing_of_a_transaction_is_delivered_before_its_commit(pair: ModelPair) -> None:
    """Its node may fail before the commit, and then there is no transaction."""
    consumer = pair.queue_a.add(9)
    await until(lambda: not pair.queue_a.level.demand.backlog)
    with pair.node_a.store.transaction():
        pair.node_a.publish([pair.queue_a], bodies(2))
    assert pair.queue_a.ready == 0
    await until(lambda: len(consumer.got) == 2)
    assert len(pair.a.calls) == 1


async def test_a_numbered_message_is_taken_by_all_its_queues_or_by_none(pair: ModelPair) -> None:
    """The number of a refused one is not used, so that it can be sent again; who sent it twice hears twice."""
    publisher, again = TestPublisher(), TestPublisher()
    other = PathQueue(pair.node_a, OTHER)
    pair.tables.limits[OTHER] = 1
    for sequence in (5, 6, 7):
        pair.node_a.publish([pair.queue_a, other], [b"%d" % sequence], publisher, number=number(sequence))
    again.published = 1
    pair.node_a.store.used_before(PRODUCER | 3, 7, again)
    assert await answered(publisher) == [2, 3]
    assert again.refused == [1]
    assert (bodies_of(pair, LEVEL), bodies_of(pair, OTHER)) == (1, 1)
    assert [(call.u_first, call.u_last) for call in pair.a.calls] == [([5], [7]), ([5], [5])]
    assert pair.node_a.unused == [{"producer-3"}]


async def test_atomic_work_may_be_refused_more_than_once(pair: ModelPair) -> None:
    """Another node fills the queue between two attempts."""
    publisher = TestPublisher()
    other = PathQueue(pair.node_a, OTHER)
    pair.tables.limits = {LEVEL: 2, OTHER: 1}
    entered = 0

    def pass_through(name: str) -> None:
        nonlocal entered
        entered += name == "commit"
        if entered == 2:
            pair.tables.limits[LEVEL] = 0

    pair.a.pass_through = pass_through
    pair.node_a.publish([pair.queue_a], [b"1"], publisher, number=number(1))
    for sequence in (2, 3):
        pair.node_a.publish([other], [b"%d" % sequence], publisher, number=number(sequence))
    assert await answered(publisher) == [3, 1]
    assert (bodies_of(pair, LEVEL), bodies_of(pair, OTHER)) == (0, 1)
    assert [call.s_free for call in pair.a.calls][-1] == [bitarray("10", "big")]
