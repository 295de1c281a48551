"""The disk alarm: too little free disk blocks publishers, not consumers; with free space all messages are accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aio_pika
from pamqp import commands
from structlog.testing import capture_logs

from broker.cli.control_client import ask
from tests.deadline import DEADLINE_S, wait_until_async
from tests.filling_disk import FillingDisk
from tests.in_process import client_of, queue_of, running_broker
from tests.raw_client import RawClient, publish_frames

GIB = 1 << 30


def conversation(port: int, set_free: Callable[[int], None]) -> list[str]:
    """Publish and consume while the disk fills and empties; return the received messages, in order."""
    seen: list[str] = []
    with RawClient("127.0.0.1", port) as publisher, RawClient("127.0.0.1", port) as consumer:
        for client in (publisher, consumer):
            client.open()
            client.open_channel(1)
        publisher.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        publisher.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        publisher.send(publish_frames(1, "", "q", b"early"))
        publisher.expect(commands.Basic.Ack, 1)
        set_free(GIB // 2)
        seen.append(publisher.expect(commands.Connection.Blocked, 0).reason)
        publisher.send(publish_frames(1, "", "q", b"late"))
        consumer.call(1, commands.Basic.Consume(queue="q", no_ack=True), commands.Basic.ConsumeOk)
        consumer.expect(commands.Basic.Deliver, 1)
        seen.append(consumer.expect_content(1)[1].decode())
        passive = commands.Queue.Declare(queue="q", passive=True)
        seen.append(str(consumer.call(1, passive, commands.Queue.DeclareOk).message_count))
        set_free(10 * GIB)
        publisher.expect(commands.Connection.Unblocked, 0)
        publisher.expect(commands.Basic.Ack, 1)
        consumer.expect(commands.Basic.Deliver, 1)
        seen.append(consumer.expect_content(1)[1].decode())
    return seen


async def test_disk_alarm_comes_and_goes(tmp_path: Path) -> None:
    """A publisher learns why it is blocked and loses nothing; a consumer drains the queue meanwhile."""
    disk = FillingDisk()
    limits = {"disk_free_min_bytes": GIB}
    async with running_broker(tmp_path, disk, store=limits, flow={"check_interval_ms": 20}) as broker:
        port = broker.listener.port
        seen = await asyncio.to_thread(conversation, port, lambda free: setattr(disk, "free", free))
        assert seen == ["low on disk", "early", "0", "late"]
        assert queue_of(broker, "q").ready == 0
        assert not broker.clients.alarms.alarms


async def test_operator_sees_who_is_blocked(tmp_path: Path) -> None:
    """The publisher's state shows blocked during the alarm, the consumer's does not, and status counts both."""
    disk = FillingDisk()

    async def seen() -> tuple[list[str], int]:
        """Return the states of all connections, and the number of blocked ones."""
        rows: list[dict[str, Any]] = await asyncio.to_thread(ask, str(tmp_path), "list_connections")
        status = await asyncio.to_thread(ask, str(tmp_path), "status")
        return sorted(row["state"] for row in rows), status["connections_blocked"]

    limits = {"disk_free_min_bytes": GIB}
    async with (
        running_broker(tmp_path, disk, store=limits, flow={"check_interval_ms": 20}) as broker,
        client_of(broker) as publisher,
        client_of(broker),
    ):
        await publisher.default_exchange.publish(aio_pika.Message(b"m"), "nowhere")
        assert await seen() == (["running", "running"], 0)
        disk.free = GIB // 2
        await wait_until_async(lambda: bool(broker.clients.alarms.blocked), "the publisher is blocked")
        assert await seen() == (["blocked", "running"], 1)
        disk.free = 10 * GIB
        await wait_until_async(lambda: not broker.clients.alarms.blocked, "nobody is blocked")
        assert await seen() == (["running", "running"], 0)


async def test_a_blocked_publisher_is_closed_at_once(tmp_path: Path) -> None:
    """One that an operator closes is read again, so that its close-ok arrives; its late publishes are discarded."""
    disk = FillingDisk()
    limits = {"disk_free_min_bytes": GIB}
    async with running_broker(tmp_path, disk, store=limits, flow={"check_interval_ms": 20}) as broker:

        def converse() -> None:
            with RawClient("127.0.0.1", broker.listener.port) as client:
                client.open()
                client.open_channel(1)
                client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
                client.send(publish_frames(1, "", "q", b"early"))
                client.call(1, commands.Queue.Declare(queue="q", passive=True), commands.Queue.DeclareOk)
                disk.free = GIB // 2
                client.expect(commands.Connection.Blocked, 0)
                client.send(publish_frames(1, "", "q", b"late") * 100)
                (row,) = ask(str(tmp_path), "list_connections")
                broker._timers.close()  # no tick closes it
                ask(str(tmp_path), "close_connection", name=row["name"])
                client.expect_connection_close(320)  # and the end of the connection

        await asyncio.to_thread(converse)
        assert queue_of(broker, "q").ready == 1


async def test_an_alarm_does_not_stop_the_answer_of_a_closing_publisher(tmp_path: Path) -> None:
    """One that was asked to close before the alarm is read on, and hears nothing of the alarm."""
    async with running_broker(tmp_path) as broker:
        loop = asyncio.get_running_loop()

        async def alarm() -> None:
            broker.clients.alarms.raise_outage("of the test")
            broker.clients.throttle.alarms_changed()

        def converse() -> None:
            with RawClient("127.0.0.1", broker.listener.port) as client:
                client.open()
                client.open_channel(1)
                client.send(publish_frames(1, "", "q", b"early"))
                client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
                (row,) = ask(str(tmp_path), "list_connections")
                broker._timers.close()  # no tick closes it
                ask(str(tmp_path), "close_connection", name=row["name"])
                asyncio.run_coroutine_threadsafe(alarm(), loop).result(DEADLINE_S)
                client.expect_connection_close(320)  # and the end of the connection

        await asyncio.to_thread(converse)


async def test_the_older_checkpoint_goes_first(tmp_path: Path) -> None:
    """With a disk alarm each vhost keeps one checkpoint and what that one needs of the log; afterwards two again."""
    disk = FillingDisk()
    folder = tmp_path / "vhosts" / "%2F"
    store = {"disk_free_min_bytes": GIB, "segment_bytes": 1 << 20}
    with capture_logs() as events:
        async with running_broker(tmp_path, disk, store=store) as broker:
            broker._timers.close()  # only the test measures, and takes checkpoints
            engine = broker.engines["/"]

            def checkpoints() -> int:
                return len(list(folder.glob("checkpoint-??????????")))

            async with client_of(broker) as channel:
                queue = await channel.declare_queue("q", durable=True)
                for _ in range(40):
                    message = aio_pika.Message(bytes(100_000), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                    await channel.default_exchange.publish(message, "q")
                await engine.checkpointer.take()
                for _ in range(40):
                    await (await queue.get()).ack()
            await engine.checkpointer.take()
            before = len(engine.store.log.segments)
            assert (checkpoints(), before > 2) == (2, True)
            assert engine.checkpointer.changed  # without an alarm another one would free the space
            disk.free = GIB // 2
            broker.clients.alarm_watch.measure()
            await wait_until_async(lambda: checkpoints() == 1, "the older checkpoint is gone")
            await engine.checkpointer.take()
            assert (checkpoints(), len(engine.store.log.segments)) == (1, 1)
            assert not engine.checkpointer.changed
            disk.free = 10 * GIB
            broker.clients.alarm_watch.measure()
            await engine.checkpointer.take()
            assert checkpoints() == 2
    (given_up,) = [event for event in events if event["event"] == "checkpoint.given_up"]
    assert (given_up["path"], given_up["segments"]) == (str(folder), before - 1)
