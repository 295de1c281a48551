"""One-way links between real brokers: patterns do not travel, every message does, and the receiver filters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.overlay.link_packets import LinkPackets, at_rest, interested
from tests.overlay.sites import Site, declared, free_port, held_by, overlay, pair, reached, sites, wanted
from tests.tap_files import channel_of, publish


@pytest.mark.parametrize("aggregation", ["covering", "none"])
async def test_every_message_crosses_and_the_receiver_filters(
    tmp_path: Path, aggregation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other site hears that everything is wanted, once; further bindings move no byte and count at once."""
    async with sites(tmp_path, pair(one_way=True, aggregation=aggregation)) as (pb, sb):
        heard = LinkPackets(pb, monkeypatch)
        async with channel_of(pb) as channel, channel_of(sb) as other:
            exchange = await declared(channel, other)
            queue = await other.declare_queue("q", durable=True)
            await queue.bind("x", "a.*")
            await reached(lambda: wanted(pb, "site-b") == ["#"], "the first binding")
            before = await at_rest(pb, sb)
            await queue.bind("x", "b.*")
            await (await other.declare_queue("r", durable=True)).bind("x", "a.*")
            await queue.unbind("x", "a.*")
            assert await at_rest(pb, sb) == before
            await publish(exchange, [f"{'abc'[number % 3]}.{number}" for number in range(90)])
            await reached(lambda: sb.queue("q").ready == 30, "what the queue wants")
            await reached(lambda: sb.queue("r").ready == 30, "what the other queue wants")
            found = [(await queue.get(no_ack=True)).routing_key for _ in range(30)]
            assert found == [f"b.{number}" for number in range(1, 90, 3)]
            await at_rest(pb, sb)
            driver = held_by(sb).driver
            assert driver is not None
            assert driver.delivered == 90
            await queue.unbind("x", "b.*")
            await (await other.get_queue("r")).unbind("x", "a.*")
            await reached(lambda: wanted(pb, "site-b") == [], "the end of the last binding")
            assert await publish(exchange, ["a.1"], mandatory=True) == [312]
        assert heard.patterns == [({"#"}, set()), (set(), {"#"})]


async def test_a_one_way_link_in_a_tree_floods_itself_alone(tmp_path: Path) -> None:
    """Brokers before the link get everything because of it; those beside it are filtered as always."""
    ports = [free_port() for _ in range(3)]
    middle = (
        overlay(
            "m", "middle", ("site-a", "a", ports[0]), ("site-c", "c", ports[2]), ("site-m", "l", 0), one_way=["site-c"]
        ),
        overlay("l", "site-m", ("middle", "m", 0), leaf=True),
    )
    chain = (
        Site(ports[0], overlay("a", "site-a", ("middle", "m", 0), leaf=True)),
        Site(ports[1], *middle),
        Site(ports[2], overlay("c", "site-c", ("middle", "m", 0), leaf=True, one_way=["middle"])),
    )
    async with sites(tmp_path, chain) as (a, m, c), channel_of(a) as channel:
        exchange = await channel.declare_exchange("x", "direct", durable=True)
        for broker, key in ((m, "m"), (c, "c")):
            async with channel_of(broker) as other:
                await other.declare_exchange("x", "direct", durable=True)
                await (await other.declare_queue("q", durable=True)).bind("x", key)
        await reached(lambda: interested(a, "middle") == {"c", "l"}, "both sites")
        await at_rest(a, m, c)
        await reached(lambda: wanted(a, "middle") == ["#"], "what the middle wants")
        await reached(lambda: wanted(c, "middle") == ["#"], "what the middle wants")
        await reached(lambda: wanted(m, "middle") == ["#"], "what the middle wants")
        await publish(exchange, ["m", "c", "none"] * 20)
        await reached(lambda: [one.queue("q").ready for one in (m, c)] == [20, 20], "each site's share")
        await at_rest(a, m, c)
        drivers = [held_by(one).driver for one in (m, c)]
        assert [driver.delivered for driver in drivers if driver is not None] == [20, 60]
