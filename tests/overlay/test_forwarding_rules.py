"""The rules of subscription forwarding, counted on the links of real brokers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from broker.overlay import announcement
from broker.testing import Broker
from tests.overlay.link_packets import LinkPackets, at_rest, interested
from tests.overlay.link_steps import LinkSteps
from tests.overlay.sites import Site, X, declared, free_port, held_by, overlay, pair, reached, sites, wanted
from tests.tap_files import channel_of, publish


def star(**settings: object) -> tuple[Site, ...]:
    """Return the leaves a, b and c around the inner broker m, which dials all."""
    ports = [free_port() for _ in range(4)]
    leaves = [
        Site(port, overlay(name, f"site-{name}", ("middle", "m", 0), leaf=True), **settings)
        for name, port in zip("abc", ports[1:], strict=True)
    ]
    neighbours = [(f"site-{name}", name, port) for name, port in zip("abc", ports[1:], strict=True)]
    return (Site(ports[0], overlay("m", "middle", *neighbours), **settings), *leaves)


def wants(broker: Broker, patterns: list[str], exchange: str = "x") -> bool:
    """Return whether the node site-b wants exactly these patterns."""
    return wanted(broker, "site-b", exchange) == patterns


def has(broker: Broker, queue: str, count: int) -> bool:
    """Return whether a queue has this many messages."""
    return broker.queue(queue).ready == count


async def test_only_the_first_and_the_last_of_equal_bindings_cross_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second to the fiftieth, and one that another covers, tell when they begin, and no pattern.

    The end of all but the last moves no byte.
    """
    async with sites(tmp_path, pair()) as (pb, sb), channel_of(pb) as channel, channel_of(sb) as other:
        heard = LinkPackets(pb, monkeypatch)
        await declared(channel, other)
        queues = [await other.declare_queue(f"q{number}") for number in range(50)]
        await queues[0].bind("x", "a.*")
        await reached(lambda: wanted(pb, "site-b") == ["a.*"], "the first binding")
        first = await at_rest(pb, sb)
        for queue in queues[1:]:
            await queue.bind("x", "a.*")
        await queues[0].bind("x", "a.b")
        before = await at_rest(pb, sb)
        assert before["b", "a"] - first["b", "a"] <= 50 * 80
        assert heard.patterns == [({"a.*"}, set())]
        await queues[0].unbind("x", "a.b")
        for queue in queues[:-1]:
            await queue.unbind("x", "a.*")
        assert await at_rest(pb, sb) == before
        assert wanted(pb, "site-b") == ["a.*"]
        await queues[-1].unbind("x", "a.*")
        await reached(lambda: wanted(pb, "site-b") == [], "the end of the last binding")
        assert (await at_rest(pb, sb))["b", "a"] > before["b", "a"]


async def test_the_loss_of_a_peer_withdraws_exactly_what_it_alone_wanted(tmp_path: Path) -> None:
    """Patterns that another site also wants stay, as do those of a durable queue at a third site."""
    first, *leaves = star(withdraw_after_ms=0)
    async with AsyncExitStack() as stack:
        m = await stack.enter_async_context(first.broker(tmp_path / "m"))
        a, b = [await stack.enter_async_context(leaf.broker(tmp_path / leaf.nodes[0]["broker"])) for leaf in leaves[:2]]
        lost = AsyncExitStack()
        c = await lost.enter_async_context(leaves[2].broker(tmp_path / "c"))
        async with channel_of(a) as at_a, channel_of(b) as at_b, channel_of(c) as at_c:
            await declared(at_a, at_b, at_c)
            for channel, keys in ((at_b, ("b", "both")), (at_c, ("both", "c"))):
                queue = await channel.declare_queue("q", durable=False)
                for key in keys:
                    await queue.bind("x", key)
            await reached(lambda: wanted(a, "middle") == ["b", "both", "c"], "what both sites want")
        await lost.aclose()
        await reached(lambda: wanted(a, "middle") == ["b", "both"], "the end of the lost site's interest")
        inner = held_by(m).inners["m"]
        assert sorted(inner.interest.roots("site-b", X)) == ["b", "both"]
        assert not inner.interest.roots("site-c", X)


