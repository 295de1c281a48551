"""The bindings of real clients, announced to the overlay in batches."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import aio_pika
import pytest

from broker.overlay_node.binding_interest import BATCH_BINDINGS
from broker.overlay_node.vhost_overlay import VhostOverlay
from broker.testing import Broker
from tests.deadline import wait_until_async
from tests.in_process import timed_broker
from tests.overlay_vhosts import crashed, overlay_of
from tests.tap_files import channel_of


class Leaf:
    """Keeps what it was told: conjunctions by the ids of bindings."""

    def __init__(self, overlay: VhostOverlay) -> None:
        self.overlay = overlay
        self.wants: dict[str, tuple[str, str, bool]] = {}

    def told(self) -> tuple[list[tuple[str, str, bool]], int]:
        """Take everything; return exchange, pattern and durable flag of what is new, and how many are gone."""
        came, went = [], 0
        while self.overlay.bindings.busy:
            added, removed = self.overlay.take_bindings()
            for one in removed:
                del self.wants[one]
            for one, asked, durable in added:
                self.wants[one] = asked.space.exchange, asked.pattern, durable
                came.append(self.wants[one])
            went += len(removed)
        return sorted(came), went

    @property
    def all(self) -> list[tuple[str, str, bool]]:
        """Everything that is wanted now."""
        return sorted(self.wants.values())


async def settled(broker: Broker, leaf: Leaf, expected: Iterable[tuple[str, str, bool]]) -> None:
    """Return when exactly this is wanted, after a connection ended."""

    async def reached() -> bool:
        await broker.idle()
        leaf.told()
        return leaf.all == sorted(expected)

    await wait_until_async(reached, "what is wanted without the connection")


@pytest.mark.parametrize(
    ("type", "arguments", "keys", "patterns"),
    [
        ("topic", {}, ["a.#.*", "a.*.#", "b"], ["a.*.#", "a.*.#", "b"]),
        ("topic", {"x-topic-dialect": "mqtt"}, ["a/+"], ["#"]),
        ("direct", {}, ["a.b", "a.*", "#", ""], ["", "#", "#", "a.b"]),
        ("fanout", {}, ["a", ""], ["#", "#"]),
        ("headers", {}, ["a"], ["#"]),
        ("x-consistent-hash", {}, ["1"], ["#"]),
        ("x-delayed-message", {"x-delayed-type": "topic"}, ["a.*"], ["a.*"]),
        ("x-delayed-message", {"x-delayed-type": "direct"}, ["a"], ["a"]),
    ],
)
async def test_each_type_says_what_its_keys_say(
    tmp_path: Path, type: str, arguments: dict[str, Any], keys: list[str], patterns: list[str]
) -> None:
    """Topic and direct exchanges ask by key, all others for everything."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        leaf = Leaf(overlay_of(broker))
        await channel.declare_exchange("x", type, durable=True, arguments=arguments)
        queue = await channel.declare_queue("q", durable=True)
        for key in keys:
            await queue.bind("x", key)
            await queue.bind("x", key)
        assert leaf.told() == ([("x", pattern, True) for pattern in patterns], 0)
        for key in keys:
            await queue.unbind("x", key)
        assert leaf.told() == ([], len(keys))


