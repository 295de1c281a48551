"""Very many bindings are made and removed in slices, one per event-loop turn, while other clients are served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from pamqp import commands

from broker.core.session.client import BUDGET_UNITS
from broker.core.session.queue import UNITS
from broker.core.topology.deferred_unbinding import CHUNK_BINDINGS
from broker.core.vhost import Vhost
from broker.server import BrokerServer
from tests.deadline import wait_until_async
from tests.in_process import client_of
from tests.raw_client import RawClient, method_frame
from tests.raw_talk import connect, mortal_broker, publish, talk

Exchange, Queue, Connection = commands.Exchange, commands.Queue, commands.Connection

MANY: Final = 5 * CHUNK_BINDINGS + 7
KEYS: Final = [f"k.{number}.*" for number in range(MANY)]
MOST_METHODS: Final = BUDGET_UNITS // UNITS + 1  # from one connection in one turn


class Counted:
    """The work of a broker in each turn."""

    def __init__(self, broker: BrokerServer, done: Callable[[], int]) -> None:
        self.totals = [done()]
        engine = broker.engines["/"]
        turn = engine.turn

        def counted() -> int:
            waiting_bytes = turn()
            self.totals.append(done())
            return waiting_bytes

        engine.turn = counted  # type: ignore[method-assign]

    @property
    def most(self) -> int:
        """Return the most work done between two turns."""
        return max(abs(after - before) for before, after in pairwise(self.totals))


def vhost_of(broker: BrokerServer) -> Vhost:
    """Return the default vhost."""
    return broker.engines["/"].vhost


def bind_all(client: RawClient, queue: str = "q", keys: list[str] = KEYS) -> None:
    """Bind a queue with many keys, as fast as they can be sent."""
    binds = [method_frame(1, Queue.Bind(queue=queue, exchange="x", routing_key=key, nowait=True)) for key in keys]
    client.send(*binds)
    client.call(1, Queue.Declare(queue=queue, passive=True), Queue.DeclareOk)


def prepare(client: RawClient, **options: Any) -> None:
    """Declare an exchange, and a queue that is bound to it by many keys."""
    client.call(1, Exchange.Declare(exchange="x", exchange_type="topic"), Exchange.DeclareOk)
    client.call(1, Queue.Declare(queue="q", **options), Queue.DeclareOk)
    bind_all(client)


@asynccontextmanager
async def bound(folder: Path, **options: Any) -> AsyncIterator[tuple[BrokerServer, RawClient]]:
    """Yield a broker with a queue of many bindings, and the client that declared it."""
    async with mortal_broker(folder) as broker:
        with await asyncio.to_thread(connect, broker) as client:
            await talk(broker, lambda: prepare(client, **options))
            yield broker, client


async def until_gone(broker: BrokerServer, count: int = MANY) -> None:
    """Return when the indexes have lost this many bindings."""
    await wait_until_async(
        lambda: vhost_of(broker).bindings.live.deferred.shed == count, f"{count} bindings out of the index"
    )


@pytest.mark.interpreted("the turn of an engine is replaced")
async def test_binding_and_unbinding_by_the_thousands_is_done_turn_by_turn(tmp_path: Path) -> None:
    """However many methods arrive in one read, a connection has a share of each turn, and each is answered in order."""

    def unbind_all(client: RawClient) -> None:
        client.send(*(method_frame(1, Queue.Unbind(queue="q", exchange="x", routing_key=key)) for key in KEYS))
        for _ in KEYS:
            client.expect(Queue.UnbindOk, 1)

    async with mortal_broker(tmp_path) as broker:
        counted = Counted(broker, lambda: vhost_of(broker).bindings.live.count)
        with await asyncio.to_thread(connect, broker) as client:
            await talk(broker, prepare, client)
            assert vhost_of(broker).bindings.live.count == MANY
            assert counted.most <= MOST_METHODS
            await talk(broker, unbind_all, client)
            assert vhost_of(broker).bindings.live.count == 0
            assert counted.most <= MOST_METHODS


async def test_a_storm_of_one_connection_leaves_the_others_their_turns(tmp_path: Path) -> None:
    """Requests of another client while one binds thousands of keys are done before the last of them."""
    async with mortal_broker(tmp_path) as broker:
        with (
            await asyncio.to_thread(connect, broker) as storming,
            await asyncio.to_thread(connect, broker) as asking,
        ):
            live = vhost_of(broker).bindings.live
            storm = asyncio.create_task(talk(broker, prepare, storming))
            while not live.count:  # noqa: ASYNC110 - between two steps of the broker's loop
                await asyncio.sleep(0)
            assert live.count < MANY
            asking.send(method_frame(1, Queue.Bind(queue="q", exchange="x", routing_key="other")))
            await talk(broker, asking.expect, Queue.BindOk, 1)
            await storm
            keys = [binding.key for binding in vhost_of(broker).exchanges["x"].bindings]
            assert len(keys) == MANY + 1
            assert keys.index("other") < MANY


async def delete(broker: BrokerServer, client: RawClient) -> None:
    """Delete the queue."""
    answer = await talk(broker, client.call, 1, Queue.Delete(queue="q"), Queue.DeleteOk)
    assert answer.message_count == 3


async def leave(broker: BrokerServer, client: RawClient) -> None:
    """Close the connection to which the queue is exclusive."""
    close = Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0)
    await talk(broker, client.call, 0, close, Connection.CloseOk)


async def vanish(broker: BrokerServer, client: RawClient) -> None:
    """Break the connection to which the queue is exclusive."""
    client.socket.close()
    await wait_until_async(lambda: "q" not in vhost_of(broker).queues, "the end of the queue")


async def delete_exchange(broker: BrokerServer, client: RawClient) -> None:
    """Delete the exchange."""
    await talk(broker, client.call, 1, Exchange.Delete(exchange="x"), Exchange.DeleteOk)


@pytest.mark.interpreted("the turn of an engine is replaced")
@pytest.mark.parametrize(
    ("end", "exclusive"), [(delete, False), (leave, True), (vanish, True), (delete_exchange, False)]
)
async def test_what_is_deleted_is_gone_for_clients_at_once(
    tmp_path: Path, end: Callable[[BrokerServer, RawClient], Any], exclusive: bool
) -> None:
    """A deleted object leaves counts and lists at once and can be redeclared; bindings leave the index in slices."""
    async with bound(tmp_path, exclusive=exclusive) as (broker, client), client_of(broker) as channel:
        await talk(broker, lambda: publish(client, "k.1.x", [b"m"] * 3, exchange="x"))
        counted = Counted(broker, lambda: vhost_of(broker).bindings.live.deferred.shed)
        await end(broker, client)
        assert vhost_of(broker).bindings.live.count == 0
        exchange = await channel.declare_exchange("x", "topic")
        again = await channel.declare_queue("q", durable=end is not delete_exchange)  # not the deleted one
        assert again.declaration_result.message_count == (3 if end is delete_exchange else 0)
        await again.bind(exchange, "k.1.*")
        assert [binding.key for binding, _ in vhost_of(broker).queues["q"].incoming_bindings] == ["k.1.*"]
        await until_gone(broker)
        assert counted.most <= CHUNK_BINDINGS
        assert not vhost_of(broker).bindings.live.deferred.busy
        assert [binding.key for binding in vhost_of(broker).exchanges["x"].bindings] == ["k.1.*"]


@pytest.mark.interpreted("the turn of an engine is replaced")
async def test_publishers_go_on_while_a_queue_of_many_bindings_is_deleted(tmp_path: Path) -> None:
    """Each publish after delete-ok is confirmed and reaches the remaining queues."""
    async with bound(tmp_path) as (broker, client):
        with await asyncio.to_thread(connect, broker) as publisher:

            def publish_behind() -> None:
                publisher.call(1, Queue.Declare(queue="other"), Queue.DeclareOk)
                publisher.call(1, Queue.Bind(queue="other", exchange="x", routing_key="k.#"), Queue.BindOk)
                publish(publisher, "k.1.a", [b"1"] * 3, exchange="x")
                client.call(1, Queue.Delete(queue="q"), Queue.DeleteOk)
                publish(publisher, "k.1.a", [b"2"] * 3, exchange="x")
                publish(publisher, "k.2.a", [b"3"], exchange="x")

            counted = Counted(broker, lambda: vhost_of(broker).bindings.live.deferred.shed)
            await talk(broker, publish_behind)
            await until_gone(broker)
            assert counted.most <= CHUNK_BINDINGS
            assert vhost_of(broker).queues["other"].ready == 7


@pytest.mark.interpreted("the turn of an engine is replaced")
async def test_a_mandatory_message_comes_back_as_soon_as_the_queue_is_deleted(tmp_path: Path) -> None:
    """A mandatory message for the deleted queue is returned, although its key is still in the index."""
    async with bound(tmp_path) as (broker, client):

        def ask() -> commands.Basic.Return:
            client.send(
                method_frame(1, Queue.Delete(queue="q", nowait=True)),
                method_frame(1, commands.Basic.Publish(exchange="x", routing_key="k.5.a", mandatory=True)),
                b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c" + bytes(12) + b"\xce",
            )
            return client.expect(commands.Basic.Return, 1)

        returned = await talk(broker, ask)
        assert (returned.reply_code, returned.routing_key) == (312, "k.5.a")


@pytest.mark.interpreted("the remains of deleted queues are counted in a subclass")
async def test_a_deleted_vhost_goes_turn_by_turn(tmp_path: Path) -> None:
    """The bindings of a deleted vhost leave their indexes in slices, and its folder is removed in the end."""
    async with bound(tmp_path, durable=True) as (broker, _client):
        vhost = vhost_of(broker)
        sheds: list[int] = []
        turn = vhost.bindings.live.deferred.turn

        def counted() -> None:
            before = vhost.bindings.live.deferred.shed
            turn()
            sheds.append(vhost.bindings.live.deferred.shed - before)

        slotted: Any = vhost.bindings.live.deferred
        vhost.bindings.live.deferred = CountedRemains(slotted, counted)  # type: ignore[assignment]
        await broker.administration.change(lambda draft: draft.drop_vhost("/"))
        assert sum(sheds) == MANY
        assert max(sheds) <= CHUNK_BINDINGS
        assert not list((tmp_path / "vhosts").glob("*"))


class CountedRemains:
    """DeferredUnbinding that counts its turns."""

    def __init__(self, remains: Any, turn: Callable[[], None]) -> None:
        self._remains = remains
        self.turn = turn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._remains, name)
