"""Clients that do not read, and alarms: memory stays bounded, and other clients are served."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest
from pamqp import commands

from tests.broker_process import BrokerProcess
from tests.deadline import wait_until
from tests.raw_client import RawClient, publish_frames

pytestmark = [pytest.mark.fault, pytest.mark.slow]

MIB = 1 << 20
STUCK = 30
WAITING, WAITING_BYTES = 12_000, 10_000
TRANSIENT = commands.Basic.Properties(delivery_mode=1)
PERSISTENT = commands.Basic.Properties(delivery_mode=2)


def client_of(process: BrokerProcess, stack: ExitStack, *, receive_buffer_bytes: int | None = None) -> RawClient:
    """Return a client with channel 1 open."""
    address = process.address
    client = RawClient(address.host, address.port, receive_buffer_bytes=receive_buffer_bytes)
    stack.enter_context(client)
    client.open()
    client.open_channel(1)
    return client


def declared(client: RawClient, queue: str) -> str:
    """Declare a durable queue and turn confirms on."""
    client.call(1, commands.Queue.Declare(queue=queue, durable=True), commands.Queue.DeclareOk)
    client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    return queue


def publish(
    client: RawClient, queue: str, count: int, size_bytes: int, *, first: int = 1, persistent: bool = False
) -> None:
    """Publish and await all confirms; `first` is the tag of the first one."""
    properties = PERSISTENT if persistent else TRANSIENT
    octets = publish_frames(1, "", queue, b"x" * size_bytes, properties=properties, piece_bytes=131_064)
    last = first + count - 1
    sent = first - 1
    while sent < last:
        step = min(200, last - sent)
        client.send(octets * step)
        sent += step
        await_confirm(client, sent)


def await_confirm(client: RawClient, tag: int) -> None:
    """Return when everything up to the tag is confirmed."""
    while client.expect(commands.Basic.Ack, 1).delivery_tag < tag:
        pass


def ready(client: RawClient, queue: str) -> int:
    """Return how many messages are ready."""
    declare = commands.Queue.Declare(queue=queue, passive=True)
    return int(client.call(1, declare, commands.Queue.DeclareOk).message_count or 0)


def settled(value: Callable[[], int], what: str) -> int:
    """Return a value once it has stopped changing."""
    seen: list[int] = []

    def steady() -> bool:
        seen.append(value())
        return len(seen) > 50 and len(set(seen[-50:])) == 1

    wait_until(steady, what)
    return seen[-1]


def test_consumers_that_read_nothing_cost_little(broker_process: BrokerProcess) -> None:
    """Consumers that read nothing do not bring their queued messages into memory, and others are served.

    Some memory may be in use: the allocator keeps part of the slots that were read in several threads.
    """
    broker_process.environment["SLOTMQ_MEMORY__RESIDENT_MAX_BYTES"] = str(8 * MIB)
    broker_process.start()
    with ExitStack() as stack:
        publisher = client_of(broker_process, stack)
        queue, other = declared(publisher, "stuck"), declared(publisher, "other")
        publish(publisher, queue, WAITING, WAITING_BYTES)
        # The first connections cause the allocations that happen once.
        for _ in range(2):
            stuck = client_of(broker_process, stack, receive_buffer_bytes=4096)
            stuck.method(1, commands.Basic.Consume(queue=queue))
        settled(lambda: ready(publisher, queue), "deliveries stopped")
        before_bytes = broker_process.rss_bytes()
        for _ in range(STUCK):
            stuck = client_of(broker_process, stack, receive_buffer_bytes=4096)
            stuck.method(1, commands.Basic.Consume(queue=queue))
        assert settled(lambda: ready(publisher, queue), "deliveries stopped") > 0
        publish(publisher, other, 2000, 1000, first=WAITING + 1)
        busy = client_of(broker_process, stack)
        busy.call(1, commands.Basic.Consume(queue=other, no_ack=True), commands.Basic.ConsumeOk)
        for _ in range(2000):
            busy.expect(commands.Basic.Deliver, 1)
            busy.expect_content(1)
        growth_bytes = broker_process.rss_bytes() - before_bytes
        assert growth_bytes < WAITING * WAITING_BYTES * 2 // 3, f"{growth_bytes / MIB:.1f} MiB for {STUCK} connections"
    assert not broker_process.errors()


def test_publisher_that_reads_no_confirms(broker_process: BrokerProcess) -> None:
    """The broker stops reading a publisher that reads neither confirms nor returns: its output buffer is bounded."""
    broker_process.start()
    with ExitStack() as stack:
        control = client_of(broker_process, stack)
        queue = declared(control, "q")
        stuck = client_of(broker_process, stack, receive_buffer_bytes=4096)
        before_bytes = broker_process.rss_bytes()
        # Each publish is returned with its body: an answer as large as the request.
        octets = publish_frames(1, "", "nobody", b"r" * 50_000, mandatory=True, piece_bytes=131_064)
        stuck.socket.setblocking(False)
        sent_bytes = 0
        refused = rounds = 0
        while sent_bytes < 200 * MIB and refused < 200:
            try:
                sent_bytes += stuck.socket.send(octets[sent_bytes % len(octets) :])
                refused = 0
            except BlockingIOError:
                refused += 1
                rounds += 1
                publish(control, queue, 1, 10, first=rounds)  # another client is served meanwhile
        assert sent_bytes < 100 * MIB, "it was read on and on"
        growth_bytes = broker_process.rss_bytes() - before_bytes
        assert growth_bytes < 32 * MIB, f"{growth_bytes / MIB:.1f} MiB for one connection"
    assert not broker_process.errors()


def test_memory_alarm_blocks_publishers_only(broker_process: BrokerProcess) -> None:
    """At the memory limit publishers are blocked and consumers continue; the log names the limit's setting."""
    broker_process.environment["SLOTMQ_MEMORY__RESIDENT_MAX_BYTES"] = str(1024 * MIB)
    broker_process.environment["SLOTMQ_FLOW__CHECK_INTERVAL_MS"] = "20"
    broker_process.start()
    idle_bytes = broker_process.rss_bytes()
    assert broker_process.terminate() == 0
    broker_process.environment["SLOTMQ_MEMORY__ALARM_BYTES"] = str(idle_bytes + 40 * MIB)
    broker_process.start()
    with ExitStack() as stack:
        publisher, consumer = client_of(broker_process, stack), client_of(broker_process, stack)
        declared(consumer, "q")
        octets = publish_frames(1, "", "q", b"m" * 100_000, properties=TRANSIENT, piece_bytes=131_064)
        sent = 0
        publisher.socket.settimeout(0.2)
        while not publisher.readable(0) and sent < 4000:
            try:
                publisher.socket.sendall(octets)
                sent += 1
            except TimeoutError:
                break  # the broker no longer reads it
        publisher.socket.settimeout(20)
        assert publisher.expect(commands.Connection.Blocked, 0).reason == "low on memory"
        assert broker_process.rss_bytes() < idle_bytes + 140 * MIB
        wait_until(lambda: "alarm.raised" in broker_process.stderr(), "the alarm is logged")
        raised = [event for event in broker_process.log_events() if event["event"] == "alarm.raised"]
        assert [event["setting"] for event in raised] == ["memory.alarm_bytes"]
        assert raised[0]["level"] == "warning"
        # Consumers continue: every accepted message is delivered.
        waiting = settled(lambda: ready(consumer, "q"), "no more is taken")
        assert waiting > 100
        consumer.call(1, commands.Basic.Consume(queue="q", no_ack=True), commands.Basic.ConsumeOk)
        for _ in range(waiting):
            consumer.expect(commands.Basic.Deliver, 1)
            assert len(consumer.expect_content(1)[1]) == 100_000
    assert not broker_process.errors()


def test_blocked_client_without_the_capability(broker_process: BrokerProcess) -> None:
    """During an alarm the broker does not read a publisher without the connection.blocked capability."""
    broker_process.environment["SLOTMQ_MEMORY__ALARM_BYTES"] = "1"
    broker_process.environment["SLOTMQ_FLOW__CHECK_INTERVAL_MS"] = "20"
    broker_process.start()
    wait_until(lambda: any(event["event"] == "alarm.raised" for event in broker_process.log_events()), "the alarm")
    address = broker_process.address
    with RawClient(address.host, address.port) as client:
        client.open(capabilities={})
        client.open_channel(1)
        client.send(publish_frames(1, "", "nobody", b"x", mandatory=True))
        client.expect(commands.Basic.Return, 1)  # accepted: a connection counts as a publisher after its first publish
        client.expect_content(1)
        client.method(1, commands.Basic.Qos(prefetch_count=1))
        assert not client.readable(0.5)
    with ExitStack() as stack:
        other = client_of(broker_process, stack)
        declared(other, "consumers may declare")
    assert not broker_process.errors()
