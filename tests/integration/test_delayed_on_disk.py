"""Delayed messages beyond memory: their cost in memory and at a start, and their order of release."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, Final

import pika
import pytest
from pamqp import commands

from broker.core.deadlines import Deadlines
from broker.core.delayed import Delay
from broker.core.message.delay import due_ms_of
from broker.core.queue.due_moments import NEAR_MAX
from broker.core.queue.kinds import holding_name
from broker.server import BrokerServer
from broker.store.stored_slots import StoredSlots
from broker.testing import VirtualClock
from tests.broker_process import BrokerAddress, BrokerProcess
from tests.deadline import DEADLINE_S, wait_until_async
from tests.in_process import queue_of, timed_broker
from tests.integration.pika.conversation import drain, parameters, ready
from tests.raw_client import RawClient, publish_frames
from tests.raw_talk import page_out, talk

WINDOW: Final = 40
SECTIONS: Final[dict[str, Any]] = {"slots": {"window_messages": WINDOW}, "memory": {"resident_max_bytes": 1 << 20}}
BODY: Final = bytes(200)
HOUR_MS: Final = 3_600_000


def hold(address: BrokerAddress, delays_ms: list[int], delivery_mode: int = 2, durable: bool = True) -> None:
    """Declare a delayed exchange with a bound queue, and publish; return after the confirms."""
    with RawClient(address.host, address.port) as client:
        client.open()
        client.method(1, commands.Channel.Open())
        arguments: Any = {"x-delayed-type": "direct"}
        client.method(1, commands.Exchange.Declare(0, "x", "x-delayed-message", durable=durable, arguments=arguments))
        client.method(1, commands.Queue.Declare(queue="q", durable=True))
        client.method(1, commands.Queue.Bind(queue="q", exchange="x", routing_key="k"))
        client.method(1, commands.Confirm.Select())
        for number, delay_ms in enumerate(delays_ms):
            properties = commands.Basic.Properties(
                delivery_mode=delivery_mode, message_id=str(number), headers={"x-delay": delay_ms}
            )
            client.send(publish_frames(1, "x", "k", b"%d %b" % (number, BODY), properties=properties))
        value = None
        while not isinstance(value, commands.Basic.Ack) or value.delivery_tag != len(delays_ms):
            value = client.next().value


def numbers_in(address: BrokerAddress, queue: str = "q") -> list[int]:
    """Fetch everything from a queue and return the numbers."""
    with pika.BlockingConnection(parameters(address)) as connection:
        return [int(body.split()[0]) for body in drain(connection.channel(), queue)]


def delay_of_x(broker: BrokerServer) -> Delay:
    """Return the task that releases the messages of the exchange."""
    return broker.engines["/"].vhost.delays._by_name["x"]


def in_memory(broker: BrokerServer) -> int:
    """Count the held messages that are in memory."""
    slots = queue_of(broker, holding_name("x")).level.manager.slots.values()
    return sum(len(slot.contents or ()) for slot in slots)


class Counted:
    """Counts the reads of the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks = 0  # of the entries of a slot
        self.messages = 0
        read_due, read_slot = StoredSlots.read_due, StoredSlots.read

        def counted_look(slots: StoredSlots, *arguments: Any) -> list[int]:
            self.looks += 1
            return read_due(slots, *arguments)

        def counted_read(slots: StoredSlots, *arguments: Any) -> list[Any]:
            found: list[Any] = read_slot(slots, *arguments)
            self.messages += sum(message is not None for message in found)
            return found

        monkeypatch.setattr(StoredSlots, "read_due", counted_look)
        monkeypatch.setattr(StoredSlots, "read", counted_read)


async def test_held_messages_cost_memory_and_a_start_by_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages spread over hours are on disk; a start reads entries only, and each message is read once, when due."""
    clock = VirtualClock()
    random = Random(1)
    count = 60 * WINDOW
    delays_ms = [random.randrange(1, HOUR_MS) for _ in range(count)]
    expected = [number for _, number in sorted((delay_ms, number) for number, delay_ms in enumerate(delays_ms))]
    async with timed_broker(tmp_path, clock, **SECTIONS) as broker:
        await talk(broker.server, hold, BrokerAddress("127.0.0.1", broker.port), delays_ms)
        await broker.idle()
        assert len(delay_of_x(broker.server)._moments._near) == 0
        await wait_until_async(lambda: in_memory(broker.server) <= 10 * WINDOW, "most of it on disk")
    counted = Counted(monkeypatch)
    async with timed_broker(tmp_path, clock, **SECTIONS) as broker:
        await broker.idle()
        moments = delay_of_x(broker.server)._moments
        slots = len(moments._by_first)
        assert 60 <= slots <= 70  # a turn may have ended one read early
        assert (counted.looks, counted.messages, in_memory(broker.server), len(moments._near)) == (slots, 0, 0, 0)
        clock.advance(HOUR_MS / 2000)
        await broker.idle()
        half = sum(delay_ms <= HOUR_MS // 2 for delay_ms in delays_ms)
        assert queue_of(broker.server, "q").ready == half
        assert counted.messages <= half
        assert counted.looks <= 2 * slots
        assert len(moments._near) <= NEAR_MAX
        clock.advance(HOUR_MS / 2000)
        await broker.idle()
        address = BrokerAddress("127.0.0.1", broker.port)
        assert await talk(broker.server, numbers_in, address) == expected


async def test_a_part_of_a_slot_has_its_own_moments(tmp_path: Path) -> None:
    """A checkpoint writes the moments of a slot's first messages, and paging it out those of the others."""
    delays_ms = [HOUR_MS + 1000 * number for number in range(WINDOW - 5)]
    async with timed_broker(tmp_path, **SECTIONS) as broker:
        address = BrokerAddress("127.0.0.1", broker.port)
        engine = broker.server.engines["/"]
        await talk(broker.server, hold, address, delays_ms[:10])
        await engine.checkpointer.take()
        await talk(broker.server, hold, address, delays_ms[10:])
        stream = queue_of(broker.server, holding_name("x")).level
        (slot,) = [slot for slot in stream.manager.slots.values() if slot.length]
        assert slot.contents is not None
        moments = [due_ms_of(message) for message in slot.contents]
        assert slot.logged == 10
        page_out(broker.server, holding_name("x"))
        assert engine.store.slots.read_due(stream.number, slot.first, slot.end) == moments
        assert len(set(moments)) == len(delays_ms)


