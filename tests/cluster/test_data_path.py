"""The data path of nodes over a database in memory: what is called when, and who gets which message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from broker.cluster import leases
from broker.cluster.caller import SharedCommitter
from broker.cluster.database_rows import LeasedRow
from broker.cluster.hint import FREE, LOOK, WANTED, Hint
from broker.core.answers import Answers
from broker.core.deadlines import Clock, Deadlines
from broker.core.topology.deferred_unbinding import DeferredUnbinding
from broker.store.record import PRODUCER, TARGET, due_target
from tests.cluster.members import until
from tests.cluster.model_database import ModelDatabase
from tests.cluster.model_pair import LEVEL, ModelPair, bodies, calm
from tests.cluster.path_node import PathNode, PathQueue, TestPublisher

pytestmark = pytest.mark.interpreted("queues, consumers and publishers of the test take the place of native ones")


async def test_a_message_goes_from_one_node_to_the_other_and_is_settled(pair: ModelPair) -> None:
    """Published on A and confirmed, delivered on B, acked, and gone from the tables."""
    consumer, publisher = pair.queue_b.add(10), TestPublisher()
    pair.node_a.publish([pair.queue_a], [b"one"], publisher)
    await until(lambda: consumer.got == [b"one"])
    assert publisher.confirmed == 1
    assert consumer.again == [False]
    pair.queue_b.settle(consumer)
    await until(lambda: not pair.tables.rows)
    assert pair.a.synchronous == [True]
    assert pair.b.synchronous == [False]


async def test_own_consumers_get_a_message_before_the_call_returns(pair: ModelPair) -> None:
    """A message that own consumers have room for is born leased: delivered while its call runs, read by no one."""
    gate = asyncio.get_running_loop().create_future()
    consumer, publisher = pair.queue_a.add(2), TestPublisher()
    await calm(pair.queue_a)
    pair.a.pass_through = lambda name: gate if name == "commit" else None
    pair.node_a.publish([pair.queue_a], bodies(3), publisher)
    await until(lambda: pair.a.counted["commit"] == 1)
    assert consumer.got == bodies(2)
    assert publisher.confirmed == 0
    call = pair.a.calls[0]
    assert [bits.to01() for bits in (*call.s_mine, *call.s_free)] == ["110", "001"]
    gate.set_result(None)
    await until(lambda: publisher.confirmed == 3)
    pair.queue_a.settle(consumer)
    await until(lambda: consumer.got == bodies(3))
    assert pair.a.counted["chunks"] == 0  # its own chunk is in memory


async def test_what_was_acked_before_the_call_left_is_not_inserted(pair: ModelPair) -> None:
    """After acks of four of five messages, one is left in the call, with only its body."""
    consumer = pair.queue_a.add(10)
    await calm(pair.queue_a)
    pair.node_a.publish([pair.queue_a], bodies(5))
    pair.queue_a.serve()
    for index in (0, 0, 1, 1):  # 0, 1, 3 and 4
        slot, one = consumer.held.pop(index)
        pair.queue_a.level.settle(slot, range(one, one + 1))
    await until(lambda: len(pair.a.calls) == 1)
    assert sum(bits.count() for bits in pair.a.calls[0].s_mine) == 1
    assert sum(body in pair.a.calls[0].parts[0] for body in bodies(5)) == 1


async def test_a_batch_that_was_settled_as_a_whole_needs_no_call(pair: ModelPair) -> None:
    """When everything is acked before the call leaves, the publisher is confirmed without one."""
    consumer, publisher = pair.queue_a.add(10), TestPublisher()
    await calm(pair.queue_a)
    pair.node_a.publish([pair.queue_a], bodies(5), publisher)
    pair.queue_a.serve()
    pair.queue_a.settle(consumer)
    await until(lambda: publisher.confirmed == 5)
    assert not pair.a.calls


async def test_a_purge_is_answered_after_the_call_that_settles_what_this_node_had(pair: ModelPair) -> None:
    """Settlements may be lost in a crash of the database; those of a purge whose client waits are committed first."""
    gate = asyncio.get_running_loop().create_future()
    consumer, publisher = pair.queue_a.add(3), TestPublisher()
    await calm(pair.queue_a)
    pair.node_a.publish([pair.queue_a], bodies(3), publisher)
    await until(lambda: publisher.confirmed == 3)
    pair.queue_a.remove(consumer)
    pair.a.pass_through = lambda name: gate if name == "commit" else None
    assert sum(pair.queue_a.level.purge()) == 3
    answers = Answers(SharedCommitter(pair.node_a.path.caller), DeferredUnbinding(Deadlines(Clock())))
    answers.changed(("queue", "q"))
    await until(lambda: pair.a.counted["commit"] == 2)
    assert answers.confirmed == 0
    gate.set_result(None)
    await until(lambda: answers.confirmed == 1)
    assert pair.a.synchronous == [True, True]
    assert not pair.tables.rows


async def test_calls_do_not_grow_with_messages(pair: ModelPair) -> None:
    """All work collected while a call runs becomes one call, with one lease, one chunk and one settlement."""
    gate = asyncio.get_running_loop().create_future()
    consumer, publisher = pair.queue_b.add(10_000), TestPublisher()
    await calm(pair.queue_b)
    pair.a.pass_through = lambda name: gate if name == "commit" else None
    pair.node_a.publish([pair.queue_a], [b"first"], publisher)
    await until(lambda: pair.a.counted["commit"] == 1)
    for number in range(100):
        pair.node_a.publish([pair.queue_a], bodies(10, 10 * number), publisher)
        await asyncio.sleep(0)
    gate.set_result(None)
    await until(lambda: len(consumer.got) == 1001)
    assert consumer.got == [b"first", *bodies(1000)]
    assert pair.a.counted["commit"] == 2
    assert pair.a.counted["notify"] == 2
    assert pair.b.counted["chunks"] <= 2
    assert publisher.confirmed == 1001


async def test_a_message_to_many_levels_is_stored_once(pair: ModelPair) -> None:
    """A fan-out has one record in the chunk and a share per level."""
    others = [PathQueue(pair.node_a, LEVEL + number) for number in range(1, 4)]
    pair.node_a.publish([pair.queue_a, *others], [b"to all of them"])
    await until(lambda: pair.tables.left() == 4)
    (call,) = pair.a.calls
    assert call.parts[0].count(b"to all of them") == 1
    assert call.s_level == [7, 8, 9, 10]


async def test_a_slow_consumer_holds_one_message_of_a_batch(pair: ModelPair) -> None:
    """Prefetch 1 on A with a long job leases one message; B's consumer gets all others."""
    slow, fast = pair.queue_a.add(1), pair.queue_b.add(1)
    await calm(pair.queue_a)
    await calm(pair.queue_b)
    other = PathNode(ModelDatabase(pair.tables, "c"))
    other.publish([PathQueue(other, LEVEL)], bodies(50))
    await until(lambda: len(slow.got) == 1 and len(fast.got) == 1)
    while len(fast.got) < 49:
        pair.queue_b.settle(fast)
        await until(lambda: bool(fast.held) or len(fast.got) == 49)
    assert len(slow.got) == 1
    assert sorted(slow.got + fast.got) == bodies(50)
    await other.close()