async def test_a_new_link_carries_all_subscriptions_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the first update of the new session, and until they are there the old ones hold."""
    async with sites(tmp_path, pair()) as (pb, sb):
        held: list[list[str]] = []
        interest = held_by(pb).interest_of("a")
        heard = LinkPackets(pb, monkeypatch, lambda: held.append(sorted(interest.roots("site-b", X))))
        async with channel_of(pb) as channel, channel_of(sb) as other:
            exchange = await declared(channel, other)
            queue = await other.declare_queue("q", durable=True)
            for key in ("a", "b.*", "c.#"):
                await queue.bind("x", key)
            await reached(lambda: wanted(pb, "site-b") == ["a", "b.*", "c.#"], "the bindings")
            await at_rest(pb, sb)
            heard.packets.clear()
            held.clear()
            session = held_by(pb).links["a", "b"].session
            held_by(sb).links["b", "a"].close("cut")
            await reached(
                lambda: ("a", "b") in held_by(pb).links and held_by(pb).links["a", "b"].session != session, "a new link"
            )
            await reached(lambda: heard.updates, "an update")
            await publish(exchange, ["a", "b.1", "c.1.2", "d"])
            await reached(lambda: sb.queue("q").ready == 3, "the messages")
        (first, *_) = heard.updates
        assert first.full
        assert {asked.pattern for asked in first.added} == {"a", "b.*", "c.#"}
        assert len(held) > 1
        assert all(patterns == ["a", "b.*", "c.#"] for patterns in held)


async def test_a_message_crosses_each_link_once_however_many_want_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty queues at each of two sites: the message is copied where the ways part, and again where the queues are."""
    async with sites(tmp_path, star()) as (m, a, b, c):
        heard = [LinkPackets(broker, monkeypatch) for broker in (m, b, c)]
        async with channel_of(a) as channel, channel_of(b) as at_b, channel_of(c) as at_c:
            exchange = await declared(channel, at_b, at_c)
            for there in (at_b, at_c):
                for number in range(20):
                    queue = await there.declare_queue(f"q{number}")
                    await queue.bind("x", "k.#")
                    await queue.bind("x", f"k.*.{number}")
                    await queue.bind("x", "*.now.#")
            await reached(lambda: interested(a, "middle") == {"b", "c"}, "both sites")
            await at_rest(m, a, b, c)
            await reached(lambda: wanted(a, "middle") == ["*.now.#", "k.#"], "the bindings")
            await publish(exchange, ["k.now.1"] * 5)
            for site in (b, c):
                for number in range(20):
                    await reached(partial(has, site, f"q{number}", 5), "each queue's copy")
            await at_rest(m, a, b, c)
        assert [one.messages(name) for one, name in zip(heard, "mbc", strict=True)] == [5, 5, 5]


