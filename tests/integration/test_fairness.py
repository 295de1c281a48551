"""Shares: of a channel's prefetch, of a connection's output, of the broker's memory and work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from broker.net.transport import Transport
from broker.slots.slot import Slot
from tests.deadline import DEADLINE_S, wait_until_async
from tests.in_process import queue_of
from tests.integration.test_paging_edges import SMALL, Gate, reads_are_over
from tests.raw_client import RawClient, method_frame
from tests.raw_talk import Sections, connect, declare, get, mortal_broker, numbered, page_out, publish, receive, talk

REPLIES_BYTES = 512 << 10
MESSAGE_BYTES = 100_000


def start_consumers(client: RawClient, *places: tuple[int, str], no_ack: bool = False) -> None:
    """Send basic.consume for each (channel, queue) in one piece; the tag is the queue's name, with nowait."""
    methods = [
        (channel, commands.Basic.Consume(queue=queue, consumer_tag=queue, no_ack=no_ack, nowait=True))
        for channel, queue in places
    ]
    client.send(*(method_frame(channel, method) for channel, method in methods))


def deliveries_before(client: RawClient, tag: str, *, acks: bool) -> int:
    """Return the number of other consumers' messages before the first message of this tag."""
    count = 0
    while True:
        received = client.next()
        if isinstance(received.value, commands.Basic.Deliver):
            client.expect_content(received.channel)
            if received.value.consumer_tag == tag:
                return count
            count += 1
            if acks:
                client.method(received.channel, commands.Basic.Ack(delivery_tag=received.value.delivery_tag or 0))


# ---- prefetch --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_shared_prefetch_goes_round(tmp_path: Path, workers: int) -> None:
    """If two queues share a prefetch of 1, the one with a single message does not wait for the other's backlog."""
    async with mortal_broker(tmp_path, {"slots": {"workers": workers}}) as broker:
        with await talk(broker, connect, broker) as client:

            def converse() -> int:
                declare(client, "backlog", "lone")
                publish(client, "backlog", numbered(100, 10))
                publish(client, "lone", [b"the one"])
                client.call(1, commands.Basic.Qos(prefetch_count=1, global_=True), commands.Basic.QosOk)
                start_consumers(client, (1, "backlog"), (1, "lone"))
                return deliveries_before(client, "lone", acks=True)

            assert await talk(broker, converse) <= 2


async def test_a_shared_prefetch_holds_for_many_consumers_of_one_queue(tmp_path: Path) -> None:
    """Three consumers of one queue that share a prefetch of 1 hold one message together, and get all in order."""
    async with mortal_broker(tmp_path) as broker:
        with await talk(broker, connect, broker) as client, await talk(broker, connect, broker) as publisher:

            def begin() -> None:
                declare(client, "q")
                client.call(1, commands.Basic.Qos(prefetch_count=1, global_=True), commands.Basic.QosOk)
                for tag in "abc":
                    consume = commands.Basic.Consume(queue="q", consumer_tag=tag)
                    client.call(1, consume, commands.Basic.ConsumeOk)
                publish(publisher, "q", numbered(10, 10), mode=1)

            await talk(broker, begin)
            assert (queue_of(broker, "q").unacked, queue_of(broker, "q").ready) == (1, 9)

            def take_all() -> list[bytes]:
                bodies = []
                for _ in range(10):
                    ((deliver, body),) = receive(client, 1)
                    bodies.append(body)
                    client.method(1, commands.Basic.Ack(delivery_tag=deliver.delivery_tag or 0))
                return bodies

            assert await talk(broker, take_all) == numbered(10, 10)


# ---- output ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "channels"),
    [(1, (1, 1)), (2, (1, 1)), (1, (1, 2)), (2, (1, 2))],
    ids=["one worker", "two workers", "two channels", "two of both"],
)
async def test_a_connections_output_goes_round(tmp_path: Path, workers: int, channels: tuple[int, int]) -> None:
    """A backlog that repeatedly fills a connection's output does not delay another queue's message."""
    sections: Sections = {"slots": {"workers": workers}, "flow": {"high_water_bytes": 16 << 10}}
    async with mortal_broker(tmp_path, sections) as broker:
        with await talk(broker, lambda: connect(broker, receive_buffer_bytes=4096)) as client:

            def converse() -> int:
                client.open_channel(2)
                declare(client, "backlog", "lone")
                publish(client, "backlog", numbered(1000, 1000))
                publish(client, "lone", [b"the one"])
                start_consumers(client, (channels[0], "backlog"), (channels[1], "lone"), no_ack=True)
                return deliveries_before(client, "lone", acks=False)

            assert await talk(broker, converse) < 100