async def test_the_last_consumer_leaves_and_its_messages_go_elsewhere(pair: ModelPair) -> None:
    """Undelivered messages are returned at once and unmarked; unacked ones are redelivered, and counted."""
    consumer = pair.queue_a.add(3)
    await calm(pair.queue_a)
    pair.node_a.publish([pair.queue_a], bodies(6))
    await until(lambda: pair.tables.left() == 6 and len(consumer.got) == 3)
    pair.queue_a.remove(consumer)
    other = pair.queue_b.add(10)
    await until(lambda: len(other.got) == 6)
    assert other.got == bodies(6)
    assert other.again == [True, True, True, False, False, False]
    slot = pair.queue_b.level.manager.slots[other.held[0][0].first]
    assert {run.delivered for run in slot.returns_of(range(slot.length))} == {1}
    pair.queue_b.settle(other)
    await until(lambda: not pair.tables.rows)


async def test_messages_without_room_go_back_in_a_tick(pair: ModelPair) -> None:
    """A consumer without further room keeps its deliveries; the rest goes to the other node."""
    consumer = pair.queue_a.add(10)
    await calm(pair.queue_a)
    pair.queue_a.serve = lambda: None  # type: ignore[method-assign] # its worker is busy
    pair.node_a.publish([pair.queue_a], bodies(10))
    await until(lambda: pair.tables.left() == 10)
    assert pair.queue_a.ready == 10
    consumer.prefetch = 0
    other = pair.queue_b.add(10)
    await until(lambda: len(other.got) == 10)
    assert other.got == bodies(10)


