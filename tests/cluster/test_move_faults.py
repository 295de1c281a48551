"""A move whose node, or whose connection to PostgreSQL, ends in the middle: each message is in one place, once."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import aio_pika
import pytest

from broker.amqp.errors import BrokerError
from broker.cli.control_client import Unanswered, ask
from broker.core.moving.move import Move
from broker.core.moving.placement import to_queue
from tests.cluster.members import counts_of
from tests.cluster.test_operator_messages import fill, numbered
from tests.cluster.two_nodes import Nodes
from tests.deadline import wait_until, wait_until_async
from tests.in_process import client_of, running_broker
from tools.postgres_server import PostgresServer

pytestmark = [pytest.mark.fault, pytest.mark.slow]

MESSAGES = 6000
TARGETS = ("first", "second")
SEEDS = pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.torture) for seed in (1, 2))])


class Order(threading.Thread):
    """An operator who moves all messages by one node."""

    def __init__(self, nodes: Nodes, name: str) -> None:
        super().__init__(daemon=True)
        self._folder = nodes.by_name[name].folder
        self.moved = 0
        self.answer: Any = None
        self.reason = ""

    def run(self) -> None:
        """Ask for the move."""
        try:
            self.answer = ask(self._folder, "move", queue="source", to="amq.fanout", on_progress=self._hear)
            self.moved = self.answer["moved"]
        except Unanswered as error:
            self.reason = str(error)

    def _hear(self, so_far: Any) -> None:
        self.moved = so_far["moved"]


def prepare(nodes: Nodes) -> None:
    """Fill the source, and bind the targets."""
    fill(nodes, "b", "source", *numbered(MESSAGES))
    channel = nodes.channel("b")
    for name in TARGETS:
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, "amq.fanout")


def judge(nodes: Nodes, at_least: int) -> int:
    """Assert that each message is in the source or in both targets, once, and return how many have moved."""

    def is_whole() -> bool:
        rows: dict[str, int] = {
            row["name"]: row["messages_ready"] for row in ask(nodes.by_name["b"].folder, "list_queues")
        }
        return sum(rows[name] for name in ("source", TARGETS[0])) >= MESSAGES

    wait_until(is_whole, "all messages are free again")
    source, first, second = ([int(body) for body in nodes.contents("b", name)] for name in ("source", *TARGETS))
    assert sorted(first) == sorted(second)
    assert sorted([*source, *first]) == list(range(MESSAGES))
    assert len(first) >= at_least, "what was said to be moved was not"
    return len(first)


def interrupted(nodes: Nodes, random: Random) -> Order:
    """Begin a move by node a, and return it at some moment in its middle."""
    order = Order(nodes, "a")
    order.start()
    enough = random.randrange(MESSAGES // 2)
    wait_until(lambda: order.moved >= enough or not order.is_alive(), f"{enough} moved")
    time.sleep(random.random() * 0.02)  # not a wait for an event: the moment of the fault
    return order


@SEEDS
def test_a_move_survives_the_death_of_its_node(nodes: Nodes, seed: int) -> None:
    """After kill -9 each message is in its old queue or in its new ones, and what was told as moved is moved."""
    prepare(nodes)
    order = interrupted(nodes, Random(seed))
    nodes.by_name["a"].kill()
    order.join(30)
    moved = judge(nodes, order.moved)
    left = ask(nodes.by_name["b"].folder, "move", queue="source", to="amq.fanout")
    assert left["moved"] == MESSAGES - moved
    assert judge(nodes, MESSAGES) == MESSAGES


def test_a_move_of_a_node_that_was_counted_out_ends(nodes: Nodes) -> None:
    """A node that was frozen moves nothing that others have taken over, and says why it stopped."""
    prepare(nodes)
    order = interrupted(nodes, Random(7))
    process = nodes.by_name["a"].running
    process.send_signal(signal.SIGSTOP)
    nodes.errors_expected("a", "node.lost")
    try:
        wait_until(lambda: len(ask(nodes.by_name["b"].folder, "cluster")["nodes"]) == 1, "a is counted out")
    finally:
        process.send_signal(signal.SIGCONT)
    order.join(30)
    assert not order.is_alive()
    judge(nodes, order.moved)


@SEEDS
def test_a_move_survives_broken_connections(shared_postgres: PostgresServer, nodes: Nodes, seed: int) -> None:
    """Whether the call that was under way was committed or not, it counts once."""
    prepare(nodes)
    random = Random(seed)
    nodes.errors_expected("a", "database.unreachable")  # a connection may end while it is being opened
    order = interrupted(nodes, random)
    for _ in range(4):
        with suppress(Exception):
            shared_postgres.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'slotmq a%'"
            )
        time.sleep(random.random() * 0.1)  # not a wait for an event: the moment of the fault
    order.join(60)
    assert not order.is_alive()
    assert nodes.by_name["a"].alive, nodes.by_name["a"].stderr()[-3000:]
    assert order.answer is not None or "cannot be reached" in order.reason, order.reason
    judge(nodes, order.moved)


async def test_a_move_does_not_go_on_in_another_epoch(tmp_path: Path, postgres_url: str, schema: str) -> None:
    """The messages that it examined belong to other nodes by then, also if the node has joined again since."""
    cluster = {"url": postgres_url, "schema_name": schema, "node": "a"}
    async with running_broker(tmp_path / "a", None, cluster=cluster) as broker, client_of(broker) as channel:
        node = broker.data.node
        assert node is not None
        await channel.declare_queue("source", durable=True)
        await channel.declare_queue("target", durable=True)
        for number in range(600):
            message = aio_pika.Message(b"%d" % number, delivery_mode=2)
            await channel.default_exchange.publish(message, "source", mandatory=False)
        queues, engine = broker.vhosts["/"].queues, broker.engines["/"]
        move = Move(engine.vhost, queues["source"], to_queue(queues["target"]), wanted=lambda _message: True)
        messages = engine.messages(queues["source"])
        await messages.move(move)
        moved, epoch = move.tally.moved, node.database.epoch
        assert 0 < moved < 600
        await node.database.leave(epoch)
        await wait_until_async(lambda: node.database.epoch > epoch and node.member.may_act(), "it has joined again")
        with pytest.raises(BrokerError, match="lost to the cluster"):
            await messages.move(move)
        rows = await counts_of(node.database, [queues[name].number for name in ("source", "target")])
        assert [messages for messages, _ in rows.values()] == [600 - moved, moved]
        assert await node.database.acting("lease", "held") == []