@pytest.mark.interpreted("a method of the transport is replaced")
async def test_answers_wait_for_a_client_that_does_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many basic.get in one piece are answered as fast as the client reads: the unsent output stays within a limit."""
    unsent: list[int] = []
    feed = Transport._feed

    def spy(transport: Transport, octets: bytes, budget_bytes: int | None = None) -> bool:
        runs_turn = feed(transport, octets, budget_bytes)
        unsent.append(transport.connection.out_bytes + transport._socket.get_write_buffer_size())
        return runs_turn

    monkeypatch.setattr(Transport, "_feed", spy)
    sent = numbered(60, MESSAGE_BYTES)
    async with mortal_broker(tmp_path) as broker:
        with await talk(broker, lambda: connect(broker, receive_buffer_bytes=4096)) as client:
            await talk(broker, declare, client, "q")
            await talk(broker, lambda: publish(client, "q", sent, mode=1))

            def converse() -> list[bytes]:
                client.send(method_frame(1, commands.Basic.Get(queue="q", no_ack=True)) * len(sent))
                bodies = []
                for _ in sent:
                    client.expect(commands.Basic.GetOk, 1)
                    bodies.append(client.expect_content(1)[1])
                return bodies

            assert await talk(broker, converse) == sent
    assert max(unsent) < 2 * REPLIES_BYTES + 2 * MESSAGE_BYTES


# ---- basic.get -------------------------------------------------------------------------------------------------------


async def test_a_get_that_waits_twice_is_answered_in_its_place(tmp_path: Path) -> None:
    """A basic.get whose slot was emptied by another client waits for the next slot, and so do later methods."""
    sections = {**SMALL, "slots": {"window_messages": 10}}
    async with mortal_broker(tmp_path, sections) as broker:
        engine = broker.engines["/"]
        with await talk(broker, connect, broker) as winner, await talk(broker, connect, broker) as loser:

            def prepare() -> None:
                declare(winner, "q", durable=True)
                publish(winner, "q", numbered(20, 10))
                for _ in range(9):
                    get(winner, "q")

            await talk(broker, prepare)
            page_out(broker, "q")
            first, second = (slot for slot in queue_of(broker, "q").level.manager.slots.values() if slot.length)
            waiting = engine.reader._waiting

            async def wait_for(slot: Slot, count: int) -> None:
                await wait_until_async(lambda: len(waiting.get(slot, ())) == count, f"{count} that wait for the read")

            gate = Gate(broker.engines["/"].store.slots, "read")
            fetch = commands.Basic.Get(queue="q", no_ack=True)
            winner.method(1, fetch)
            await wait_for(first, 1)
            loser.send(method_frame(1, fetch), method_frame(1, commands.Queue.Declare(queue="q", passive=True)))
            await wait_for(first, 2)
            later = Gate(broker.engines["/"].store.slots, "read")
            gate.open()
            await talk(broker, winner.expect, commands.Basic.GetOk, 1)
            assert (await talk(broker, winner.expect_content, 1))[1] == numbered(10, 10)[9]
            assert await talk(broker, later.reached.wait, DEADLINE_S)
            await talk(broker, declare, winner, "another")  # a round trip, and so several turns, later
            assert not loser.readable(0)
            later.open()
            await talk(broker, loser.expect, commands.Basic.GetOk, 1)
            assert (await talk(broker, loser.expect_content, 1))[1] == numbered(11, 10)[10]
            assert (await talk(broker, loser.expect, commands.Queue.DeclareOk, 1)).message_count == 9
            await reads_are_over(broker)
        assert second.ready == 9


class WalkedSlots(dict[int, Slot]):
    """A queue's slots that count the slots that are iterated over."""

    walked = 0

    def values(self) -> Any:
        """Yield the slots, counting."""
        return self._counted(super().values())

    def items(self) -> Any:
        """Yield ids and slots, counting."""
        return self._counted(super().items())

    def __iter__(self) -> Iterator[int]:
        return iter(self._counted(super().keys()))

    def _counted(self, walk: Any) -> Any:
        for step in walk:
            self.walked += 1
            yield step


async def test_a_get_costs_the_same_in_a_long_queue(tmp_path: Path) -> None:
    """basic.get without consumers returns its one slot, and reads no other."""
    async with mortal_broker(tmp_path, {"slots": {"window_messages": 10}}) as broker:
        with await talk(broker, connect, broker) as client:
            await talk(broker, declare, client, "q")
            await talk(broker, lambda: publish(client, "q", numbered(1000, 10), mode=1))
            manager = queue_of(broker, "q").level.manager
            walked = manager.slots = WalkedSlots(manager.slots)
            assert len(walked) > 100
            for number in range(20):
                assert await talk(broker, get, client, "q") == (b"%06d" % number + bytes(4), False)
            assert walked.walked <= 20
            assert all(slot.owner is None for slot in walked.values())


async def test_a_connections_output_goes_round_its_channels(tmp_path: Path) -> None:
    """Two backlogs on one channel, with a worker each, do not delay the message of another channel's queue."""
    async with mortal_broker(tmp_path, {"flow": {"high_water_bytes": 16 << 10}}) as broker:
        with await talk(broker, lambda: connect(broker, receive_buffer_bytes=4096)) as client:

            def converse() -> int:
                client.open_channel(2)
                declare(client, "first", "second", "lone")
                for name in ("first", "second"):
                    publish(client, name, numbered(500, 1000), mode=1)
                publish(client, "lone", [b"the one"], mode=1)
                start_consumers(client, (1, "first"), (1, "second"), (2, "lone"), no_ack=True)
                return deliveries_before(client, "lone", acks=False)

            assert await talk(broker, converse) < 200
