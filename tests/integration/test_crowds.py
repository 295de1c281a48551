"""Many clients at once: the share of each client, clients that do not read, and clients that flood."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from pamqp import commands

from broker.core.queue.consumer import Consumer
from broker.core.queue.consumer_ring import ROW_MESSAGES
from broker.net.transport import SMALL_READ_BYTES
from broker.server import BrokerServer
from tests.deadline import DEADLINE_S, wait_until_async
from tests.in_process import queue_of
from tests.raw_client import SILENCE_S, RawClient, publish_frames
from tests.raw_talk import connect, declare, mortal_broker, numbered, publish, receive, talk

FLOODERS = 8
FLOOD_EACH = 1200  # this much of each fits into the socket buffers, so no sender blocks
SHARE_BYTES = 16 << 10


def receive_ready(clients: Sequence[RawClient], total: int) -> list[int]:
    """Return the number of deliveries of each client, once they reach a total."""
    counts = [0] * len(clients)
    deadline = time.monotonic() + DEADLINE_S
    while sum(counts) < total:
        assert time.monotonic() < deadline, f"{sum(counts)} of {total} deliveries"
        for place, client in enumerate(clients):
            while client.readable(0):
                client.expect(commands.Basic.Deliver, 1)
                client.expect_content(1)
                counts[place] += 1
    return counts


async def test_a_crowd_of_publishers_and_consumers_shares_a_queue(tmp_path: Path) -> None:
    """Each of many publishers is confirmed, and the shares of many consumers differ by one row of messages at most."""
    crowd, each = 40, 50
    async with mortal_broker(tmp_path) as broker:

        def converse() -> list[int]:
            with ExitStack() as stack:
                consumers = [stack.enter_context(connect(broker)) for _ in range(crowd)]
                publishers = [stack.enter_context(connect(broker)) for _ in range(crowd)]
                declare(consumers[0], "q")
                for consumer in consumers:
                    consumer.call(1, commands.Basic.Consume(queue="q", no_ack=True), commands.Basic.ConsumeOk)
                for publisher in publishers:
                    publisher.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
                    publisher.send(*(publish_frames(1, "", "q", body) for body in numbered(each, 10)))
                for publisher in publishers:
                    while publisher.expect(commands.Basic.Ack, 1).delivery_tag < each:
                        pass
                return receive_ready(consumers, crowd * each)

        got = await talk(broker, converse)
    assert sum(got) == crowd * each
    assert max(got) - min(got) <= ROW_MESSAGES


async def test_an_ack_brings_the_next_message_to_who_acked(tmp_path: Path) -> None:
    """With a prefetch of 1 a consumer that acks quickly gets the remaining messages, though many others are waiting."""
    async with mortal_broker(tmp_path) as broker:
        with ExitStack() as stack:

            def converse() -> tuple[list[int], list[int]]:
                consumers = [stack.enter_context(connect(broker)) for _ in range(20)]
                publisher = stack.enter_context(connect(broker))
                declare(publisher, "q")
                for consumer in consumers:
                    consumer.call(1, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
                    consumer.call(1, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
                publish(publisher, "q", numbered(50, 10), mode=1)
                first = receive_ready(consumers, 20)
                for tag in range(1, 31):
                    consumers[7].method(1, commands.Basic.Ack(delivery_tag=tag))
                    receive(consumers[7], 1)
                return first, receive_ready(consumers, 0)

            assert await talk(broker, converse) == ([1] * 20, [0] * 20)
            assert (queue_of(broker, "q").ready, queue_of(broker, "q").unacked) == (0, 20)


@pytest.mark.interpreted("a method of the consumer is replaced")
async def test_a_consumer_that_reads_nothing_leaves_the_rest_to_the_others(tmp_path: Path) -> None:
    """A consumer that does not read fills its connection and gets no more; reading consumers get all other messages."""
    asked: Counter[str] = Counter()
    room = Consumer.room

    def spy(consumer: Consumer) -> int:
        asked[consumer.tag] += 1
        return room(consumer)

    total, sections = 1500, {"flow": {"high_water_bytes": 16 << 10}}
    async with mortal_broker(tmp_path, sections) as broker:
        with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
            patch.setattr(Consumer, "room", spy)
            silent = stack.enter_context(await talk(broker, lambda: connect(broker, receive_buffer_bytes=4096)))
            reader = stack.enter_context(await talk(broker, connect, broker))
            publisher = stack.enter_context(await talk(broker, connect, broker))

            def converse() -> int:
                declare(publisher, "q")
                for client, tag in ((silent, "silent"), (reader, "reader")):
                    consume = commands.Basic.Consume(queue="q", consumer_tag=tag, no_ack=True)
                    client.call(1, consume, commands.Basic.ConsumeOk)
                taken = 0
                for _ in range(10):
                    publish(publisher, "q", numbered(total // 10, 10_000), mode=1)
                    while reader.readable(0.05):
                        receive(reader, 1)
                        taken += 1
                return taken

            taken = await talk(broker, converse)
        assert queue_of(broker, "q").ready == 0
    assert taken > total * 0.6
    assert asked["silent"] < asked["reader"] / 2


class Flood:
    """Clients that publish at once, each into its own queue, more than one turn processes."""

    def __init__(self, broker: BrokerServer, stack: ExitStack) -> None:
        self._broker = broker
        self._clients = [stack.enter_context(connect(broker)) for _ in range(FLOODERS)]
        self._frames = [
            b"".join(publish_frames(1, "", name, bytes(100)) for _ in range(FLOOD_EACH)) for name in self.names
        ]
        declare(self._clients[0], *self.names)
        self.message_bytes = len(self._frames[0]) // FLOOD_EACH
        for client in self._clients:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(self._frames[0]))

    @property
    def names(self) -> list[str]:
        """The queues."""
        return [f"flood-{place}" for place in range(FLOODERS)]

    @property
    def taken_each(self) -> list[int]:
        """The number of messages of each client that the broker has accepted."""
        return [queue_of(self._broker, name).level.manager.next_id - 1 for name in self.names]

    @property
    def taken(self) -> int:
        """The number of messages that the broker has accepted."""
        return sum(self.taken_each)

    def begin(self) -> None:
        """Send everything. In the broker's own thread, the next read finds all of it."""
        for client, frames in zip(self._clients, self._frames, strict=True):
            client.socket.setblocking(False)
            assert client.socket.send(frames) == len(frames)
            client.socket.settimeout(SILENCE_S)

    async def over(self) -> None:
        """Return when all messages were accepted."""
        await wait_until_async(lambda: self.taken == FLOODERS * FLOOD_EACH, "all of the flood")


