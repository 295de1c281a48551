"""A publisher at full speed does not starve other clients."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from pamqp import commands

from tests.in_process import queue_of, running_broker
from tests.raw_client import PeerGone, RawClient, publish_frames

READ_BUDGET_BYTES = 64 << 10
ROUND_TRIPS = 20
TURNS_OF_A_ROUND_TRIP = 8  # read, deliver, write, and the client's own read: usually five loop turns


def flood(client: RawClient, stop: threading.Event) -> None:
    """Publish as fast as the broker reads, until told to stop."""
    block = publish_frames(1, "", "flood", b"x" * 16) * 500
    try:
        while not stop.is_set():
            client.send(block)
    except (PeerGone, OSError):
        pass  # the broker stopped reading


def round_trips(port: int, accepted: list[int], ready: object) -> None:
    """Publish a message and wait for its delivery, repeatedly; record how much the flood published meanwhile."""
    with RawClient("127.0.0.1", port) as client:
        client.open()
        client.open_channel(1)
        client.call(1, commands.Queue.Declare(queue="mine", exclusive=True), commands.Queue.DeclareOk)
        client.call(1, commands.Basic.Consume(queue="mine", no_ack=True), commands.Basic.ConsumeOk)
        for _ in range(ROUND_TRIPS):
            before = ready()  # type: ignore[operator]
            client.send(publish_frames(1, "", "mine", b"ping"))
            client.expect(commands.Basic.Deliver, 1)
            assert client.expect_content(1)[1] == b"ping"
            accepted.append(ready() - before)  # type: ignore[operator]


async def test_a_fast_publisher_does_not_starve_the_others(tmp_path: Path) -> None:
    """Between another client's publish and its delivery, a flood publishes a bounded number of messages."""
    flow = {"read_budget_bytes": READ_BUDGET_BYTES}
    async with running_broker(tmp_path, flow=flow, memory={"resident_max_bytes": 64 << 20}) as broker:
        stop = threading.Event()
        with RawClient("127.0.0.1", broker.listener.port) as flooder:
            await asyncio.to_thread(flooder.open)
            await asyncio.to_thread(flooder.open_channel, 1)
            declare = commands.Queue.Declare(queue="flood", exclusive=True)
            await asyncio.to_thread(flooder.call, 1, declare, commands.Queue.DeclareOk)
            thread = threading.Thread(target=flood, args=(flooder, stop))
            thread.start()
            accepted: list[int] = []
            queue = queue_of(broker, "flood")
            await asyncio.to_thread(round_trips, broker.listener.port, accepted, lambda: queue.stream.manager.next_id)
            stop.set()
            await asyncio.to_thread(thread.join)
        message_bytes = len(publish_frames(1, "", "flood", b"x" * 16))
        bound = TURNS_OF_A_ROUND_TRIP * READ_BUDGET_BYTES // message_bytes
        assert len(accepted) == ROUND_TRIPS
        assert sorted(accepted)[ROUND_TRIPS // 2] < bound
        assert queue.stream.manager.next_id > ROUND_TRIPS * 100  # it was a flood
