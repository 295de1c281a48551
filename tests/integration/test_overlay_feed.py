"""The interest feed, with real clients: what someone wants, on the first and the last who does."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from aiormq.exceptions import ChannelAccessRefused

from broker.overlay_node.vhost_overlay import AT_ONCE, VhostOverlay
from broker.testing import Broker
from tests.deadline import wait_until_async
from tests.in_process import timed_broker
from tests.overlay_vhosts import overlay_of
from tests.tap_files import channel_of, publish

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "quiet_publisher.py"


async def heard(broker: Broker, queue: Any) -> list[tuple[str, str]]:
    """Take all messages of a queue of the feed; return the exchange and the body of each."""
    await broker.idle()
    found = []
    while (message := await queue.get(no_ack=True, fail=False)) is not None:
        assert message.headers == {"vhost": "/", "exchange": message.routing_key}
        assert message.exchange == "amq.slotmq.interest"
        found.append((message.routing_key, message.body.decode()))
    return found


async def feed_queue(channel: Any, key: str = "#") -> Any:
    """Return a queue that is bound to the feed."""
    queue = await channel.declare_queue("", exclusive=True)
    await queue.bind("amq.slotmq.interest", key)
    return queue


def turn(overlay: VhostOverlay) -> None:
    """Take what the bindings want, as each turn of the overlay does."""
    while overlay.bindings.busy:
        overlay.take_bindings()


async def test_local_and_remote_interest_is_told_on_the_first_and_the_last(tmp_path: Path) -> None:
    """Equal patterns of several bindings and of another broker count as one."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        overlay = overlay_of(broker)
        feed = await feed_queue(channel)
        for name in ("x", "y"):
            await channel.declare_exchange(name, "topic", durable=True)
        queues = [await channel.declare_queue(f"q{number}") for number in range(2)]
        for queue in queues:
            await queue.bind("x", "a.*")
            await queue.bind("y", "b")
        turn(overlay)
        overlay.forward("x", ["a.*", "c"], ())
        assert await heard(broker, feed) == [("x", "1a.*"), ("y", "1b"), ("x", "1c")]
        await queues[0].unbind("x", "a.*")
        await queues[0].unbind("y", "b")
        turn(overlay)
        overlay.forward("x", (), ["c"])
        await queues[1].delete()
        turn(overlay)
        assert await heard(broker, feed) == [("x", "0c"), ("y", "0b")]
        overlay.forward("x", ["d"], ["a.*"])
        assert await heard(broker, feed) == [("x", "1d"), ("x", "0a.*")]


async def test_a_new_binding_gets_all_that_is_wanted_first(tmp_path: Path) -> None:
    """The key chooses exchanges; many patterns come in several turns, and changes meanwhile are told truly."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        overlay = overlay_of(broker)
        for name in ("x.1", "x.2", "y"):
            await channel.declare_exchange(name, "topic", durable=True)
            overlay.forward(name, [f"p.{number}" for number in range(2)], ())
        feed = await feed_queue(channel, "x.*")
        assert sorted(await heard(broker, feed)) == [(name, f"1p.{n}") for name in ("x.1", "x.2") for n in range(2)]
        many = [f"m.{number:04}" for number in range(3 * AT_ONCE)]
        overlay.forward("y", many, ())
        vhost = broker.server.vhosts["/"]
        vhost.queues.declare("late", durable=True)
        vhost.bindings.bind("late", "amq.slotmq.interest", "y")
        overlay.forward("y", ["new"], many[-2:])  # before the snapshot has come that far
        late = await channel.get_queue("late")
        wanted: dict[str, str] = {}
        told = await heard(broker, late)
        for _, body in told:
            wanted[body[1:]] = body[0]
        assert {pattern for pattern, sign in wanted.items() if sign == "1"} == {"p.0", "p.1", "new", *many[:-2]}
        assert len(told) == len(many) + 3  # 2 more, less those 2, and 2 that are not wanted any more, and one new


async def test_feed_is_the_brokers_own(tmp_path: Path) -> None:
    """Clients may bind and not publish or delete; it is not counted, and not there without an overlay."""
    async with timed_broker(tmp_path, limits={"exchanges_max": 1}) as broker, channel_of(broker) as channel:
        assert "amq.slotmq.interest" not in broker.exchanges()
        overlay_of(broker)
        await channel.declare_exchange("x", "topic", durable=True)
        assert broker.server.vhosts["/"].exchanges.declared_count == 1
        feed = await channel.get_exchange("amq.slotmq.interest")
        with pytest.raises(ChannelAccessRefused, match="internal"):
            await publish(feed, ["x"])


async def test_the_example_publishes_only_what_somebody_wants(tmp_path: Path) -> None:
    """Silent at first, then the prices that a queue is bound to, then silent again."""
    async with timed_broker(tmp_path) as broker, channel_of(broker) as channel:
        overlay = overlay_of(broker)
        program = await asyncio.create_subprocess_exec(
            sys.executable, str(EXAMPLE), broker.url, stdout=asyncio.subprocess.PIPE
        )
        assert program.stdout is not None
        try:

            async def fed() -> bool:
                exchange = broker.server.vhosts["/"].exchanges["amq.slotmq.interest"]
                return exchange.binding_count == 1 and "stocks" in broker.exchanges()

            await wait_until_async(fed, "the binding of the example")
            queue = await channel.declare_queue("q", durable=True)
            await queue.bind("stocks", "stock.nyse.*")
            turn(overlay)
            assert await program.stdout.readline() == b"wanted stock.nyse.*\n"
            await wait_until_async(lambda: broker.queue("q").ready >= 4, "four prices")
            await queue.unbind("stocks", "stock.nyse.*")
            turn(overlay)
            assert await program.stdout.readline() == b"not wanted any more stock.nyse.*\n"
            keys = {one.routing_key for one in broker.published if one.exchange == "stocks"}
            assert keys == {"stock.nyse.ibm", "stock.nyse.ge"}
        finally:
            program.kill()
            await program.wait()
