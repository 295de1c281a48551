"""A publisher at full speed does not starve other clients, and gives way to deliveries."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from pamqp import commands

from broker.core.publish_credit import SHARE_ENTRIES
from broker.net.receive_buffer import FIRST_BYTES
from broker.server import BrokerServer
from tests.deadline import wait_until_async
from tests.in_process import queue_of, running_broker
from tests.raw_client import PeerGone, RawClient, publish_frames
from tests.raw_talk import connect, mortal_broker, talk

READ_BUDGET_BYTES = 64 << 10
ROUND_TRIPS = 20
QUEUES: Final = 8
MESSAGES: Final = 2000
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
    with RawClient("127.0.0.1", port).with_channel() as client:
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
            await asyncio.to_thread(round_trips, broker.listener.port, accepted, lambda: queue.level.manager.next_id)
            stop.set()
            await asyncio.to_thread(thread.join)
        message_bytes = len(publish_frames(1, "", "flood", b"x" * 16))
        bound = TURNS_OF_A_ROUND_TRIP * READ_BUDGET_BYTES // message_bytes
        assert len(accepted) == ROUND_TRIPS
        assert sorted(accepted)[ROUND_TRIPS // 2] < bound
        assert queue.level.manager.next_id > ROUND_TRIPS * 100  # it was a flood


def seen_around_turns(broker: BrokerServer, look: Callable[[], int]) -> list[int]:
    """Return a list that gets what `look` returns before and after each turn."""
    engine = broker.engines["/"]
    turn = engine.turn
    seen: list[int] = []

    def watched() -> int:
        seen.append(look())
        waiting_bytes = turn()
        seen.append(look())
        return waiting_bytes

    engine.turn = watched  # type: ignore[method-assign]
    return seen


def enter(client: RawClient, queue: str, prefetch: int) -> None:
    """Declare a queue that takes all messages of amq.fanout, and consume from it."""
    client.declare_queue(1, queue)
    client.call(1, commands.Queue.Bind(queue=queue, exchange="amq.fanout"), commands.Queue.BindOk)
    client.call(1, commands.Basic.Qos(prefetch_count=prefetch), commands.Basic.QosOk)
    client.call(1, commands.Basic.Consume(queue=queue, no_ack=not prefetch), commands.Basic.ConsumeOk)


@pytest.mark.interpreted("the turn of an engine is replaced")
async def test_a_publisher_gives_way_while_consumers_have_room(tmp_path: Path) -> None:
    """However fast messages come for many queues, a turn brings no more entries than it delivers."""
    async with mortal_broker(tmp_path) as broker:
        with ExitStack() as stack:
            for number in range(QUEUES):  # what is sent fits into the buffers of their sockets: they always have room
                await talk(broker, enter, stack.enter_context(await talk(broker, connect, broker)), f"q{number}", 0)
            publisher = stack.enter_context(await talk(broker, connect, broker))
            queues = [queue_of(broker, f"q{number}") for number in range(QUEUES)]
            counts = seen_around_turns(broker, lambda: sum(queue.ready for queue in queues))
            await talk(broker, publisher.send, publish_frames(1, "amq.fanout", "", b"x" * 16) * MESSAGES)
            await wait_until_async(
                lambda: all(queue.level.tally.deliver_no_ack == MESSAGES for queue in queues), "all messages delivered"
            )
            assert max(counts) < SHARE_ENTRIES + QUEUES


@pytest.mark.interpreted("the turn of an engine is replaced")
async def test_a_consumer_without_room_does_not_hold_a_publisher_up(tmp_path: Path) -> None:
    """Messages that no consumer has room for are accepted at full speed: the backlog is the queue's."""
    async with mortal_broker(tmp_path) as broker:
        with await talk(broker, connect, broker) as consumer, await talk(broker, connect, broker) as publisher:
            await talk(broker, enter, consumer, "q", 10)
            queue = queue_of(broker, "q")
            lags = seen_around_turns(broker, lambda: queue.lags)

            def publish() -> None:
                publisher.send(publish_frames(1, "amq.fanout", "", b"x" * 16) * MESSAGES)
                publisher.declare_queue(1, "q", passive=True)

            await talk(broker, publish)
            assert queue.ready == MESSAGES - 10
            assert len(lags) > 1
            assert not any(lags)


def receive_buffers(broker: BrokerServer) -> list[int]:
    """Return the sizes of the receive buffers of all clients, in the order of what they have sent."""
    ends = [(each.connection.received, each._socket.get_extra_info("socket")) for each in broker.listener.transports]
    return [end.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) for _, end in sorted(ends, key=lambda one: one[0])]


@pytest.mark.skipif(sys.platform != "linux", reason="the round trip of a connection is an option of Linux")
async def test_the_kernel_receives_little_ahead_from_a_near_publisher_at_full_speed(tmp_path: Path) -> None:
    """A client's first large read bounds its receive buffer; a client with small reads keeps the system's."""
    block = publish_frames(1, "amq.fanout", "", b"x" * 1024) * 200  # too few to fill the buffer often
    async with mortal_broker(tmp_path) as broker:
        found: list[int] = []
        for _ in range(20):  # a machine that stands still delays round trips, so that a client seems far
            with await talk(broker, connect, broker) as quiet, await talk(broker, connect, broker) as publisher:
                system = receive_buffers(broker)
                assert 2 * FIRST_BYTES not in system
                await talk(broker, publisher.send, block)
                await talk(broker, publisher.declare_queue, 1, "q")
                await talk(broker, quiet.declare_queue, 1, "q")
                found = receive_buffers(broker)
                assert found[0] == system[0]
            if found[1] != system[1]:
                break
        assert found[1] == 2 * FIRST_BYTES
