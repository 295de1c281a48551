"""The data path of nodes over a database in memory: what they hold after a break, a crash, or the end of an epoch."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tests.cluster.members import until
from tests.cluster.model_pair import LEVEL, ModelPair, bodies, calm

pytestmark = pytest.mark.interpreted("queues, consumers and publishers of the test take the place of native ones")


async def test_a_lost_epoch_drops_everything(pair: ModelPair) -> None:
    """After the end of an epoch nothing of it is delivered or settled, and the node takes up work anew."""
    consumer = pair.queue_a.add(2)
    await calm(pair.queue_a)
    pair.node_a.publish([pair.queue_a], bodies(4))
    await until(lambda: pair.tables.left() == 4)
    held = list(consumer.held)
    pair.node_a.path.forget_all()
    for key in [key for key in pair.tables.rows if key[2] == "a"]:
        moved = pair.tables.rows[key].bits.copy()
        pair.tables.rows[key].seen |= moved
        pair.tables.move(key, "", moved)
    for slot, index in held:
        pair.queue_a.level.settle(slot, [index])
        pair.queue_a.level.requeue(slot, [index], failed=True)
    consumer.held.clear()
    consumer.got.clear()
    pair.queue_a.wake()
    await until(lambda: len(consumer.got) == 2)
    assert consumer.got == bodies(2)
    assert consumer.again[-2:] == [True, True]
    assert pair.tables.left() == 4


async def test_a_node_reconciles_what_it_holds(pair: ModelPair) -> None:
    """Rows that the node does not know become free, marked; those that are not there are dropped."""
    consumer = pair.queue_a.add(1)
    pair.node_b.publish([pair.queue_b], bodies(2))
    await until(lambda: consumer.got == bodies(1))
    key = next(key for key in pair.tables.rows if not key[2])
    pair.tables.move(key, "a", pair.tables.rows[key].bits.copy())  # a lease whose answer was lost
    pair.node_a.path.reconcile(pair.a.held())
    await until(lambda: pair.tables.free(LEVEL) == 1)
    assert pair.tables.rows[key].seen.any()
    pair.tables.rows.clear()
    slot, index = consumer.held[0]
    pair.queue_a.level.requeue(slot, [index], failed=True)
    consumer.held.clear()
    pair.queue_a.consumers.remove(consumer)
    pair.node_a.path.reconcile([])
    assert pair.queue_a.ready == 0


async def test_reconciliation_leaves_rows_that_another_part_of_the_node_works_on(pair: ModelPair) -> None:
    """Rows leased by the keeper are not returned as unknown before it is done."""
    pair.node_b.publish([pair.queue_b], bodies(2))
    await until(lambda: pair.tables.free(LEVEL) == 2)
    key = next(key for key in pair.tables.rows if not key[2])
    pair.tables.move(key, "a", pair.tables.rows[key].bits.copy())
    async with pair.node_a.path.working_on(pair.a.held()):
        pair.node_a.path.reconcile(pair.a.held())
        asked = asyncio.Event()
        pair.node_a.path.fetch(cast("Any", pair.queue_a), asked.set)  # it asks after everything is returned
        await asked.wait()
        assert pair.tables.free(LEVEL) == 0
    pair.node_a.path.reconcile(pair.a.held())
    await until(lambda: pair.tables.free(LEVEL) == 2)


async def test_reconciliation_leaves_what_a_call_that_waits_will_settle(pair: ModelPair) -> None:
    """Messages settled while the database was unreachable are not returned as unknown before the call is sent."""
    consumer = pair.queue_b.add(5)
    pair.node_a.publish([pair.queue_a], bodies(2))
    await until(lambda: len(consumer.got) == 2)
    gate = asyncio.get_running_loop().create_future()
    pair.b.pass_through = lambda name: gate if name == "commit" else None
    pair.queue_b.settle(consumer)
    await until(lambda: pair.b.counted["commit"] == 1)
    pair.node_b.path.reconcile(pair.b.held())
    await calm(pair.queue_b)
    assert pair.tables.free(LEVEL) == 0
    gate.set_result(None)
    await pair.node_b.path.drain()
    assert not pair.tables.rows
    assert pair.b.counted["give_back"] == 0


async def test_settlements_are_kept_until_a_synchronous_call_has_written_them(pair: ModelPair) -> None:
    """A later call that was sent once writes what was settled before it; one that was repeated proves nothing."""
    consumer = pair.queue_b.add(5)
    pair.node_a.publish([pair.queue_a], bodies(2))
    await until(lambda: len(consumer.got) == 2)
    pair.queue_b.settle(consumer)
    await pair.node_b.path.drain()
    unsaved = pair.node_b.path.levels.unsaved
    assert [bits.count() for _, bits in unsaved] == [2]
    once = pair.b.commit

    async def repeated(*arguments: Any, **named: Any) -> Any:
        return (await once(*arguments, **named))._replace(repeated=True)

    for commit, kept in ((repeated, 1), (once, 0)):
        pair.b.commit = commit  # type: ignore[method-assign]
        pair.node_b.publish([pair.queue_b], bodies(1))
        await pair.node_b.path.drain()
        assert len(list(unsaved)) == kept


async def test_reconciliation_leaves_the_slots_of_a_call_that_is_being_answered(pair: ModelPair) -> None:
    """Between the commit and its answer the node does not know its own slot by number, and does not return it."""
    consumer = pair.queue_a.add(5)
    await calm(pair.queue_a)
    gate = asyncio.get_running_loop().create_future()
    committed = pair.a.commit

    async def commit(*arguments: Any, **named: Any) -> Any:
        answer = await committed(*arguments, **named)
        await gate
        return answer

    pair.a.commit = commit  # type: ignore[method-assign]
    pair.node_a.publish([pair.queue_a], bodies(2))
    await until(lambda: pair.tables.left() == 2 and len(consumer.got) == 2)
    pair.node_a.path.reconcile(pair.a.held())
    await asyncio.sleep(0)
    gate.set_result(None)
    await pair.node_a.path.drain()
    assert pair.tables.free(LEVEL) == 0
    pair.queue_a.settle(consumer)
    await pair.node_a.path.drain()
    assert not pair.tables.rows
