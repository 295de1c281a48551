"""Mass work of queue rules is done in slices, one per event-loop turn, while other clients are served."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from pamqp import commands

from broker.core.deadlines import TURN_SHARE
from broker.core.message.message import Message
from broker.core.policy.policy import Policy
from broker.core.queue.level import RETURN_UNITS
from broker.core.session import client as client_module
from broker.core.session.basic import DELIVERIES_AT_ONCE
from broker.server import BrokerServer
from broker.store.damage import CorruptStore
from tests.deadline import wait_until_async
from tests.in_process import queue_of
from tests.raw_client import RawClient, method_frame, publish_frames
from tests.raw_talk import connect, consume, declare, mortal_broker, numbered, page_out, publish, receive, talk

Basic, Queue, Tx = commands.Basic, commands.Queue, commands.Tx

COUNT: Final = 3000
DEAD: Final = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def set_policy(broker: BrokerServer, pattern: str, **definition: Any) -> None:
    """Set a policy whose keys are written with underscores."""
    named = {key.replace("_", "-"): value for key, value in definition.items()}
    broker.engines["/"].vhost.policies.set(Policy("p", pattern, "queues", named, 0))


def filled(client: RawClient, count: int = COUNT, *, auto_delete: bool = False) -> None:
    """Declare a queue of transient messages, and the queue of its dead letters."""
    client.declare_queue(1, "dead")
    client.declare_queue(1, "q", arguments=DEAD, auto_delete=auto_delete)
    publish(client, "q", [b"%d" % number for number in range(count)], mode=1)


async def until(broker: BrokerServer, name: str, count: int) -> list[int]:
    """Return the ready counts of each turn until a queue has this many messages and no more."""
    seen: list[int] = []

    async def there() -> bool:
        seen.append(queue_of(broker, name).ready)
        return seen[-1] == count

    await wait_until_async(there, f"{count} messages in {name}, which had {seen[-1:]}")
    return seen


async def work_in(broker: BrokerServer, done: Callable[[], int], work: Awaitable[object]) -> list[int]:
    """Return the work of each turn while an operation was in progress."""
    engine = broker.engines["/"]
    turn = engine.turn
    counts = [done()]

    def counted() -> int:
        waiting_bytes = turn()
        counts.append(done())
        return waiting_bytes

    engine.turn = counted  # type: ignore[method-assign]
    await work
    return [after - before for before, after in pairwise(counts)]


@pytest.mark.interpreted("the turn of an engine is replaced")
async def test_a_limit_that_falls_is_enforced_turn_by_turn(tmp_path: Path) -> None:
    """A lower limit by a policy dead-letters thousands of messages in order, at most one share per turn."""
    async with mortal_broker(tmp_path) as broker:
        with await asyncio.to_thread(connect, broker) as client:
            await talk(broker, filled, client)
            set_policy(broker, "^q$", max_length=1)
            assert queue_of(broker, "q").ready > COUNT - TURN_SHARE
            grown = await work_in(broker, lambda: queue_of(broker, "dead").ready, until(broker, "dead", COUNT - 1))
            assert max(grown) < TURN_SHARE
            assert queue_of(broker, "q").ready == 1
            bodies = await talk(broker, consume, client, "dead", COUNT - 1)
            assert [int(body) for body in bodies] == list(range(COUNT - 1))


@pytest.mark.interpreted("the turn of an engine is replaced")
async def test_thousands_that_expire_at_once_do_so_turn_by_turn(tmp_path: Path) -> None:
    """A policy's TTL expires thousands of messages, at most one share per turn."""
    async with mortal_broker(tmp_path) as broker:
        with await asyncio.to_thread(connect, broker) as client:
            await talk(broker, filled, client)
            set_policy(broker, "^q$", message_ttl=0)
            assert queue_of(broker, "q").ready > COUNT - TURN_SHARE
            grown = await work_in(broker, lambda: queue_of(broker, "dead").ready, until(broker, "dead", COUNT))
            assert max(grown) < TURN_SHARE