async def test_what_fell_due_while_the_broker_was_down_comes_in_order(tmp_path: Path) -> None:
    """An overdue backlog of many slots, with the earliest messages in the last slots, is released in due order."""
    clock = VirtualClock()
    count = 20 * WINDOW
    delays_ms = [count - number for number in range(count)]
    async with timed_broker(tmp_path, clock, **SECTIONS) as broker:
        address = BrokerAddress("127.0.0.1", broker.port)
        await talk(broker.server, hold, address, [*delays_ms, 2 * HOUR_MS], 1)
    clock.advance(HOUR_MS / 1000)
    async with timed_broker(tmp_path, clock, **SECTIONS) as broker:
        await broker.idle()
        address = BrokerAddress("127.0.0.1", broker.port)
        assert await talk(broker.server, numbers_in, address) == list(reversed(range(count)))
        assert queue_of(broker.server, holding_name("x")).ready == 1


async def test_moments_of_damaged_entries_are_read_from_the_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damaged entries hold no due times, which are then read from the messages."""
    clock = VirtualClock()
    count = 3 * WINDOW
    async with timed_broker(tmp_path, clock, **SECTIONS) as broker:
        address = BrokerAddress("127.0.0.1", broker.port)
        await talk(broker.server, hold, address, [1000 * (1 + number % 7) for number in range(count)])
    monkeypatch.setattr(StoredSlots, "read_due", lambda _store, _number, first, end: [0] * (end - first))
    async with timed_broker(tmp_path, clock, **SECTIONS) as broker:
        await broker.idle()
        clock.advance(7)
        await broker.idle()
        address = BrokerAddress("127.0.0.1", broker.port)
        assert await talk(broker.server, numbers_in, address) == sorted(range(count), key=lambda number: number % 7)


@pytest.mark.interpreted("a method of the deadlines is replaced")
async def test_a_backlog_that_is_due_at_once_comes_turn_by_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much is due, a turn releases its share, and all messages arrive in publishing order."""
    clock = VirtualClock()
    count = 30 * WINDOW
    async with timed_broker(tmp_path, clock, **SECTIONS) as broker:
        address = BrokerAddress("127.0.0.1", broker.port)
        await talk(broker.server, hold, address, [1000] * count)
        await broker.idle()
        queue = queue_of(broker.server, "q")
        most, run = 0, Deadlines.run

        def counted(deadlines: Deadlines, now_ms: int) -> None:
            nonlocal most
            before = queue.ready
            run(deadlines, now_ms)
            most = max(most, queue.ready - before)

        monkeypatch.setattr(Deadlines, "run", counted)
        clock.advance(1)
        await broker.idle()
        assert queue.ready == count
        assert most <= 251
        assert await talk(broker.server, numbers_in, address) == list(range(count))


async def test_what_a_transient_exchange_holds_is_spilled_and_comes_in_order(tmp_path: Path) -> None:
    """Slots of a transient exchange are spilled when memory is short, and their entries hold the due times too."""
    clock = VirtualClock()
    count = 60 * WINDOW
    delays_ms = [1 + number * 37 % count for number in range(count)]
    async with timed_broker(tmp_path, clock, **SECTIONS) as broker:
        address = BrokerAddress("127.0.0.1", broker.port)
        await talk(broker.server, hold, address, delays_ms, 1, False)
        await broker.idle()
        pager = broker.server.engines["/"].pager
        await wait_until_async(lambda: pager.spilled >= 10 * WINDOW, "slots that leave memory")
        clock.advance(count / 1000)
        await broker.idle()
        expected = sorted(range(count), key=delays_ms.__getitem__)
        assert await talk(broker.server, numbers_in, address) == expected


@pytest.mark.slow
def test_held_slots_survive_kill_9(broker_process: BrokerProcess) -> None:
    """After two kills, messages replayed from the log alone know their due times, and a purge leaves none."""
    broker_process.environment |= {
        "SLOTMQ_SLOTS__WINDOW_MESSAGES": str(WINDOW),
        "SLOTMQ_MEMORY__RESIDENT_MAX_BYTES": str(1 << 20),
    }
    broker_process.start()
    count = 20 * WINDOW
    hold(broker_process.address, [HOUR_MS if number % 2 else 1 + number for number in range(count)])
    for _ in range(2):
        broker_process.restart()
    with pika.BlockingConnection(parameters(broker_process.address)) as connection:
        channel = connection.channel()
        found: list[int] = []
        for method, _, body in channel.consume("q", inactivity_timeout=DEADLINE_S):
            assert method is not None, f"only {len(found)} came"
            found.append(int(body.split()[0]))
            if len(set(found)) == count // 2:
                break
        assert sorted(set(found)) == list(range(0, count, 2))
        assert ready(channel, holding_name("x")) == count // 2
        assert channel.queue_purge(holding_name("x")).method.message_count == count // 2
    assert broker_process.errors() == []