async def test_only_exchanges_of_the_overlay_count_and_those_that_lead_on_do(tmp_path: Path) -> None:
    """Bindings to exchanges count as those to queues; the durable flag needs both ends."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        leaf = Leaf(overlay_of(broker, "o*"))
        for name, durable in (("o1", True), ("o2", False), ("local", True)):
            await channel.declare_exchange(name, "topic", durable=durable)
        queue = await channel.declare_queue("q", durable=True)
        passing = await channel.declare_queue("t")
        await queue.bind("amq.topic", "no")
        await queue.bind("local", "no")
        await queue.bind("o1", "a")
        await queue.bind("o2", "b")
        await passing.bind("o1", "c")
        await (await channel.get_exchange("local")).bind("o1", "d")
        await (await channel.get_exchange("o2")).bind("local", "no")
        expected = [("o1", "a", True), ("o1", "c", False), ("o1", "d", True), ("o2", "b", False)]
        assert leaf.told() == (expected, 0)
        await channel.exchange_delete("local")
        assert leaf.told() == ([], 1)
        await channel.exchange_delete("o1")
        assert leaf.told() == ([], 2)
        await queue.delete()
        assert leaf.all == [("o2", "b", False)]
        assert leaf.told() == ([], 1)


async def test_what_ends_by_itself_is_withdrawn(tmp_path: Path) -> None:
    """Exclusive queues of a dying connection, auto-delete queues and exchanges, and expired queues."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        leaf = Leaf(overlay_of(broker))
        await channel.declare_exchange("x", "topic", durable=True)
        await (await channel.declare_queue("stays", durable=True)).bind("x", "stays")
        connection = await aio_pika.connect(broker.url)
        other = await connection.channel()
        await (await other.declare_queue("mine", exclusive=True)).bind("x", "exclusive")
        gone = await other.declare_queue("consumed", auto_delete=True)
        await gone.bind("x", "consumed")
        await gone.consume(AsyncMock())
        await other.declare_exchange("passing", "fanout", auto_delete=True)
        await (await other.get_exchange("passing")).bind("x", "passing")
        await (await other.get_queue("mine")).bind("passing", "fan")
        await (await other.declare_queue("old", arguments={"x-expires": 1000})).bind("x", "expires")
        assert [wanted[1] for wanted in leaf.told()[0]] == ["#", "consumed", "exclusive", "expires", "passing", "stays"]
        await connection.close()
        broker.clock.advance(0)
        await settled(broker, leaf, [("x", "expires", False), ("x", "stays", True)])
        broker.clock.advance(2)
        await settled(broker, leaf, [("x", "stays", True)])


async def test_a_batch_says_what_came_of_many_changes(tmp_path: Path) -> None:
    """A binding that was made and removed is not told; one that was removed and made again is another one."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        leaf = Leaf(overlay_of(broker))
        await channel.declare_exchange("x", "topic", durable=True)
        queue = await channel.declare_queue("q", durable=True)
        await queue.bind("x", "a")
        await queue.bind("x", "b")
        await queue.unbind("x", "b")
        assert leaf.told() == ([("x", "a", True)], 0)
        await queue.unbind("x", "a")
        await queue.bind("x", "a")
        assert leaf.told() == ([("x", "a", True)], 1)
        await queue.delete()
        await (await channel.declare_queue("q", durable=True)).bind("x", "a")
        assert leaf.told() == ([("x", "a", True)], 1)
        await channel.exchange_delete("x")
        await channel.declare_exchange("x", "fanout", durable=True)
        await (await channel.get_queue("q")).bind("x", "a")
        assert leaf.told() == ([("x", "#", True)], 1)


async def test_ids_of_durable_bindings_stay_over_a_restart(tmp_path: Path) -> None:
    """The first batch after kill -9 has the durable bindings under the ids that they had."""
    async with timed_broker(tmp_path / "d") as broker, channel_of(broker) as channel:
        leaf = Leaf(overlay_of(broker))
        await channel.declare_exchange("x", "headers", durable=True)
        queue = await channel.declare_queue("q", durable=True)
        for number in range(3):
            await queue.bind("x", "k", arguments={"n": number, "x-match": "any"})
        await (await channel.declare_queue("t")).bind("x", "k")
        leaf.told()
        durable = {one: wanted for one, wanted in leaf.wants.items() if wanted[2]}
        assert len(durable) == 3
        await broker.server.vhosts.drain()
        async with crashed(broker, tmp_path) as again:
            found = Leaf(overlay_of(again))
            found.told()
            assert found.wants == durable


async def test_very_many_bindings_are_told_in_bounded_batches(tmp_path: Path) -> None:
    """A queue with thousands of bindings comes and goes batch by batch, in order with what follows."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        leaf = Leaf(overlay_of(broker))
        await channel.declare_exchange("x", "topic", durable=True)
        vhost = broker.server.vhosts["/"]
        vhost.queues.declare("q", durable=True)
        count = 2 * BATCH_BINDINGS + 1
        for number in range(count):
            vhost.bindings.bind("q", "x", f"k.{number}")
        added, _ = leaf.overlay.take_bindings()
        assert len(added) == BATCH_BINDINGS
        vhost.queues.delete("q", None)
        vhost.queues.declare("q", durable=True)
        vhost.bindings.bind("q", "x", "k.0")
        leaf.wants = {one: (asked.space.exchange, asked.pattern, durable) for one, asked, durable in added}
        leaf.told()
        assert leaf.all == [("x", "k.0", True)]
        await broker.idle()