@pytest.mark.interpreted("the turn of an engine is replaced")
async def test_publishers_do_not_wait_until_everything_has_expired(tmp_path: Path) -> None:
    """While thousands of messages expire, a publisher to a queue with rules has a share of every turn."""
    async with mortal_broker(tmp_path) as broker:
        with await asyncio.to_thread(connect, broker) as client:
            await talk(broker, partial(filled, count=3 * COUNT), client)
            await talk(broker, partial(client.declare_queue, arguments={"x-message-ttl": 1_000_000}), 1, "other")
            client.send(*(publish_frames(1, "", "other", b"x") for _ in range(300)))  # read once messages expire
            set_policy(broker, "^q$", message_ttl=0)
            left: list[int] = []

            def accepted() -> int:
                left.append(queue_of(broker, "q").ready)
                return queue_of(broker, "other").ready

            taken = await work_in(broker, accepted, until(broker, "dead", 3 * COUNT))
            assert sum(taken) == 300
            assert left[next(turn for turn, count in enumerate(accumulate(taken), 1) if count == 300)] > 0


@pytest.mark.interpreted("the turn of an engine is replaced")
@pytest.mark.parametrize("auto_delete", [False, True])
async def test_rejecting_thousands_is_done_turn_by_turn(tmp_path: Path, auto_delete: bool) -> None:
    """One nack of thousands dead-letters each once, even when the connection or the queue ends at once."""
    async with mortal_broker(tmp_path) as broker:
        with await asyncio.to_thread(connect, broker) as client:
            await talk(broker, partial(filled, auto_delete=auto_delete), client)

            def reject() -> None:
                client.call(1, Basic.Consume(queue="q"), Basic.ConsumeOk)
                receive(client, COUNT)
                client.method(1, Basic.Nack(delivery_tag=0, multiple=True, requeue=False))

            async def rejected() -> None:
                await talk(broker, reject)
                client.socket.close()
                await until(broker, "dead", COUNT)

            grown = await work_in(broker, lambda: queue_of(broker, "dead").ready, rejected())
            assert max(grown) < TURN_SHARE
            assert auto_delete == ("q" not in broker.engines["/"].vhost.queues)
            if not auto_delete:
                assert (queue_of(broker, "q").ready, queue_of(broker, "q").unacked) == (0, 0)


