"""Messages between sites: real brokers and clients, links over sockets."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from broker.overlay.logical_broker import Timing
from broker.overlay.packets import Data, Nack, Packet, Resync, StreamName, StreamRun, Update
from broker.overlay_node import held_brokers
from broker.overlay_node.held_brokers import Participation
from broker.overlay_node.leaf_file import LeafFile
from broker.overlay_node.overlay_link import OverlayLink
from broker.store.files import Files
from broker.testing import Broker
from tests.overlay.link_steps import LinkSteps
from tests.overlay.sites import Site, X, declared, free_port, held_by, overlay, pair, reached, sites, wanted
from tests.tap_files import channel_of, publish


def has(broker: Broker, count: int) -> bool:
    """Return whether the queue q has more messages than a number."""
    return broker.queue("q").ready > count


def wants(broker: Broker, patterns: list[str]) -> bool:
    """Return whether the node site-b wants exactly these patterns."""
    return wanted(broker, "site-b") == patterns


async def test_a_binding_at_one_site_draws_messages_of_another(tmp_path: Path) -> None:
    """Only what someone wants crosses the link, in order and once; the binding's end is heard too."""
    async with sites(tmp_path, pair()) as (pb, sb), channel_of(pb) as channel, channel_of(sb) as other:
        exchange = await declared(channel, other)
        queue = await other.declare_queue("q", durable=True)
        await queue.bind("x", "a.*")
        await reached(lambda: wanted(pb, "site-b") == ["a.*"], "the binding")
        await publish(exchange, [f"{'ab'[number % 2]}.{number}" for number in range(100)])
        await reached(lambda: sb.queue("q").ready == 50, "the messages")
        found = [(await queue.get(no_ack=True)).routing_key for _ in range(50)]
        assert found == [f"a.{number}" for number in range(0, 100, 2)]
        stream = pb.server.vhosts["/"].queues["amq.overlay.x"]
        await reached(lambda: stream.ready <= 1, "the acks")
        await queue.unbind("x", "a.*")
        await reached(lambda: wanted(pb, "site-b") == [], "the end of the binding")
        before = stream.level.manager.next_id
        assert await publish(exchange, ["a.1"], mandatory=True) == [312]
        assert stream.level.manager.next_id == before


@pytest.mark.interpreted("a method of the link is replaced")
async def test_a_new_binding_gets_nothing_from_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither before the leaf has heard of it, nor what was on its way under a binding that covers it."""
    async with sites(tmp_path, pair()) as (pb, sb), channel_of(pb) as channel, channel_of(sb) as other:
        exchange = await declared(channel, other)
        await (await other.declare_queue("q", durable=True)).bind("x", "k.1")
        await reached(lambda: wants(pb, ["k.1"]), "the binding")
        publisher, driver = held_by(pb).driver, held_by(sb).driver
        assert publisher is not None
        assert driver is not None
        with monkeypatch.context() as held:
            held.setattr(driver, "_change_bindings", lambda *_limit, **_start: None)
            await (await other.declare_queue("late", durable=True)).bind("x", "#")
            await publish(exchange, ["k.1"] * 5)
            await reached(lambda: sb.queue("q").ready == 5, "what was published before the leaf told it")
            assert sb.queue("late").ready == 0
        held_by(sb).schedule()
        await reached(lambda: wants(pb, ["#"]), "the new binding")
        await publish(exchange, ["k.1", "k.2"])
        await reached(lambda: sb.queue("late").ready == 2, "what follows")
        steps = LinkSteps([pb, sb], monkeypatch)
        await publish(exchange, ["k.1"])
        await pb.idle()
        times = [one.leaf.interest for one in (publisher, driver)]

        def is_known(since: int) -> bool:
            """Return whether the publisher matches messages against the time in which a binding was made."""
            return since < times[0].time("b") == times[1].time("b") and wants(pb, ["#"])

        covered, before = await other.declare_queue("covered", durable=True), times[1].time("b")
        await covered.bind("x", "k.1")
        steps.end()
        await reached(lambda: sb.queue("q").ready == 7, "what was on its way")
        await reached(lambda: is_known(before), "the covered binding")
        assert sb.queue("covered").ready == 0
        await publish(exchange, ["k.1"])
        await reached(lambda: sb.queue("covered").ready == 1, "what follows")
        before = times[1].time("b")
        await covered.unbind("x", "k.1")
        await covered.bind("x", "k.1")
        await reached(lambda: is_known(before), "the same binding, made again")
        await publish(exchange, ["k.1"])
        await reached(lambda: sb.queue("covered").ready == 2, "what follows")


async def test_bindings_without_messages_cost_the_other_site_next_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty bindings are one change of the vector at most, and the next message still finds the last of them."""
    monkeypatch.setattr(held_brokers, "Timing", partial(Timing, vector_idle_ms=1 << 40))
    async with sites(tmp_path, pair()) as (pb, sb), channel_of(pb) as channel, channel_of(sb) as other:
        exchange = await declared(channel, other)
        queue = await other.declare_queue("q", durable=True)
        stream = pb.server.vhosts["/"].queues["amq.overlay.x"].level
        before = stream.manager.next_id
        keys = [f"k.{number:02}" for number in range(20)]
        for count, key in enumerate(keys, 1):
            await queue.bind("x", key)
            await reached(partial(wants, pb, keys[:count]), "the binding")
        assert stream.manager.next_id - before <= 1
        await publish(exchange, keys)
        await reached(lambda: sb.queue("q").ready == 20, "a message for each binding")


