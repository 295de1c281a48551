"""The topology of a cluster is one truth: what was answered holds on every node, and conflicts get RabbitMQ's codes."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import asyncpg
import pytest
from pamqp import commands

from broker.cluster.errors import Unreachable
from broker.cluster.topology_changes import ForeignOwner, VhostForgotten, all_changes
from broker.core.policy.policy import Policy
from broker.core.queue.queue_arguments import QueueDeclaration
from broker.core.topology.changes import new_queue
from broker.core.vhost import Vhost
from tests.cluster.members import CALM_MS, until
from tests.cluster.proxy import Point, Proxy
from tests.cluster.topology_node import Exchange, Queue, TopologyNode, cluster_of, everywhere
from tests.deadline import DEADLINE_S
from tests.unit.core.room import put


def whole(vhost: Vhost) -> list[str]:
    """Return everything in a vhost as text, without the owners of exclusive queues."""
    owners = dict.fromkeys(vhost.queues.owners, ForeignOwner("", 0, 0))
    return sorted(json.dumps(change.to_json(), sort_keys=True) for change in all_changes(vhost, owners))


async def test_what_was_answered_holds_on_every_node(postgres_url: str, schema: str) -> None:
    """Declares, binds, unbinds and deletions are on all nodes when the client has its answer."""
    async with cluster_of("abc", postgres_url, schema) as nodes:
        here, there = nodes[0], nodes[1:]
        client = here.enter()
        assert await here.ask(client, Queue.Declare(queue="q", durable=True)) == "declared q"
        assert await here.ask(client, Exchange.Declare(exchange="x", exchange_type="topic")) == "Exchange.DeclareOk"
        assert all("q" in node.room.vhost.queues and "x" in node.room.vhost.exchanges for node in there)
        assert await here.ask(client, Queue.Bind(queue="q", exchange="x", routing_key="a.*")) == "Queue.BindOk"
        assert all(node.room.vhost.exchanges["x"].binding_count == 1 for node in there)
        assert {node.room.vhost.queues["q"].number for node in nodes} == {1}
        assert {node.room.vhost.queues["q"].durable for node in nodes} == {True}
        assert {node.room.vhost.exchanges["x"].durable for node in nodes} == {False}
        assert await here.ask(client, Queue.Unbind(queue="q", exchange="x", routing_key="a.*")) == "Queue.UnbindOk"
        assert all(node.room.vhost.exchanges["x"].binding_count == 0 for node in there)
        put(here.room.vhost.queues["q"], 3)
        assert await here.ask(client, Queue.Delete(queue="q")) == "deleted 3"
        assert await here.ask(client, Exchange.Delete(exchange="x")) == "Exchange.DeleteOk"
        assert all("q" not in node.room.vhost.queues and "x" not in node.room.vhost.exchanges for node in nodes)


async def test_conflicts_get_the_codes_of_rabbitmq(postgres_url: str, schema: str) -> None:
    """A queue that another node declared otherwise, keeps exclusive, or deleted is refused as on a single broker."""
    async with cluster_of("ab", postgres_url, schema) as (one, other):
        first, second = one.enter(), other.enter()
        await asyncio.gather(
            one.ask(first, Queue.Declare(queue="q", durable=True)),
            other.ask(second, Queue.Declare(queue="r", auto_delete=True)),
        )
        answer = await other.ask(second, Queue.Declare(queue="q"))
        assert answer.startswith("channel 406 PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q'"), answer
        assert await one.ask(first, Queue.Declare(queue="mine", exclusive=True)) == "declared mine"
        third = other.enter()
        answer = await other.ask(third, Queue.Declare(queue="mine", exclusive=True))
        assert answer.startswith("channel 405 RESOURCE_LOCKED"), answer
        assert await one.ask(first, Queue.Delete(queue="q")) == "deleted 0"
        answer = await other.ask(other.enter(), Queue.Bind(queue="q", exchange="amq.direct", routing_key="k"))
        assert answer.startswith("channel 404 NOT_FOUND - no queue 'q'"), answer


async def test_of_two_declarations_at_a_time_one_is_refused(postgres_url: str, schema: str) -> None:
    """Whichever comes first in the log holds on both nodes; the other client gets 406."""
    async with cluster_of("ab", postgres_url, schema) as nodes:
        for place in range(10):
            methods = [Queue.Declare(queue=f"q{place}", durable=durable) for durable in (True, False)]
            answers = await asyncio.gather(
                *(node.ask(node.enter(), method) for node, method in zip(nodes, methods, strict=True))
            )
            found = {node.room.vhost.queues[f"q{place}"].durable for node in nodes}
            assert len(found) == 1
            assert answers[not found.pop()] == f"declared q{place}"
            assert sum(answer.startswith("channel 406") for answer in answers) == 1


async def test_declarations_in_one_turn_get_one_version(postgres_url: str, schema: str) -> None:
    """Declares of many connections in one turn are sent in one append."""
    async with cluster_of("ab", postgres_url, schema) as (one, other):
        clients = [one.enter() for _ in range(20)]
        before = one.topology.log.applied
        methods = [Queue.Declare(queue=f"q{place}") for place in range(20)]
        await asyncio.gather(*(one.ask(client, method) for client, method in zip(clients, methods, strict=True)))
        assert one.topology.log.applied == before + 1
        assert len(other.room.vhost.queues) == 20


async def test_declares_and_binds_of_one_connection_travel_together(postgres_url: str, schema: str) -> None:
    """Pipelined methods are one append, and are answered in their order; what needs an earlier one follows it."""
    async with cluster_of("ab", postgres_url, schema) as (one, other):
        client = one.enter()
        before = one.topology.log.applied
        declares = [Queue.Declare(queue=f"q{place}") for place in range(5)]
        assert await one.ask_all(client, [*declares]) == [f"declared q{place}" for place in range(5)]
        assert one.topology.log.applied == before + 1
        binds = [Queue.Bind(queue=f"q{place}", exchange="amq.topic", routing_key="k") for place in range(5)]
        assert await one.ask_all(client, [*declares, *binds]) == [
            *(f"declared q{place}" for place in range(5)),
            *["Queue.BindOk"] * 5,
        ]
        assert one.topology.log.applied == before + 2
        bind = Queue.Bind(queue="r", exchange="amq.topic", routing_key="k")
        answers = await one.ask_all(client, [Queue.Declare(queue="r"), bind])
        assert answers == ["declared r", "Queue.BindOk"]
        answers = await one.ask_all(client, [Queue.Declare(queue="s"), Queue.Declare(queue="r", durable=True)])
        assert answers[0] == "declared s"
        assert answers[1].startswith("channel 406 PRECONDITION_FAILED - inequivalent arg 'durable'")
        assert len(other.room.vhost.queues) == 7


async def test_what_follows_a_change_without_effect_is_not_applied(postgres_url: str, schema: str) -> None:
    """No change of pipelined methods is applied after one that another node made impossible."""
    async with cluster_of("ab", postgres_url, schema) as (one, other):
        await other.ask(other.enter(), Queue.Declare(queue="taken"))
        proposed = [
            one.topology.named("/", new_queue(QueueDeclaration(name, 0)), durable=True, owner=None)
            for name in ("first", "taken", "last")
        ]
        done = asyncio.Event()
        one.topology.propose(proposed, done.set)
        await done.wait()
        assert [sorted(node.room.vhost.queues) for node in (one, other)] == [["first", "taken"]] * 2
        assert await other.ask(other.enter(), Queue.Declare(queue="last")) == "declared last"


async def test_a_server_named_queue_has_one_name(postgres_url: str, schema: str) -> None:
    """The name is that of the first run of the declaration."""
    async with cluster_of("ab", postgres_url, schema) as (one, other):
        client = one.enter()
        names = [await one.ask(client, Queue.Declare(exclusive=True)) for _ in range(2)]
        assert len(set(names)) == 2
        assert [f"declared {name}" for name in other.room.vhost.queues] == names


async def test_exclusive_queues_end_with_their_connection(postgres_url: str, schema: str) -> None:
    """The end of a connection deletes its queues on all nodes, also one whose declaration was under way."""
    async with cluster_of("ab", postgres_url, schema) as (one, other):
        client = one.enter()
        await one.ask(client, Queue.Declare(queue="mine", exclusive=True))
        other.may_flush.clear()
        client.tell(1, Queue.Declare(queue="late", exclusive=True))
        await everywhere([one, other], lambda node: "late" in node.room.vhost.queues)
        client.tell(1, Queue.Declare(queue="later", exclusive=True))
        client.machine.lost()
        other.may_flush.set()
        await everywhere([one, other], lambda node: not node.room.vhost.queues)


@pytest.mark.parametrize("end", ["close-ok", "lost", "forced"])
async def test_close_ok_waits_for_the_end_of_exclusive_queues(postgres_url: str, schema: str, end: str) -> None:
    """A close is answered when every member has deleted the queues, unless the connection ends otherwise before."""
    async with cluster_of("ab", postgres_url, schema, lease_ms=3000) as (one, other):
        client = one.enter()
        await one.ask(client, Queue.Declare(queue="mine", exclusive=True))
        await one.ask(client, Queue.Declare(queue="my other", exclusive=True))
        other.may_flush.clear()
        assert client.tell(0, commands.Connection.Close(200, "", 0, 0)) == []
        await everywhere([one, other], lambda node: not node.room.vhost.queues)
        assert not client.machine.finished
        if end == "lost":
            client.machine.lost()
        elif end == "forced":
            client.session.force_close("maintenance")
        other.may_flush.set()
        answers: list[str] = []

        def ended() -> bool:
            answers.extend(method.name for _, method in client.replies())
            return client.machine.finished or end == "forced"

        await until(ended)
        await everywhere([one, other], _has_reported)
        if end == "forced":
            client.tell(0, commands.Connection.CloseOk())
        assert client.machine.finished
        assert answers == {"close-ok": ["Connection.CloseOk"], "lost": [], "forced": ["Connection.Close"]}[end]


async def test_an_answer_waits_for_every_member(postgres_url: str, schema: str) -> None:
    """No answer before the batches that another node routed before are committed, nor before the own ones are."""
    async with cluster_of("ab", postgres_url, schema, lease_ms=3000) as nodes:
        client = nodes[0].enter()
        for slow in nodes:
            name = f"slow {slow.name}"
            slow.may_flush.clear()
            flushes = slow.flushes
            assert client.tell(1, Queue.Declare(queue=name)) == []
            await everywhere(nodes, partial(_has, name))
            await until(partial(_flushes, slow, flushes))
            others = [node for node in nodes if node is not slow]
            await everywhere(others, _has_reported)
            await until(partial(_has_heard, nodes[0], [node for node in others if node is not nodes[0]]))
            assert list(client.replies()) == []
            slow.may_flush.set()
            await until(lambda: list(client.replies()))


def _has(name: str, node: TopologyNode) -> bool:
    return name in node.room.vhost.queues


def _flushes(node: TopologyNode, before: int) -> bool:
    return node.flushes > before


def _has_heard(node: TopologyNode, others: list[TopologyNode]) -> bool:
    """Return whether a node knows that others have reported what they applied."""
    heard = node.topology.log.barrier._applied
    return all(heard.get(other.node.epoch, -1) == other.topology.log.applied for other in others)


def _has_reported(node: TopologyNode) -> bool:
    return node.topology.log.reported == node.topology.log.applied


async def test_a_dead_node_is_not_waited_for_and_its_exclusive_queues_go(postgres_url: str, schema: str) -> None:
    """An answer waits until the dead node is counted out; then its exclusive queues are deleted."""
    async with cluster_of("abc", postgres_url, schema) as (one, two, dead):
        await dead.ask(dead.enter(), Queue.Declare(queue="theirs", exclusive=True))
        await dead.kill()
        client = one.enter()
        assert client.tell(1, Queue.Declare(queue="q")) == []
        await until(lambda: list(client.replies()))
        assert dead.node.epoch not in {row["epoch"] for row in await one.database.function("read", "applied")}
        await everywhere([one, two], lambda node: list(node.room.vhost.queues) == ["q"])


async def test_a_node_joins_at_the_newest_version(postgres_url: str, schema: str) -> None:
    """A node that joins has everything before it acts, from a snapshot and the changes after it."""
    async with cluster_of("a", postgres_url, schema) as (one,):
        client = one.enter()
        arguments: dict[str, Any] = {"x-delayed-type": "direct"}
        delayed = Exchange.Declare(exchange="x", exchange_type="x-delayed-message", arguments=arguments)
        await one.ask(client, Queue.Declare(queue="q", durable=True, arguments={"x-max-priority": 5}))
        await one.ask(client, Queue.Bind(queue="q", exchange="amq.topic", routing_key="a.#"))
        await one.ask(client, delayed)
        one.topology.log._take_snapshot()
        assert one.topology.log._snapshot is not None
        await one.topology.log._snapshot
        assert await one.database.function("read", "changes_since", 2) != []
        await one.ask(client, Queue.Declare(queue="mine", exclusive=True))
        async with cluster_of("b", postgres_url, schema) as (other,):
            (row, *_) = await other.database.function("read", "changes_since", 0)
            assert row["snapshot"], "the changes before the snapshot were removed"
            assert whole(other.room.vhost) == whole(one.room.vhost)
            answer = await other.ask(other.enter(), Queue.Delete(queue="mine"))
            assert answer.startswith("channel 405")


async def test_a_vhost_that_opens_later_has_what_was_declared_before(postgres_url: str, schema: str) -> None:
    """Changes of a vhost that a node has not opened yet wait for it; a vhost that was deleted comes back empty."""
    async with cluster_of("ab", postgres_url, schema) as (one, other):
        room = one.open_vhost("v")
        assert await one.ask(one.enter(room), Queue.Declare(queue="q")) == "declared q"
        assert list(other.open_vhost("v").vhost.queues) == ["q"]
        one.topology.closed("v")
        done = asyncio.Event()
        one.topology.log.propose([VhostForgotten(vhost="v")], done.set)
        await done.wait()
        other.topology.closed("v")
        assert [list(node.open_vhost("v").vhost.queues) for node in (one, other)] == [[], []]


async def test_a_lost_node_starts_afresh(postgres_url: str, schema: str) -> None:
    """A node that was counted out has, when it is back, what the others decided meanwhile."""
    async with cluster_of("ab", postgres_url, schema) as (one, other):
        client = one.enter()
        await other.ask(other.enter(), Queue.Declare(queue="theirs", exclusive=True))
        await one.ask(client, Queue.Declare(queue="old"))
        epoch = other.node.epoch
        counted_out = False
        while not counted_out:  # its beats may go on between the two statements
            (member,) = (found for found in await one.database.members() if found.node == "b")
            counted_out = await one.database.count_out(member)
        await one.ask(client, Queue.Delete(queue="old"))
        await one.ask(client, Queue.Declare(queue="new"))
        await until(lambda: other.node.epoch != epoch and other.node.may_act())
        await everywhere([one, other], lambda node: list(node.room.vhost.queues) == ["new"])
        assert await other.ask(other.enter(), Queue.Declare(queue="again")) == "declared again"


async def test_rows_of_deleted_queues_are_swept(postgres_url: str, schema: str) -> None:
    """Once all nodes have applied the deletion, no level of the queue has limits or messages.

    A node on which the vhost is offline leaves the limits of others as they are.
    """
    async with cluster_of("ab", postgres_url, schema) as (one, other):
        client = one.enter()
        arguments: dict[str, Any] = {"x-max-priority": 2, "x-max-length": 3}
        await one.ask(client, Queue.Declare(queue="q", arguments=arguments))
        await one.ask(client, Queue.Declare(queue="other", arguments={"x-max-length": 9}))
        rows = f"SELECT level, max_length, counter FROM {schema}.level ORDER BY level"
        connection = await asyncpg.connect(postgres_url)
        try:
            found = [tuple(row) for row in await connection.fetch(rows)]
            assert found == [(1, 3, 1), (2, 3, 1), (3, 3, 1), (4, 9, 4)]
            await other.ask(other.enter(), Queue.Delete(queue="q"))
            async with asyncio.timeout(DEADLINE_S):
                while len(await connection.fetch(rows)) > 1:
                    await one.topology.log.sweep()
            assert [tuple(row) for row in await connection.fetch(rows)] == [(4, 9, 4)]
            one.room.vhost.policies.set(Policy("p", ".*", "queues", {"max-length": 5}))
            await one.topology.replace_limits("/")
            assert [tuple(row) for row in await connection.fetch(rows)] == [(4, 5, 4)]
            other.topology.closed("/")
            with pytest.raises(Unreachable, match="not open here"):
                await other.topology.replace_limits("/")
            assert [tuple(row) for row in await connection.fetch(rows)] == [(4, 5, 4)]
        finally:
            await connection.close()


async def test_an_unused_queue_goes_unless_it_has_consumers_elsewhere(postgres_url: str, schema: str) -> None:
    """The log leaves out the deletion of a queue that a node consumes from."""
    async with cluster_of("ab", postgres_url, schema) as (one, other):
        for name in ("kept", "gone"):
            await one.ask(one.enter(), Queue.Declare(queue=name, auto_delete=True))
        queues = one.room.vhost.queues
        connection = await asyncpg.connect(postgres_url)
        try:
            await connection.execute(
                f"INSERT INTO {schema}.consumer (level, node, epoch, count, since) VALUES ($1, 'b', $2, 1, 1)",
                queues["kept"].number,
                other.node.epoch,
            )
        finally:
            await connection.close()
        for name in ("kept", "gone"):
            queues.unused(queues[name])
        await everywhere([one, other], lambda node: list(node.room.vhost.queues) == ["kept"])


async def test_what_is_not_durable_ends_with_the_last_node(postgres_url: str, schema: str) -> None:
    """The first node of a cluster that starts again finds durable queues alone."""
    async with cluster_of("ab", postgres_url, schema) as (one, _other):
        client = one.enter()
        await one.ask(client, Queue.Declare(queue="durable", durable=True))
        await one.ask(client, Queue.Declare(queue="transient"))
        room = one.open_vhost("v")
        await one.ask(one.enter(room), Queue.Declare(queue="durable", durable=True))
        await one.ask(one.enter(room), Queue.Declare(queue="transient"))
    async with cluster_of("a", postgres_url, schema) as (one,):
        await until(lambda: list(one.room.vhost.queues) == ["durable"])
        await one.ask(one.enter(), Queue.Declare(queue="new"))
        assert list(one.open_vhost("v").vhost.queues) == ["durable"]


@pytest.mark.parametrize("point", Point)
async def test_an_append_whose_answer_was_lost_is_applied_once(postgres_url: str, schema: str, point: Point) -> None:
    """A node that does not know whether its append was committed sends it again, and it has one version."""
    with Proxy(postgres_url) as proxy:
        calm = {"lease_ms": CALM_MS}  # nobody is counted out for connecting again late
        async with (
            cluster_of("b", postgres_url, schema, **calm) as (other,),
            cluster_of("a", proxy.url, schema, **calm) as (one,),
        ):
            client = one.enter()
            assert await one.ask(client, Queue.Declare(queue="before")) == "declared before"
            trap = proxy.trap(r"\bappend\(", point)
            assert await one.ask(client, Queue.Declare(queue="q")) == "declared q"
            assert trap.sprung.is_set()
            assert one.topology.log.applied == other.topology.log.applied == 2
            assert list(other.room.vhost.queues) == ["before", "q"]