@pytest.mark.interpreted("the turn of an engine is replaced")
@pytest.mark.parametrize("verb", ["close", "lost", "recover", "nack", "reject", "ack", "purge"])
async def test_what_concerns_thousands_of_messages_takes_a_slice_of_each_turn(tmp_path: Path, verb: str) -> None:
    """A turn touches no more slots than its share pays for, whatever the verb; the answer follows the last slice."""
    async with mortal_broker(tmp_path, {"slots": {"window_messages": 1}}) as broker:
        with await asyncio.to_thread(connect, broker) as client:
            await talk(broker, filled, client)
            queue = queue_of(broker, "q")

            def hold() -> None:
                client.call(1, Basic.Consume(queue="q", consumer_tag="c"), Basic.ConsumeOk)
                receive(client, COUNT)
                client.call(1, Basic.Cancel(consumer_tag="c"), Basic.CancelOk)

            if verb != "purge":
                await talk(broker, hold)

            def left() -> int:
                return queue.ready if verb == "purge" else queue.unacked

            def act() -> None:
                everything: Any = {"delivery_tag": 0, "multiple": True}
                if verb == "close":
                    close = commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0)
                    client.call(1, close, commands.Channel.CloseOk)
                elif verb == "lost":
                    client.socket.close()
                    return
                elif verb == "recover":
                    client.call(1, Basic.Recover(requeue=True), Basic.RecoverOk)
                elif verb == "purge":
                    assert client.call(1, Queue.Purge(queue="q"), Queue.PurgeOk).message_count == COUNT
                else:
                    requeue = verb == "nack"
                    client.method(
                        1, Basic.Ack(**everything) if verb == "ack" else Basic.Nack(requeue=requeue, **everything)
                    )
                    client.call(1, Queue.Declare(queue="dead", passive=True), Queue.DeclareOk)
                assert left() == 0, "the answer came first"

            async def acted() -> None:
                assert left() == COUNT
                await talk(broker, act)
                await wait_until_async(lambda: left() == 0, "the last slice")

            touched = await work_in(broker, lambda: COUNT - left(), acted())
            # The method has the rest of the share of one turn, and the work that is due in that turn has the next.
            units = RETURN_UNITS if verb in ("close", "lost", "recover", "nack") else 1
            assert max(touched) <= 2 * (TURN_SHARE // units + DELIVERIES_AT_ONCE)
            assert sum(touched) == COUNT
            back = verb in ("close", "lost", "recover", "nack")
            assert (queue.ready, queue_of(broker, "dead").ready) == (COUNT * back, COUNT * (verb == "reject"))


@pytest.mark.interpreted("the turn of an engine is replaced")
@pytest.mark.parametrize("verb", ["publish", "ack", "nack", "reject"])
async def test_the_commit_of_thousands_takes_a_slice_of_each_turn(tmp_path: Path, verb: str) -> None:
    """A commit touches no more slots in a turn than its share pays for; others are served meanwhile, and their records
    are on disk when the commit is answered, or not yet confirmed.
    """
    many = COUNT if verb == "reject" else 3 * COUNT
    async with mortal_broker(tmp_path, {"slots": {"window_messages": 1}}, crash=True) as broker:
        with await asyncio.to_thread(connect, broker) as client, await asyncio.to_thread(connect, broker) as other:

            def prepare() -> None:
                client.declare_queue(1, "dead", durable=True)
                client.declare_queue(1, "q", durable=True, arguments=DEAD)
                client.declare_queue(1, "other", durable=True)
                client.call(1, Tx.Select(), Tx.SelectOk)
                if verb == "publish":
                    persistent = Basic.Properties(delivery_mode=2)
                    client.send(*(publish_frames(1, "", "q", b"", properties=persistent) for _ in range(many)))
                else:
                    publish(client, "q", numbered(many))
                    client.call(1, Basic.Consume(queue="q", consumer_tag="c"), Basic.ConsumeOk)
                    receive(client, many)
                    client.call(1, Basic.Cancel(consumer_tag="c"), Basic.CancelOk)
                    ack = verb == "ack"
                    everything: Any = {"delivery_tag": 0, "multiple": True}
                    client.method(
                        1, Basic.Ack(**everything) if ack else Basic.Nack(requeue=verb == "nack", **everything)
                    )
                client.declare_queue(1, "q", passive=True)
                other.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)

            await talk(broker, prepare)
            queue = queue_of(broker, "q")

            def done() -> int:
                """Return the number of messages that the commit has touched."""
                return queue.ready if verb == "publish" else many - queue.unacked

            seen: list[int] = []

            def see() -> int:
                seen.append(queue_of(broker, "other").ready)
                return done()

            def act() -> None:
                client.method(1, Tx.Commit())
                other.send(*(publish_frames(1, "", "other", b"", properties=Basic.Properties(delivery_mode=2)),) * 3)
                client.expect(Tx.CommitOk, 1)

            touched = await work_in(broker, see, talk(broker, act))
            units = RETURN_UNITS if verb == "nack" else 1
            assert max(touched) <= 2 * (TURN_SHARE // units + DELIVERIES_AT_ONCE)
            assert sum(touched) == many
            if verb == "publish":
                between = [count for count, part in zip(seen, accumulate(touched), strict=False) if 0 < part < many]
                assert between[-1] == 3, "others are served while the commit is in progress"
    async with mortal_broker(tmp_path) as broker:
        counts = {"publish": (many, 0), "ack": (0, 0), "nack": (many, 0), "reject": (0, many)}
        assert (queue_of(broker, "q").ready, queue_of(broker, "dead").ready) == counts[verb]


@pytest.mark.interpreted("the turn of an engine is replaced")
async def test_the_messages_of_a_deleted_queue_are_released_turn_by_turn(tmp_path: Path) -> None:
    """The queue is gone at once; each turn releases as many messages as its share pays for."""
    async with mortal_broker(tmp_path, {"slots": {"window_messages": 1}}) as broker:
        with await asyncio.to_thread(connect, broker) as client:
            await talk(broker, filled, client)
            slots = list(queue_of(broker, "q").level.manager.slots.values())
            held = {id(slot.contents[0]) for slot in slots if slot.contents}
            slots.clear()

            def left() -> int:
                return sum(id(one) in held for one in gc.get_objects() if isinstance(one, Message))

            async def deleted() -> None:
                await talk(broker, client.call, 1, Queue.Delete(queue="q"), Queue.DeleteOk)
                await wait_until_async(
                    lambda: not broker.engines["/"].vhost.ports.sliced._running, "the release of the last message"
                )

            released = await work_in(broker, lambda: COUNT - left(), deleted())
            assert max(released) <= 2 * TURN_SHARE
            assert sum(released) == COUNT


async def test_what_comes_back_in_slices_is_delivered_before_what_is_behind_it(tmp_path: Path) -> None:
    """A consumer gets the messages of a closed channel in their order, then fresh ones, though it is the faster one."""
    async with mortal_broker(tmp_path, {"slots": {"window_messages": 1}}) as broker:
        with await asyncio.to_thread(connect, broker) as client:
            await talk(broker, filled, client)

            def work() -> list[tuple[int, bool]]:
                client.call(1, Basic.Consume(queue="q", consumer_tag="c"), Basic.ConsumeOk)
                receive(client, COUNT)
                client.call(1, Basic.Cancel(consumer_tag="c"), Basic.CancelOk)
                publish(client, "q", [b"%d" % number for number in range(COUNT, COUNT + 100)], mode=1)
                client.open_channel(2)
                close = commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0)
                client.send(method_frame(1, close), method_frame(2, Basic.Consume(queue="q", no_ack=True)))
                found: list[tuple[int, bool]] = []
                while len(found) < COUNT + 100:
                    received = client.next().value
                    if isinstance(received, Basic.Deliver):
                        found.append((int(client.expect_content(2)[1]), received.redelivered))
                return found

            assert await talk(broker, work) == [(number, number < COUNT) for number in range(COUNT + 100)]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_what_clients_held_is_redelivered_after_a_stop(tmp_path: Path, kind: str) -> None:
    """A broker that stops requeues all that its clients have, though it takes more than a turn, and counts it."""
    sections = {"slots": {"window_messages": 1}}
    async with mortal_broker(tmp_path, sections) as broker:
        client = await asyncio.to_thread(connect, broker)

        def hold() -> None:
            client.declare_queue(1, "q", durable=True, arguments={"x-queue-type": kind})
            publish(client, "q", [b"%d" % number for number in range(COUNT)])
            client.call(1, Basic.Consume(queue="q"), Basic.ConsumeOk)
            receive(client, COUNT)

        await talk(broker, hold)
    client.socket.close()
    async with mortal_broker(tmp_path, sections) as broker:
        slots = [slot for slot in queue_of(broker, "q").level.manager.slots.values() if slot.length]
        assert not any(slot.recovered for slot in slots)
        assert sum(slot.redelivered_among(range(slot.length)) for slot in slots) == COUNT
        assert {slot.delivery_count(0) for slot in slots} == {1}