@pytest.mark.interpreted("a method of the link is replaced")
async def test_packets_that_a_link_loses_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the first update all is asked for again; a lost later one is repeated, a lost run is asked for."""
    sent: dict[str, list[Packet]] = {"a": [], "b": []}
    losses: dict[str, Callable[[Packet], bool]] = {
        "a": lambda packet: isinstance(packet, StreamRun) and any(isinstance(one, Data) for one in packet.elements),
        "b": lambda packet: isinstance(packet, Update) and packet.serial == 1,
    }
    send = OverlayLink.send

    def lossy(link: OverlayLink, packet: Packet) -> None:
        sent[link.own].append(packet)
        if not losses[link.own](packet):
            send(link, packet)

    monkeypatch.setattr(OverlayLink, "send", lossy)
    async with sites(tmp_path, pair()) as (pb, sb), channel_of(pb) as channel, channel_of(sb) as other:
        exchange = await declared(channel, other)
        queue = await other.declare_queue("q", durable=True)
        await reached(lambda: any(map(losses["b"], sent["b"])), "the first update")
        await queue.bind("x", "a.*")
        await reached(lambda: Resync() in sent["a"], "the question for all")
        losses["b"] = lambda packet: isinstance(packet, Update) and len(repeats(sent["b"], packet)) == 1
        await queue.bind("x", "b.*")
        await reached(partial(wants, pb, ["a.*", "b.*"]), "the bindings")
        await publish(exchange, ["a.1", "b.1"])
        await reached(lambda: any(map(losses["a"], sent["a"])), "the run")
        losses["a"] = lambda _packet: False
        await reached(lambda: sb.queue("q").ready == 2, "the messages")
        assert any(isinstance(packet, Nack) for packet in sent["b"])
        assert [(await queue.get(no_ack=True)).routing_key for _ in range(2)] == ["a.1", "b.1"]


def repeats(packets: Sequence[Packet], packet: Packet) -> list[Packet]:
    """Return the packets that equal one."""
    return [one for one in packets if one == packet]


async def test_an_inner_broker_passes_on_between_processes_and_within_one(tmp_path: Path) -> None:
    """A middle site with clients of its own has a leaf beside its inner broker; each leaf gets what it wants."""
    ports = [free_port() for _ in range(3)]
    middle = (
        overlay("m", "middle", ("site-a", "a", ports[0]), ("site-c", "c", ports[2]), ("site-m", "l", 0)),
        overlay("l", "site-m", ("middle", "m", 0), leaf=True),
    )
    chain = (
        Site(ports[0], overlay("a", "site-a", ("middle", "m", 0), leaf=True)),
        Site(ports[1], *middle),
        Site(ports[2], overlay("c", "site-c", ("middle", "m", 0), leaf=True)),
    )
    async with sites(tmp_path, chain) as (a, m, c), channel_of(a) as channel:
        exchange = await channel.declare_exchange("x", "direct", durable=True)
        for broker, key in ((m, "m"), (c, "c"), (a, "a")):
            async with channel_of(broker) as other:
                await other.declare_exchange("x", "direct", durable=True)
                queue = await other.declare_queue("q", durable=True)
                await queue.bind("x", "all")
                await queue.bind("x", key)
        await reached(lambda: wanted(a, "middle") == ["all", "c", "m"], "what both other sites want")
        await reached(lambda: wanted(c, "middle") == ["a", "all", "m"], "what both other sites want")
        await publish(exchange, ["a", "m", "c", "all", "none"] * 20)
        await reached(lambda: [one.queue("q").ready for one in (a, m, c)] == [40, 40, 40], "each site's share")
        async with channel_of(c) as other:
            await publish(await other.get_exchange("x"), ["a", "m", "c", "all"] * 10, persistent=False)
        await reached(lambda: [one.queue("q").ready for one in (a, m, c)] == [60, 60, 60], "what the far end published")
        counts = held_by(m).inners["m"].counts
        assert counts.filtered > 0


async def test_the_keys_in_cc_count_everywhere_and_those_in_bcc_where_a_message_is_published(tmp_path: Path) -> None:
    """A broker in between matches copies too; whom only BCC names at another site gets nothing, and it is said."""
    ports = [free_port() for _ in range(3)]
    chain = (
        Site(ports[0], overlay("a", "site-a", ("middle", "m", ports[1]), leaf=True)),
        Site(ports[1], overlay("m", "middle", ("site-a", "a", 0), ("site-c", "c", 0))),
        Site(ports[2], overlay("c", "site-c", ("middle", "m", ports[1]), leaf=True)),
    )
    async with sites(tmp_path, chain) as (a, m, c), channel_of(a) as channel, channel_of(c) as other:
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        await (await channel.declare_queue("q", durable=True)).bind("x", "here.#")
        await other.declare_exchange("x", "topic", durable=True)
        await (await other.declare_queue("q", durable=True)).bind("x", "there.#")
        await reached(lambda: wanted(a, "middle") == ["there.#"], "the binding")
        stream = a.server.vhosts["/"].queues["amq.overlay.x"].level
        await publish(exchange, ["none", "here.1"], headers={"CC": ["there.1"], "BCC": ["here.2"]})
        before = stream.manager.next_id
        assert await publish(exchange, ["none"], headers={"BCC": ["there.1"]}, mandatory=True) == [312]
        assert await publish(exchange, ["here.3"], headers={"BCC": ["there.1"]}, mandatory=True) == []
        assert stream.manager.next_id == before
        await publish(exchange, ["there.last"], headers={"CC": ["nobody"]})
        await reached(lambda: c.queue("q").ready == 3, "the copies, and the last message")
        assert a.queue("q").ready == 3
        queue = await other.get_queue("q")
        found = [await queue.get(no_ack=True) for _ in range(3)]
        assert [one.routing_key for one in found] == ["none", "here.1", "there.last"]
        assert found[0].headers == {"CC": ["there.1"]}
        counts = held_by(m).inners["m"].counts
        assert (counts.matched, counts.filtered) == (3, 0)


@pytest.mark.parametrize(("one_way", "patterns"), [((), ["k.#"]), (("site-a", "site-b"), ["#"])])
async def test_messages_are_there_once_though_both_ends_die(
    tmp_path: Path, one_way: Sequence[str], patterns: list[str]
) -> None:
    """Kill -9 of both sites, over a link of either kind: no message is missing, none comes twice."""
    port = free_port()
    first = Site(free_port(), overlay("a", "site-a", ("site-b", "b", port), leaf=True, one_way=one_way))
    second = Site(port, overlay("b", "site-b", ("site-a", "a", 0), leaf=True, one_way=one_way))
    folders = [tmp_path / "a0", tmp_path / "b0"]
    for life in range(3):
        async with first.broker(folders[0]) as pb, second.broker(folders[1]) as sb, channel_of(pb) as channel:
            exchange = await channel.declare_exchange("x", "topic", durable=True)
            async with channel_of(sb) as other:
                await other.declare_exchange("x", "topic", durable=True)
                await (await other.declare_queue("q", durable=True)).bind("x", "k.#")
            await reached(partial(wants, pb, patterns), "the binding")
            await publish(exchange, [f"k.{number}" for number in range(60 * life, 60 * life + 60)])
            sent = 60 * life + 60
            if life == 2:
                await reached(lambda: sb.queue("q").ready == 180, "all messages")
                async with channel_of(sb) as other:
                    queue = await other.get_queue("q")
                    found = [(await queue.get(no_ack=True)).routing_key for _ in range(sent)]
                assert found == [f"k.{number}" for number in range(sent)]
                break
            some = sent - 40
            await reached(partial(has, sb, some), "some of the messages")
            copies = [tmp_path / f"a{life + 1}", tmp_path / f"b{life + 1}"]
            for folder, copy in zip(folders, copies, strict=True):
                await asyncio.to_thread(shutil.copytree, folder, copy)
            folders = copies


async def test_settings_say_which_exchanges_take_part() -> None:
    """Stars stand for anything; the default vhost needs no name; the exchanges of the broker take no part."""
    participation = Participation(["orders.*", "b*", "sales:*", "/:with:colon", "amq.topic"], "/")
    asked = [
        ("/", "orders.new", True),
        ("/", "orders", False),
        ("/", "amq.topic", True),
        ("/", "amq.fanout", False),
        ("/", "amq.slotmq.interest", False),
        ("/", "", False),
        ("/", "with:colon", True),
        ("sales", "anything", True),
        ("sales", "amq.rabbitmq.trace", False),
        ("other", "orders.new", False),
    ]
    assert [(vhost, name, participation.takes_part(vhost, name)) for vhost, name, _ in asked] == asked


async def test_start_points_are_on_disk_before_the_neighbour_hears_of_a_binding(tmp_path: Path) -> None:
    """Each durable binding is in the file of the leaf once the other site wants what it asks for."""
    async with sites(tmp_path, pair()) as (pb, sb), channel_of(pb) as channel, channel_of(sb) as other:
        await declared(channel, other)
        queue = await other.declare_queue("q", durable=True)
        keys: list[str] = []
        for key in ("a.1", "b.*", "c"):
            await queue.bind("x", key)
            keys.append(key)
            await reached(partial(wants, pb, keys), "the binding")
            note = LeafFile(Files(), tmp_path / "1", "b").read()
            assert sorted(binding.split("\0")[4] for binding in note.start_points) == keys
            assert note.time_bound > max(note.start_points.values())


async def test_what_consumers_may_have_had_before_a_crash_is_redelivered(tmp_path: Path) -> None:
    """A message that another site sends again, because its record was lost, is marked; the next one is not."""
    async with sites(tmp_path, pair()) as (_, sb), channel_of(sb) as channel:
        await channel.declare_exchange("x", "topic", durable=True)
        queue = await channel.declare_queue("q", durable=True)
        await queue.bind("x", "#")
        driver = held_by(sb).driver
        assert driver is not None
        ingress = driver.vhosts["/"].overlay.ingress
        content = b"\0\x3c" + bytes(12)  # class, weight, body size, flags
        ingress.publish(StreamName("a", X), Data(1, "k", content), doubtful=True)
        ingress.publish(StreamName("a", X), Data(2, "k", content))
        assert [(await queue.get(no_ack=True)).redelivered for _ in range(2)] == [True, False]