def each_turn(broker: BrokerServer, look: Callable[[], None]) -> None:
    """Call a function in every turn of the loop, after the engines have run."""
    check = broker.turn._check_backlog

    def looked() -> bool:
        check()
        look()
        return True

    broker.turn.check_backlog_by(looked, -1)  # in each turn


async def test_connections_that_flood_share_what_a_turn_reads(tmp_path: Path) -> None:
    """However many clients publish at full speed, a turn reads one share of all their bytes, and each gets its part."""
    async with mortal_broker(tmp_path, {"flow": {"read_budget_bytes": SHARE_BYTES}}) as broker:
        with ExitStack() as stack:
            flood = await talk(broker, Flood, broker, stack)
            seen: list[list[int]] = []
            each_turn(broker, lambda: seen.append(flood.taken_each))
            flood.begin()
            await flood.over()
    grown = [sum(after) - sum(before) for before, after in pairwise(seen)]
    share = (SHARE_BYTES + FLOODERS * SMALL_READ_BYTES) // flood.message_bytes + FLOODERS
    assert share < FLOOD_EACH / 2
    assert max(grown) <= share
    together = [counts for counts in seen if min(counts) > 0 and max(counts) < FLOOD_EACH]
    gained = [last - first for first, last in zip(together[0], together[-1], strict=True)]
    assert min(gained) > max(gained) / 2


async def test_a_light_clients_message_passes_a_flood(tmp_path: Path) -> None:
    """A light client's message is delivered in the turn after it was read, long before the flood is processed."""
    async with mortal_broker(tmp_path, {"flow": {"read_budget_bytes": SHARE_BYTES}}) as broker:
        with ExitStack() as stack:
            flood = await talk(broker, Flood, broker, stack)
            light = stack.enter_context(await talk(broker, connect, broker))
            seen: list[tuple[int, int, int]] = []  # after each turn: flood accepted, light one accepted and delivered

            def look() -> None:
                manager = queue_of(broker, "light").level.manager
                seen.append((flood.taken, manager.next_id - 1, manager.unacked))

            def converse() -> None:
                declare(light, "light")
                light.call(1, commands.Basic.Consume(queue="light"), commands.Basic.ConsumeOk)

            await talk(broker, converse)
            each_turn(broker, look)
            flood.begin()
            light.send(publish_frames(1, "", "light", b"the one"))
            assert (await talk(broker, receive, light, 1))[0][1] == b"the one"
            await flood.over()
    taken = next(counts for counts in seen if counts[1])
    assert taken[2] == 1
    assert taken[0] < FLOODERS * FLOOD_EACH / 2