@pytest.mark.interpreted("the turn of an engine is replaced")
async def test_a_chain_of_full_queues_is_pushed_on_turn_by_turn(tmp_path: Path) -> None:
    """Each publish moves one message of every queue; publishers wait for that, and no queue exceeds its limit."""
    links = 25

    def work(client: RawClient) -> None:
        for link in range(links):
            table: Any = {"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"c{link + 1}"}
            client.declare_queue(1, f"c{link}", arguments=table)
        declare(client, f"c{links}")
        publish(client, "c0", numbered(100, 10), mode=1)
        client.declare_queue(1, "c0", passive=True)

    async with mortal_broker(tmp_path) as broker:
        with await asyncio.to_thread(connect, broker) as client:

            async def pushed() -> None:
                await talk(broker, work, client)
                await until(broker, f"c{links}", 100 - links)

            def moved() -> int:
                return sum(queue.level.manager.next_id for queue in broker.engines["/"].vhost.queues.values())

            assert max(await work_in(broker, moved, pushed())) < TURN_SHARE
            assert [queue_of(broker, f"c{link}").ready for link in range(links)] == [1] * links


async def test_a_look_and_a_limit_that_wait_for_the_same_slot_both_go_on(tmp_path: Path) -> None:
    """A queue with a TTL whose head is on disk is still brought within a new limit."""

    def fill(client: RawClient) -> None:
        client.declare_queue(1, "dead", durable=True)
        client.declare_queue(1, "q", durable=True, arguments=DEAD | {"x-message-ttl": 1_000_000})
        publish(client, "q", numbered(100, 100))

    async with mortal_broker(tmp_path, {"slots": {"window_messages": 10}}) as broker:
        with await asyncio.to_thread(connect, broker) as client:
            await talk(broker, fill, client)
            page_out(broker, "q")
            set_policy(broker, "^q$", max_length=3, message_ttl=900_000)
            await until(broker, "dead", 97)
            assert queue_of(broker, "q").ready == 3


async def test_a_dead_letter_that_comes_back_does_not_overfill_a_consumer(tmp_path: Path) -> None:
    """A dead letter that returns to a queue during its delivery exceeds no prefetch and breaks no order."""

    def fill(client: RawClient) -> None:
        table = {"x-overflow": "reject-publish", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "other"}
        client.declare_queue(1, "q", arguments=table)
        back = {"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
        client.declare_queue(1, "other", arguments=back)
        publish(client, "other", [b"pushed out"], mode=1)
        client.send(publish_frames(1, "", "q", b"short", properties=Basic.Properties(expiration="200")))
        client.send(*(publish_frames(1, "", "q", b"%d" % number) for number in range(30)))
        client.declare_queue(1, "q", passive=True)

    def take(client: RawClient) -> list[bytes]:
        client.call(1, Basic.Qos(prefetch_count=3), Basic.QosOk)
        client.call(1, Basic.Consume(queue="q"), Basic.ConsumeOk)
        return [body for _, body in receive(client, 3)]

    async with mortal_broker(tmp_path) as broker:
        with await asyncio.to_thread(connect, broker) as client:
            await talk(broker, fill, client)
            queue = queue_of(broker, "q")
            set_policy(broker, "^q$", max_length=1)
            broker.engines["/"].deadlines.cancel(queue)  # nothing is checked before the consumer starts
            await asyncio.sleep(0.3)
            assert queue.ready == 31
            assert await talk(broker, take, client) == [b"0", b"1", b"2"]
            assert (queue.unacked, queue.ready) == (3, 27)


async def test_a_publish_that_costs_more_than_a_share_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a cached route, each publish to very many queues is resolved once, and later publishes follow."""
    monkeypatch.setattr(client_module, "BUDGET_UNITS", 3)
    names = [f"q{number}" for number in range(24)]  # four units

    def work(client: RawClient) -> None:
        declare(client, *names, fanout=True)
        client.declare_queue(1, "limited", arguments={"x-max-length": 100})  # a publish has to check it
        client.call(1, Queue.Bind(queue="limited", exchange="amq.fanout"), Queue.BindOk)
        client.send(*(publish_frames(1, "amq.fanout", f"k{number}", b"%d" % number) for number in range(3)))

    async with mortal_broker(tmp_path, {"routing": {"cache_entries": 0}}) as broker:
        with await asyncio.to_thread(connect, broker) as client:
            await talk(broker, work, client)
            await until(broker, "limited", 3)
            assert [queue_of(broker, name).ready for name in names] == [3] * len(names)
            assert await talk(broker, consume, client, "limited", 3) == [b"0", b"1", b"2"]


async def test_a_purge_in_progress_ends_when_its_vhost_goes_offline(tmp_path: Path) -> None:
    """An operator does not wait for ever for the rest of it, which is more than the turns until then can do."""
    many = 20 * TURN_SHARE
    async with mortal_broker(tmp_path, {"slots": {"window_messages": 1}}) as broker:
        await broker.administration.change(lambda draft: draft.add_vhost("another", {}))
        with await asyncio.to_thread(connect, broker) as client:
            await talk(broker, partial(filled, count=many), client)
        dropped: list[int] = []
        queue_of(broker, "q").purge(dropped.append)
        assert not dropped
        broker.vhosts.take_offline("/", CorruptStore(tmp_path, 1, 0, "of the test"))
        await wait_until_async(lambda: "/" not in broker.engines, "the engine has ended")
        assert dropped == [many]
