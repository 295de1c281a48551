"""Limits of what is kept for sites that are away, on running sites."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aio_pika import Message

from broker.overlay_node.facts import overlay_facts
from tests.overlay.sites import Site, X, declared, free_port, held_by, overlay, pair, reached, wanted
from tests.tap_files import channel_of, publish

KIB = 1024


@pytest.mark.parametrize(
    ("limits", "forced_out"), [({"max_bytes": 64 * KIB}, 38), ({"max_age_ms": 60_000}, 80)], ids=["bytes", "age"]
)
async def test_what_limits_drop_is_told_at_both_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limits: dict[str, Any], forced_out: int
) -> None:
    """A site that was away too long gets the rest, in order, and logs a gap; the other logs how much it dropped."""
    port = free_port()
    near = Site(port, overlay("a", "site-a", ("site-b", "b", 0), leaf=True), **limits)
    far = Site(free_port(), overlay("b", "site-b", ("site-a", "a", port), leaf=True))
    async with near.broker(tmp_path / "a", slots={"window_messages": 20}) as pb, channel_of(pb) as channel:
        exchange = await channel.declare_exchange("x", "topic", durable=True)
        async with far.broker(tmp_path / "b") as sb, channel_of(sb) as other:
            await other.declare_exchange("x", "topic", durable=True)
            await (await other.declare_queue("q", durable=True)).bind("x", "#")
            await reached(lambda: wanted(pb, "site-b") == ["#"], "the binding")
            await publish(exchange, ["before"])
            await reached(lambda: sb.queue("q").ready == 1, "the first message")
            driver = held_by(pb).driver
            assert driver is not None
            source = driver.leaf.sources[X]
            await reached(lambda: source.needed_from() > source.last, "its ack")
        keys = [f"{number:02}" for number in range(80)]
        for key in keys:
            await exchange.publish(Message(bytes(KIB), delivery_mode=2), key)
        pb.clock.advance(61)
        await publish(exchange, ["young"])
        driver.tick(int(asyncio.get_running_loop().time() * 1000), enforce=True)
        assert driver.forced_out == forced_out
        assert driver.forced_out == overlay_facts(held_by(pb))[0]["forced_out"]
        async with far.broker(tmp_path / "b") as sb, channel_of(sb) as other:
            left = 81 - forced_out
            await reached(lambda: sb.queue("q").ready == 1 + left, "what is left")
            queue = await other.get_queue("q")
            found = [(await queue.get(no_ack=True)).routing_key for _ in range(1 + left)]
            assert found == ["before", *keys[forced_out:], "young"]
            receiver = held_by(sb).driver
            assert receiver is not None
            assert (receiver.gaps, overlay_facts(held_by(sb))[0]["gaps"]) == (1, 1)
    dropped = [line for line in caplog.messages if line.startswith("overlay.messages_forced_out ")]
    (gap,) = [line for line in caplog.messages if line.startswith("overlay.gap_found ")]
    assert sum(int(line.rpartition("=")[2]) for line in dropped) == forced_out
    assert "leaf='a' " in gap


@pytest.mark.parametrize("turned", [False, True], ids=["dialled", "accepted"])
async def test_what_clients_may_publish_says_nothing_of_links(tmp_path: Path, turned: bool) -> None:
    """Bursts, messages as large as they may be, and thousands of patterns cross, and the link stays open."""
    near, far = reversed(pair()) if turned else pair()
    here, there = (one.nodes[0]["broker"] for one in (near, far))
    limit = {"amqp": {"max_message_size_bytes": 20_000}}
    async with (
        near.broker(tmp_path / "near", **limit) as pb,
        far.broker(tmp_path / "far", **limit) as sb,
        channel_of(pb) as channel,
        channel_of(sb) as other,
    ):
        exchange = await declared(channel, other)
        queue = await other.declare_queue("q", durable=True)
        await queue.bind("x", "k.#")
        for number in range(200):
            await queue.bind("x", f"k{number}.{'y' * 200}")
        await reached(lambda: len(wanted(pb, f"site-{there}") or ()) == 201, "the patterns")
        held_by(sb).links[there, here].close("all patterns again")
        await reached(lambda: pb.server.overlay.facts()[0]["links"][0]["state"] == "down", "the end of the link")
        await reached(lambda: pb.server.overlay.facts()[0]["links"][0]["state"] == "up", "the next link")
        await reached(lambda: len(wanted(pb, f"site-{there}") or ()) == 201, "the patterns again")
        session = held_by(pb).links[here, there].session
        await asyncio.gather(*(exchange.publish(Message(bytes(1_000), delivery_mode=2), "k.1") for _ in range(300)))
        await exchange.publish(Message(bytes(20_000), delivery_mode=2, headers={"h": "x" * 2_000}), "k.2")
        await reached(lambda: sb.queue("q").ready == 301, "all messages")
        assert held_by(pb).links[here, there].session == session


async def test_a_message_that_a_neighbour_refuses_is_a_gap(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Both ends say so, and everything else arrives over the same link."""
    near, far = pair()
    async with (
        near.broker(tmp_path / "a", amqp={"max_message_size_bytes": 1 << 20}) as pb,
        far.broker(tmp_path / "b", amqp={"max_message_size_bytes": 20_000}) as sb,
        channel_of(pb) as channel,
        channel_of(sb) as other,
    ):
        exchange = await declared(channel, other)
        queue = await other.declare_queue("q", durable=True)
        await queue.bind("x", "#")
        await reached(lambda: wanted(pb, "site-b") == ["#"], "the binding")
        session = held_by(pb).links["a", "b"].session
        await asyncio.gather(
            *(exchange.publish(Message(bytes(size), delivery_mode=2), str(size)) for size in (10, 1 << 20, 11, 12))
        )
        await reached(lambda: sb.queue("q").ready == 3, "the others")
        assert [(await queue.get(no_ack=True)).routing_key for _ in range(3)] == ["10", "11", "12"]
        receiver, source = held_by(sb).driver, held_by(pb).driver
        assert receiver is not None
        assert source is not None
        assert receiver.gaps == 1
        await reached(lambda: source.leaf.sources[X].needed_from() > source.leaf.sources[X].last, "the acks")
        assert held_by(pb).links["a", "b"].session == session
    (refused,) = [line for line in caplog.messages if line.startswith("overlay.message_too_large ")]
    (gap,) = [line for line in caplog.messages if line.startswith("overlay.gap_found ")]
    number = gap.partition("first=")[2].split()[0]
    assert f"number={number} " in refused
    assert "peer='b' " in refused