async def test_a_lost_hint_costs_a_look(pair: ModelPair) -> None:
    """Without hints the message is found by the look that each node takes once a second."""
    pair.b.deaf = True
    consumer = pair.queue_b.add(1)
    await calm(pair.queue_b)
    pair.node_a.publish([pair.queue_a], [b"unheard"])
    await until(lambda: consumer.got == [b"unheard"])


async def test_a_look_is_one_lease_from_the_start(pair: ModelPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those after it begin at the bound again: rows below it were taken, and cost time while PostgreSQL keeps them."""
    monkeypatch.setattr(leases, "LOOK_S", 3600)
    consumer = pair.queue_b.add(1000)
    await calm(pair.queue_b)
    demand = pair.queue_b.level.demand

    def arrived(count: int) -> bool:
        return len(consumer.got) == count

    async def publish_on(count: int) -> None:
        for _ in range(count):
            more = len(consumer.got) + 1
            pair.node_a.publish([pair.queue_a], bodies(1))
            await until(partial(arrived, more))

    await publish_on(5)
    assert demand.bound > 0
    began: list[int] = []
    read = pair.b.lease

    async def lease(levels: Any, room: Any, after: Any, able: Any = ()) -> Any:
        began.extend(after)
        return await read(levels, room, after, able)

    pair.b.lease = lease  # type: ignore[method-assign]
    pair.node_b.path.leases._look()
    await until(lambda: bool(began) and not demand.asked)
    await publish_on(5)
    assert began[0] == 0
    assert len(began) > 5
    assert 0 not in began[1:]


async def test_an_idle_queue_asks_once_a_second_and_all_of_them_at_once(pair: ModelPair) -> None:
    """A thousand queues with consumers and without messages are one statement per look."""
    queues = [PathQueue(pair.node_b, 100 + number) for number in range(1000)]
    for queue in queues:
        queue.add(1)
    await until(lambda: not any(queue.level.demand.backlog for queue in queues))
    assert pair.b.counted["lease"] == 1
    pair.node_b.path.leases._look()
    await until(lambda: pair.b.counted["lease"] == 2 and not any(queue.level.demand.backlog for queue in queues))
    assert pair.b.counted["lease"] == 2


async def test_a_lease_of_many_queues_is_cut_into_statements(pair: ModelPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is free in however many queues, a statement leases 4,096 messages, and no look is needed."""
    monkeypatch.setattr(leases, "LOOK_S", 3600)
    here = [PathQueue(pair.node_a, 100 + number) for number in range(128)]
    for batch in range(40):
        pair.node_a.publish(here, bodies(1, batch))
        await pair.node_a.path.drain()
    asked: list[int] = []
    lease = pair.b.lease

    async def noted(
        levels: Sequence[int], room: Sequence[int], after: Sequence[int], able: Sequence[int] = ()
    ) -> list[LeasedRow]:
        asked.append(sum(room))
        return await lease(levels, room, after, able)

    pair.b.lease = noted  # type: ignore[method-assign]
    there = [PathQueue(pair.node_b, queue.level.number) for queue in here]
    consumers = [queue.add(100) for queue in there]
    await until(lambda: all(consumer.got == bodies(40) for consumer in consumers))
    assert max(asked) <= 4096
    assert len(asked) <= 4


async def test_a_statement_names_as_many_levels_as_postgresql_can_lock(pair: ModelPair) -> None:
    """Consumers on 1,500 queues are two leases, and when they leave their messages are two returns."""
    here = [PathQueue(pair.node_a, 100 + number) for number in range(1500)]
    there = [PathQueue(pair.node_b, queue.level.number) for queue in here]
    pair.node_a.publish(here, bodies(2))
    await pair.node_a.path.drain()
    consumers = [queue.add(1) for queue in there]
    await until(lambda: all(consumer.got for consumer in consumers))
    for queue, consumer in zip(there, consumers, strict=True):
        queue.remove(consumer)
    await until(lambda: not any(holder for _, _, holder in pair.tables.rows))
    assert pair.b.rows_max["lease"] == pair.b.rows_max["give_back"] == 1024


async def test_producers_and_due_times_are_in_the_call(pair: ModelPair) -> None:
    """Used numbers are ranges, and the share of a delayed message is due with its first one."""
    for sequence in (5, 6, 7, 9):
        pair.node_a.publish([pair.queue_a], [b"."], number=TARGET.pack(PRODUCER | 3, sequence))
    pair.node_a.publish([pair.queue_a], [b"."], number=due_target(2000))
    pair.node_a.publish([pair.queue_a], [b"."], number=due_target(1000))
    await until(lambda: len(pair.a.calls) == 1)
    (call,) = pair.a.calls
    assert list(zip(call.u_producer, call.u_first, call.u_last, strict=True)) == [
        ("producer-3", 5, 7),
        ("producer-3", 9, 9),
    ]
    assert call.s_due == [1000]


async def test_transient_messages_commit_asynchronously(pair: ModelPair) -> None:
    """A call is on disk before its answer only if something in it must survive."""
    publisher = TestPublisher()
    pair.node_a.publish([pair.queue_a], [b"."], persistent=False)
    await until(lambda: pair.a.synchronous == [False])
    pair.node_a.publish([pair.queue_a], [b"."], publisher, persistent=False)  # a transaction
    await until(lambda: publisher.confirmed == 1)
    assert pair.a.synchronous == [False, True]


async def test_settlements_alone_wait_and_then_go_together(pair: ModelPair) -> None:
    """Acks of many turns are one call, at most 50 ms later."""
    consumer = pair.queue_b.add(100)
    pair.node_a.publish([pair.queue_a], bodies(50))
    await until(lambda: len(consumer.got) == 50)
    for _ in range(50):
        pair.queue_b.settle(consumer, 1)
        await asyncio.sleep(0)
    assert not pair.b.calls
    await until(lambda: not pair.tables.rows)
    assert len(pair.b.calls) == 1


async def test_damaged_chunks_keep_their_messages(pair: ModelPair) -> None:
    """A chunk that cannot be read is logged; its messages stay leased and unsettled."""
    consumer = pair.queue_b.add(5)
    await calm(pair.queue_b)
    pair.b.deaf = True
    pair.node_a.publish([pair.queue_a], bodies(2))
    await until(lambda: pair.tables.left() == 2)
    parts = pair.tables.chunks[1]
    parts[0] = parts[0][:-1] + b"!"
    pair.node_b.path.leases.handle_hint(Hint(FREE, 1, [LEVEL]))
    await until(lambda: LEVEL in {key[0] for key in pair.tables.rows if key[2] == "b"})
    await until(lambda: bool(pair.queue_b.level.damaged))
    assert not consumer.got
    pair.node_b.path.reconcile(pair.b.held())
    await asyncio.sleep(0)
    assert pair.tables.left() == 2


async def test_basic_get_leases_one_message_and_returns_the_rest(pair: ModelPair) -> None:
    """A fetch leases one message though no one consumes; what is not taken goes back."""
    pair.node_b.publish([pair.queue_b], bodies(3))
    await until(lambda: pair.tables.left() == 3)
    ready: list[int] = []
    pair.node_a.path.fetch(pair.queue_a, lambda: ready.append(pair.queue_a.ready))  # type: ignore[arg-type]
    await until(lambda: bool(ready))
    assert ready == [1]
    await until(lambda: pair.tables.free(LEVEL) == 3)
    empty = PathQueue(pair.node_a, 99)
    pair.node_a.path.fetch(empty, lambda: ready.append(empty.ready))  # type: ignore[arg-type]
    await until(lambda: ready == [1, 0])


async def test_a_drain_waits_for_all_that_was_gathered(pair: ModelPair) -> None:
    """A drain returns when messages and settlements so far are committed, and at once when there are none."""
    await pair.node_a.path.drain()
    pair.node_a.publish([pair.queue_a], bodies(3))
    await pair.node_a.path.drain()
    assert pair.tables.left() == 3


async def test_hints_name_levels_once_however_many_calls_there_were(pair: ModelPair) -> None:
    """While a hint is being sent, the next ones join."""
    gate = asyncio.get_running_loop().create_future()
    heard: list[Hint] = []
    pair.b.handle_hint = heard.append
    pair.a.pass_through = lambda name: gate if name == "notify" else None
    for number in range(5):
        pair.node_a.publish([pair.queue_a], bodies(1, number))
        await pair.node_a.path.drain()
    gate.set_result(None)
    await until(lambda: len(heard) == 2)
    assert heard == [Hint(FREE, 1, [LEVEL]), Hint(FREE, 2, [LEVEL])]


async def test_a_node_that_finds_nothing_says_so_once(pair: ModelPair) -> None:
    """The hint that messages are wanted goes out when a level runs dry, and not at each look."""
    heard: list[Hint] = []
    pair.a.handle_hint = heard.append
    pair.queue_b.add(1)
    await calm(pair.queue_b)
    pair.node_b.path.leases.handle_hint(Hint(LOOK))
    await calm(pair.queue_b)
    await until(lambda: bool(heard))
    assert heard == [Hint(WANTED, 0, [LEVEL])]


async def test_a_message_does_not_overtake_one_that_became_free_while_a_lease_was_under_way(pair: ModelPair) -> None:
    """A commit that the answer of a lease does not show keeps later messages after it, until they were leased."""
    consumer = pair.queue_a.add(10)
    await calm(pair.queue_a)
    gate = asyncio.get_running_loop().create_future()
    read = pair.a.lease

    async def lease(*arguments: Any) -> Any:
        found = await read(*arguments)
        await gate
        return found

    pair.a.lease = lease  # type: ignore[method-assign, assignment]
    pair.node_a.path.leases._look()
    await until(lambda: pair.a.counted["lease"] == 2)
    pair.node_a.publish([pair.queue_a], bodies(1))  # free, because a lease is under way
    await pair.node_a.path.drain()
    gate.set_result(None)
    await until(lambda: pair.queue_a.level.demand.asked == 0)
    pair.node_a.publish([pair.queue_a], bodies(1, 1))
    await until(lambda: len(consumer.got) == 2)
    assert consumer.got == bodies(2)


async def test_a_message_does_not_overtake_one_that_gathers(pair: ModelPair) -> None:
    """While free messages of the node wait for their call, an empty answer of a lease does not let others pass."""
    consumer = pair.queue_a.add(10)
    await calm(pair.queue_a)
    gate = asyncio.get_running_loop().create_future()
    pair.a.pass_through = lambda name: gate if name == "commit" else None
    pair.node_a.path.leases._look()
    pair.node_a.publish([pair.queue_a], bodies(1))
    await until(lambda: pair.a.counted["lease"] == 2 and pair.queue_a.level.demand.asked == 0)
    pair.node_a.publish([pair.queue_a], bodies(1, 1))
    gate.set_result(None)
    await until(lambda: len(consumer.got) == 2)
    assert consumer.got == bodies(2)
