"""Limits of what is kept for sites that are away, on running sites."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aio_pika import Message

from broker.overlays.overlay_facts import overlay_facts
from tests.overlay.sites import Site, X, free_port, overlay, overlays_of, reached, wanted
from tests.tap_files import channel_of, publish

KIB = 1024


@pytest.mark.parametrize(
    ("limits", "forced_out"), [({"max_bytes": 64 * KIB}, 38), ({"max_age_ms": 60_000}, 80)], ids=["bytes", "age"]
)
async def test_what_limits_drop_is_told_at_both_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limits: dict[str, Any], forced_out: int
) -> None:
    """A site that was away too long gets what is left, in order, and logs a gap; the other logs how much it dropped."""
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
            driver = overlays_of(pb).driver
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
        assert driver.forced_out == overlay_facts(overlays_of(pb))[0]["forced_out"]
        async with far.broker(tmp_path / "b") as sb, channel_of(sb) as other:
            left = 81 - forced_out
            await reached(lambda: sb.queue("q").ready == 1 + left, "what is left")
            queue = await other.get_queue("q")
            found = [(await queue.get(no_ack=True)).routing_key for _ in range(1 + left)]
            assert found == ["before", *keys[forced_out:], "young"]
            receiver = overlays_of(sb).driver
            assert receiver is not None
            assert (receiver.gaps, overlay_facts(overlays_of(sb))[0]["gaps"]) == (1, 1)
    dropped = [line for line in caplog.messages if line.startswith("overlay.messages_forced_out ")]
    (gap,) = [line for line in caplog.messages if line.startswith("overlay.gap_found ")]
    assert sum(int(line.rpartition("=")[2]) for line in dropped) == forced_out
    assert "leaf='a' " in gap
