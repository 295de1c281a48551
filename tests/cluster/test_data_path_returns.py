"""Messages that a node returns because its consumers have no room keep their place in the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker.cluster.errors import Unreachable
from broker.cluster.hint import FREE, WANTED, Hint
from broker.cluster.shared_level import SharedLevel
from tests.cluster.members import until
from tests.cluster.model_database import ModelDatabase
from tests.cluster.model_pair import LEVEL, ModelPair, bodies, calm
from tests.cluster.path_node import PathQueue, TestConsumer

pytestmark = pytest.mark.interpreted("queues, consumers and publishers of the test take the place of native ones")


def stop(queue: PathQueue) -> Callable[[], None]:
    """Keep a worker from delivering until the result is called."""
    queue.serve = lambda: None  # type: ignore[method-assign]

    def go_on() -> None:
        del queue.serve
        queue.serve()

    return go_on


def starve(queue: PathQueue, consumer: TestConsumer) -> None:
    """Let the node look while another one wants messages and the consumer has no room, and give it room again."""
    consumer.prefetch = 0
    queue.node.path.leases.handle_hint(Hint(WANTED, 0, [LEVEL]))
    queue.node.path.leases._tick()
    consumer.prefetch = 10
    queue.credit(consumer)


def hold(database: ModelDatabase, call: str) -> asyncio.Future[None]:
    """Keep the calls of a name from having their effect until the result is set."""
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    database.pass_through = lambda name: gate if name == call else None
    return gate


async def test_nothing_is_returned_while_a_lease_is_under_way(pair: ModelPair) -> None:
    """Messages arriving with it would be ahead of the returned ones."""
    go_on = stop(pair.queue_a)
    consumer = pair.queue_a.add(2)
    await calm(pair.queue_a)
    pair.node_b.publish([pair.queue_b], bodies(2))
    await until(lambda: pair.queue_a.ready == 2)
    gate = hold(pair.a, "chunks")
    read = pair.a.counted["chunks"]
    consumer.prefetch = 10
    pair.node_b.publish([pair.queue_b], bodies(4, 2))
    await until(lambda: pair.a.counted["chunks"] > read)
    starve(pair.queue_a, consumer)
    gate.set_result(None)
    go_on()
    await until(lambda: len(consumer.got) == 6)
    assert consumer.got == bodies(6)


async def test_what_has_gone_back_is_not_returned_again(pair: ModelPair) -> None:
    """The answer to a return is lost. The keeper leases the messages before the node sends the return again."""
    stop(pair.queue_a)
    consumer = pair.queue_a.add(2)
    await calm(pair.queue_a)
    pair.node_b.publish([pair.queue_b], bodies(2))
    await until(lambda: pair.queue_a.ready == 2)
    give_back = pair.a.give_back
    done: list[Any] = []

    async def unanswered(*arguments: Any) -> None:
        await give_back(*arguments)
        done.append(arguments)
        if len(done) == 1:
            raise Unreachable("the connection was cut")

    pair.a.give_back = unanswered  # type: ignore[assignment, method-assign]
    consumer.prefetch = 0
    pair.node_a.path.leases._tick()
    await until(lambda: len(done) == 1)
    pair.node_a.path.reconcile(pair.a.held())
    ((key, row),) = pair.tables.rows.items()
    assert not key[2], "it is free"
    pair.tables.move(key, "a", row.bits.copy())
    await until(lambda: len(done) == 2)
    assert [holder for _, _, holder in pair.tables.rows] == ["a"]


async def test_nothing_is_returned_from_ahead_of_what_must_stay(pair: ModelPair) -> None:
    """A message whose call is under way has no number yet and cannot be returned; those before it stay, too."""
    go_on = stop(pair.queue_a)
    consumer = pair.queue_a.add(10)
    await calm(pair.queue_a)
    pair.node_a.publish([pair.queue_a], bodies(2))
    await pair.node_a.path.drain()
    gate = hold(pair.a, "commit")
    pair.node_a.publish([pair.queue_a], bodies(1, 2))
    await until(lambda: pair.a.counted["commit"] == 2)
    assert pair.queue_a.ready == 3
    starve(pair.queue_a, consumer)
    go_on()
    gate.set_result(None)
    await until(lambda: len(consumer.got) == 3)
    assert consumer.got == bodies(3)


async def test_a_message_does_not_overtake_one_that_was_released(pair: ModelPair) -> None:
    """A message that gathers for the next call and is not kept here is free with it: later ones come after it."""
    go_on = stop(pair.queue_a)
    consumer = pair.queue_a.add(10)
    await calm(pair.queue_a)
    gate = hold(pair.a, "commit")
    pair.node_a.publish([PathQueue(pair.node_a, 8)], bodies(1))
    await until(lambda: pair.a.counted["commit"] == 1)
    pair.node_a.publish([pair.queue_a], bodies(1))
    starve(pair.queue_a, consumer)
    assert pair.queue_a.ready == 0
    pair.node_a.publish([pair.queue_a], bodies(1, 1))
    go_on()
    gate.set_result(None)
    await until(lambda: len(consumer.got) == 2)
    assert consumer.got == bodies(2)


async def test_a_paused_node_does_not_look_at_what_it_cannot_deliver(pair: ModelPair) -> None:
    """Nothing is delivered before PostgreSQL is back; until then a message for which there is room costs no turn."""
    go_on = stop(pair.queue_a)
    consumer = pair.queue_a.add(10)
    await calm(pair.queue_a)
    pair.node_a.publish([pair.queue_a], bodies(8))
    await pair.node_a.path.drain()
    pair.node_a.path.leases.pause()
    pair.node_a.path.leases.handle_hint(Hint(FREE, 1, [LEVEL]))
    looks = 0
    consider = pair.node_a.path.leases._consider

    def counted(level: SharedLevel) -> None:
        nonlocal looks
        looks += 1
        consider(level)

    pair.node_a.path.leases._consider = counted  # type: ignore[method-assign]
    for _ in range(1000):
        await asyncio.sleep(0)
    assert pair.queue_a.ready == 8
    assert looks < 20, looks
    pair.node_a.path.leases.resume()
    go_on()
    await until(lambda: len(consumer.got) == 8)