@pytest.mark.interpreted("a constant of the announcement is replaced")
async def test_what_a_cover_hid_is_told_before_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts of one pattern each: at no moment does the publishing broker believe that no one wants the key."""
    monkeypatch.setattr(announcement, "PART_PATTERNS", 1)
    async with sites(tmp_path, pair()) as (pb, sb):
        interest = held_by(pb).interest_of("a")
        wants: list[bool] = []
        heard = LinkPackets(pb, monkeypatch, lambda: wants.append(interest.matches("site-b", X, "a.b")))
        async with channel_of(pb) as channel, channel_of(sb) as other:
            await declared(channel, other)
            queue = await other.declare_queue("q", durable=True)
            for key in ("a.b", "a.c", "a.#"):
                await queue.bind("x", key)
            await reached(lambda: wanted(pb, "site-b") == ["a.#"], "the cover")
            await at_rest(pb, sb)
            wants.clear()
            heard.packets.clear()
            await queue.unbind("x", "a.#")
            await reached(lambda: wanted(pb, "site-b") == ["a.b", "a.c"], "what the cover hid")
        assert all(wants)
        assert [len(update.added) + len(update.removed) for update in heard.updates[:3]] == [1, 1, 1]
        assert [update.last for update in heard.updates[:3]] == [False, False, True]


async def test_exchanges_that_filter_by_something_else_ask_for_every_message(tmp_path: Path) -> None:
    """Headers, fanout and consistent-hash: all of it crosses, and the receiving exchange decides."""
    kinds = {"x-headers": "headers", "x-fanout": "fanout", "x-hash": "x-consistent-hash"}
    async with sites(tmp_path, pair()) as (pb, sb), channel_of(pb) as channel, channel_of(sb) as other:
        exchanges = {}
        for name, kind in kinds.items():
            exchanges[name] = await channel.declare_exchange(name, kind, durable=True)
            await other.declare_exchange(name, kind, durable=True)
        red = await other.declare_queue("red", durable=True)
        await red.bind("x-headers", "", arguments={"x-match": "all", "color": "red"})
        await reached(partial(wants, pb, ["#"], "x-headers"), "the full feed")
        await (await other.declare_queue("all", durable=True)).bind("x-fanout", "ignored")
        await reached(partial(wants, pb, ["#"], "x-fanout"), "the full feed")
        for name in ("h1", "h2"):
            await (await other.declare_queue(name, durable=True)).bind("x-hash", "1")
        await reached(partial(wants, pb, ["#"], "x-hash"), "the full feed")
        for color in ("red", "blue"):
            await publish(exchanges["x-headers"], ["k"] * 5, headers={"color": color})
        await publish(exchanges["x-fanout"], [str(number) for number in range(10)])
        await publish(exchanges["x-hash"], [str(number) for number in range(20)])
        driver = held_by(sb).driver
        assert driver is not None
        await reached(lambda: driver.delivered == 40, "every message")
        await reached(lambda: (sb.queue("red").ready, sb.queue("all").ready) == (5, 10), "the receiver's choice")
        await reached(lambda: sb.queue("h1").ready + sb.queue("h2").ready == 20, "one queue for each message")


async def test_very_many_patterns_become_the_full_feed_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limit everything is sent and the receiver filters; below half of it the patterns are told again."""
    async with sites(tmp_path, pair(patterns_max=4)) as (pb, sb):
        heard = LinkPackets(pb, monkeypatch)
        async with channel_of(pb) as channel, channel_of(sb) as other:
            exchange = await declared(channel, other, kind="direct")
            queue = await other.declare_queue("q", durable=True)
            for number in range(5):
                await queue.bind("x", f"k{number}")
                texts = ["#"] if number == 4 else [f"k{one}" for one in range(number + 1)]
                await reached(partial(wants, pb, texts), "the patterns")
            assert await publish(exchange, ["k4", "other"], mandatory=True) == []
            driver = held_by(sb).driver
            assert driver is not None
            await reached(lambda: driver.delivered == 2, "every message")
            assert sb.queue("q").ready == 1
            for number in (4, 3):  # and again: at the limit nothing switches
                await queue.unbind("x", f"k{number}")
                await queue.bind("x", f"k{number}")
                await queue.unbind("x", f"k{number}")
                await at_rest(pb, sb)
            await queue.unbind("x", "k2")
            await reached(lambda: wanted(pb, "site-b") == ["k0", "k1"], "the patterns again")
            assert await publish(exchange, ["k0", "other"], mandatory=True) == [312]
        four = {f"k{number}" for number in range(4)}
        *single, up, down = heard.patterns
        assert single == [({f"k{number}"}, set()) for number in range(4)]
        assert (up, down) == (({"#"}, four), ({"k0", "k1"}, {"#"}))


@pytest.mark.interpreted("a method of the link is replaced")
async def test_many_bindings_take_few_round_trips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of parts is on its way at once: four parts of ten patterns in each round trip, whoever waits."""
    monkeypatch.setattr(announcement, "PART_PATTERNS", 10)
    monkeypatch.setattr(announcement, "WINDOW_PARTS", 4)
    count = 200
    keys = sorted(f"k{number}" for number in range(count))
    async with sites(tmp_path, pair()) as (pb, sb), channel_of(pb) as channel, channel_of(sb) as other:
        await declared(channel, other, kind="direct")
        queue = await other.declare_queue("q", durable=True)
        await at_rest(pb, sb)
        interest = held_by(pb).interest_of("a")
        steps = LinkSteps([pb, sb], monkeypatch)
        await asyncio.gather(*(queue.bind("x", key) for key in keys))
        taken = 0
        while sorted(interest.roots("site-b", X)) != keys:
            await steps.step()
            taken += 1
            assert taken < 50
        assert taken <= 2 * (1 + count // 40) + 1
        steps.end()
