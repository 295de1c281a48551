"""During an alarm a vhost with `max-blocked-seconds` nacks publishes, or closes the connections that it has blocked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel
from structlog.testing import capture_logs

from broker.cli.control_client import ask
from broker.server import BrokerServer
from tests.filling_disk import FillingDisk
from tests.in_process import queue_of, running_broker
from tests.raw_client import RawClient, publish_frames

GIB = 1 << 30
LIMITS = {"disk_free_min_bytes": GIB}
REFUSED = "PRECONDITION_FAILED - low on disk: the message was not accepted, publish it again later"
WAIT_S = 600  # longer than any test runs


class World:
    """A broker that only the test measures and ticks, for the code that runs in a thread."""

    def __init__(self, broker: BrokerServer, disk: FillingDisk, folder: Path) -> None:
        self.broker = broker
        self.port = broker.listener.port
        self._disk = disk
        self._folder = folder
        self._loop = asyncio.get_running_loop()
        broker._timers.close()

    def fill(self) -> None:
        """Raise the alarm."""
        self._set(GIB // 2)

    def empty(self) -> None:
        """Clear the alarm."""
        self._set(10 * GIB)

    def _set(self, free: int) -> None:
        self._disk.free = free
        self.call(self.broker.clients.alarm_watch.measure)

    def call(self, function: Any) -> Any:
        """Call a function in the broker's loop."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    def tick(self, seconds: int) -> None:
        """Let seconds pass for the connections."""
        for _ in range(seconds):
            self.call(lambda: self.broker.listener._check(list(self.broker.listener.transports)))

    def limit(self, seconds: int, vhost: str = "/") -> None:
        """Set how long an alarm may block the connections of a vhost."""
        ask(str(self._folder), "set_vhost_limits", name=vhost, limits={"max-blocked-seconds": seconds})

    @contextmanager
    def channel(self, *, confirms: bool = True, vhost: str = "/") -> Iterator[BlockingChannel]:
        """Yield a channel of a new connection."""
        connection = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", self.port, virtual_host=vhost, heartbeat=0)
        )
        try:
            channel = connection.channel()
            if confirms:
                channel.confirm_delivery()
            yield channel
        finally:
            if connection.is_open:
                connection.close()

    @contextmanager
    def raw(self) -> Iterator[RawClient]:
        """Yield a raw client with a channel in confirm mode."""
        with RawClient("127.0.0.1", self.port).with_channel() as client:
            client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
            yield client


async def within(folder: Path, story: Any, disk: FillingDisk | None = None) -> None:
    """Tell a story, in a thread, of a broker on a disk that fills."""
    disk = disk or FillingDisk()
    async with running_broker(folder, disk, store=LIMITS) as broker:
        await asyncio.to_thread(story, World(broker, disk, folder))


def refused(channel: BlockingChannel, key: str = "q") -> None:
    """Publish one message with confirms, which is nacked."""
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", key, b"refused")


def count(channel: BlockingChannel) -> int:
    """Return how many messages of the queue are ready."""
    return int(channel.queue_declare("q", passive=True).method.message_count)


async def test_a_blocking_client_gets_a_nack(tmp_path: Path) -> None:
    """One that published before, and one that begins during the alarm; both may continue otherwise."""

    def story(world: World) -> None:
        world.limit(0)
        with world.channel() as first:
            first.queue_declare("q")
            first.basic_publish("", "q", b"early")
            world.fill()
            with world.channel() as second:
                for channel in (first, second, first):
                    refused(channel)
                refused(second, "nowhere")
                assert count(second) == 1
                assert first.basic_get("q", auto_ack=True)[2] == b"early"
            assert not world.call(lambda: list(world.broker.clients.alarms.blocked))
            world.empty()
            first.basic_publish("", "q", b"late")
            assert first.basic_get("q", auto_ack=True)[2] == b"late"

    await within(tmp_path, story)


async def test_each_kind_of_publish_is_nacked_in_its_order(tmp_path: Path) -> None:
    """Plain ones, with an expiration, empty, large, persistent or to no queue: all of them, and no other is."""

    def story(world: World) -> None:
        world.limit(0)
        with world.raw() as client:
            client.call(1, commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)
            kinds = [
                publish_frames(1, "", "q", b"plain"),
                publish_frames(1, "", "q", b"plain"),
                publish_frames(1, "", "q", b""),
                publish_frames(1, "", "q", b"x" * 300_000),
                publish_frames(1, "", "q", b"brief", properties=commands.Basic.Properties(expiration="60000")),
                publish_frames(1, "", "q", b"safe", properties=commands.Basic.Properties(delivery_mode=2)),
                publish_frames(1, "amq.topic", "nobody", b""),
            ]
            for _ in range(3):  # so that each route is cached
                client.send(*kinds)
            answered(client, commands.Basic.Ack, 21)
            world.fill()
            client.send(*kinds, *kinds)
            answered(client, commands.Basic.Nack, 35)
            world.empty()
            client.send(*kinds)
            answered(client, commands.Basic.Ack, 42)
            declared = client.call(1, commands.Queue.Declare(queue="q", passive=True), commands.Queue.DeclareOk)
            assert declared.message_count == 24

    await within(tmp_path, story)


def answered(client: RawClient, kind: type[Any], upto: int) -> None:
    """Take confirms of one kind up to a number."""
    while client.expect(kind, 1).delivery_tag < upto:
        pass


async def test_without_confirms_the_channel_closes(tmp_path: Path) -> None:
    """A message that no one would miss closes its channel with 406; the connection stays, and so do consumers."""

    def story(world: World) -> None:
        world.limit(0)
        with world.channel(confirms=False) as channel:
            channel.queue_declare("q")
            channel.basic_publish("", "q", b"early")
            world.fill()
            channel.basic_publish("", "q", b"lost")
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
                channel.queue_declare("q", passive=True)
            assert (closed.value.reply_code, closed.value.reply_text) == (406, REFUSED)
            assert world.call(lambda: world.broker.engines["/"].vhost.tally.publishes.lost) == 1
            assert count(channel.connection.channel()) == 1

    await within(tmp_path, story)


async def test_transactions_fail_with_406(tmp_path: Path) -> None:
    """A publish, and the commit of one from before the alarm; a commit of acks alone continues."""

    def story(world: World) -> None:
        world.limit(0)
        with world.channel(confirms=False) as kept, world.channel(confirms=False) as late:
            kept.queue_declare("q")
            kept.basic_publish("", "q", b"early")
            kept.tx_select()
            kept.basic_publish("", "q", b"kept")
            assert count(kept) == 1
            late.tx_select()
            world.fill()
            late.basic_ack(late.basic_get("q")[0].delivery_tag)
            late.tx_commit()
            late.basic_publish("", "q", b"late")
            for channel in (late, kept):
                with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
                    channel.tx_commit()
                assert (closed.value.reply_code, closed.value.reply_text) == (406, REFUSED)
            assert count(kept.connection.channel()) == 0

    await within(tmp_path, story)


async def test_a_blocked_client_is_closed_in_time(tmp_path: Path) -> None:
    """One that waits for its confirm, and one that fills its socket, are closed with 406; a consumer stays."""

    def story(world: World) -> None:
        world.limit(WAIT_S)
        with world.raw() as waits, world.raw() as floods, world.raw() as consumer:
            for client in (waits, floods):
                client.send(publish_frames(1, "", "nowhere", b"early"))
                client.expect(commands.Basic.Ack, 1)
            world.fill()
            for client in (waits, floods):
                client.expect(commands.Connection.Blocked, 0)
            world.tick(WAIT_S - 1)
            waits.send(publish_frames(1, "", "q", b"late"))
            assert not waits.readable(0.1)
            sending = asyncio.run_coroutine_threadsafe(
                asyncio.to_thread(floods.send, publish_frames(1, "", "q", b"x" * 1000) * 60_000), world._loop
            )
            with pytest.raises(TimeoutError):
                sending.result(0.5)
            world.tick(1)
            sending.result(60)
            for client in (waits, floods):
                closed = client.expect_connection_close(406)
                assert closed.reply_text == (
                    f"PRECONDITION_FAILED - low on disk: publishing was blocked for {WAIT_S} s, publish again later"
                )
            consumer.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
            assert not world.call(lambda: list(world.broker.clients.alarms.blocked))

    with capture_logs() as events:
        await within(tmp_path, story)
    told = [event["blocked_s"] for event in events if event["event"] == "connection.blocked_too_long"]
    assert told == [WAIT_S, WAIT_S]


async def test_a_blocking_client_that_waits_for_its_confirm_hears_why(tmp_path: Path) -> None:
    """It would wait for ever without a limit."""

    def story(world: World) -> None:
        world.limit(WAIT_S)
        with world.channel() as channel:
            channel.basic_publish("", "nowhere", b"early")
            world.fill()
            publishing = asyncio.run_coroutine_threadsafe(
                asyncio.to_thread(channel.basic_publish, "", "nowhere", b"late"), world._loop
            )
            with pytest.raises(TimeoutError):
                publishing.result(0.2)
            world.tick(WAIT_S)
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
                publishing.result(60)
            assert closed.value.reply_code == 406

    await within(tmp_path, story)


async def test_an_alarm_that_ends_in_time_closes_nobody(tmp_path: Path) -> None:
    """The seconds count from the beginning of each alarm."""

    def story(world: World) -> None:
        world.limit(WAIT_S)
        with world.raw() as client:
            client.send(publish_frames(1, "", "nowhere", b"early"))
            client.expect(commands.Basic.Ack, 1)
            for _ in range(2):
                world.fill()
                client.expect(commands.Connection.Blocked, 0)
                world.tick(WAIT_S - 1)
                world.empty()
                client.expect(commands.Connection.Unblocked, 0)
                world.tick(1)
            client.send(publish_frames(1, "", "nowhere", b"late"))
            client.expect(commands.Basic.Ack, 1)

    await within(tmp_path, story)


async def test_a_changed_limit_holds_at_once(tmp_path: Path) -> None:
    """A blocked client is nacked when the limit becomes 0, and blocked again when there is none."""

    def story(world: World) -> None:
        with world.raw() as client:
            client.send(publish_frames(1, "", "nowhere", b"early"))
            client.expect(commands.Basic.Ack, 1)
            world.fill()
            client.expect(commands.Connection.Blocked, 0)
            client.send(publish_frames(1, "", "nowhere", b"waits"))
            world.tick(1)
            assert not client.readable(0.1)
            world.limit(0)
            world.tick(1)
            client.expect(commands.Connection.Unblocked, 0)
            client.expect(commands.Basic.Nack, 1)
            world.limit(-1)
            client.send(publish_frames(1, "", "nowhere", b"taken"))
            client.expect(commands.Connection.Blocked, 0)
            client.expect(commands.Basic.Ack, 1)
            world.empty()
            client.expect(commands.Connection.Unblocked, 0)

    await within(tmp_path, story)


async def test_each_vhost_answers_in_its_way_after_a_restart(tmp_path: Path) -> None:
    """The limit is kept, holds for an alarm that stands at the start, and for a vhost that is added meanwhile."""

    def set_limit(world: World) -> None:
        world.limit(0)
        ask(str(tmp_path), "add_vhost", name="blocks")
        ask(str(tmp_path), "set_permission", user="guest", vhost="blocks", configure=".*", write=".*", read=".*")

    def story(world: World) -> None:
        world.call(world.broker.clients.alarm_watch.measure)
        ask(str(tmp_path), "add_vhost", name="new")
        ask(str(tmp_path), "set_permission", user="guest", vhost="new", configure=".*", write=".*", read=".*")
        world.limit(0, "new")
        for vhost in ("/", "new"):
            with world.channel(vhost=vhost) as channel:
                refused(channel)
        with world.channel(vhost="blocks") as channel:
            channel.basic_publish("", "q", b"the first is taken")
            assert len(world.call(lambda: list(world.broker.clients.alarms.blocked))) == 1
            world.empty()  # so that it is read
        rows = {row["name"]: row["limits"] for row in ask(str(tmp_path), "list_vhosts")}
        assert rows == {"/": {"max-blocked-seconds": 0}, "new": {"max-blocked-seconds": 0}, "blocks": {}}
        exported = ask(str(tmp_path), "export_definitions")["parameters"]
        assert {row["vhost"] for row in exported if row["value"] == {"max-blocked-seconds": 0}} == {"/", "new"}

    await within(tmp_path, set_limit)
    disk = FillingDisk()
    disk.free = GIB // 2
    await within(tmp_path, story, disk)


class Taken:
    """The overlay's end of a link."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def take(self, body: bytes) -> None:
        """Record a message of the other broker."""
        self.bodies.append(body)

    def lost(self) -> None:
        """Hear that the link has ended."""


@pytest.mark.parametrize("seconds", [0, 1])
async def test_a_link_of_the_overlay_waits(tmp_path: Path, seconds: int) -> None:
    """It would have to connect again and again: it is blocked whatever the limit is, and loses nothing."""
    end = Taken()

    def story(world: World) -> None:
        world.limit(seconds)
        world.call(lambda: world.broker.engines["/"].vhost.accept_links(lambda _arguments, _link: end))
        with world.raw() as link:
            consume = commands.Basic.Consume(queue="amq.slotmq.overlay", no_ack=True)
            link.call(1, consume, commands.Basic.ConsumeOk)
            name = link.expect(commands.Basic.Deliver, 1).routing_key or ""
            link.expect_content(1)
            world.fill()
            link.send(publish_frames(1, "", name, b"first"))
            link.expect(commands.Connection.Blocked, 0)
            link.expect(commands.Basic.Ack, 1)
            link.send(publish_frames(1, "", name, b"second"))
            world.tick(3)
            assert not link.readable(0.1)
            world.empty()
            link.expect(commands.Connection.Unblocked, 0)
            link.expect(commands.Basic.Ack, 1)

    await within(tmp_path, story)
    assert end.bodies == [b"first", b"second"]


async def test_dead_letters_go_on(tmp_path: Path) -> None:
    """The broker's own publishes are not refused, because the messages arrived before the alarm."""

    def story(world: World) -> None:
        world.limit(0)
        with world.channel() as channel:
            channel.queue_declare("q")
            arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
            channel.queue_declare("source", arguments=arguments)
            channel.basic_publish("", "source", b"early")
            world.fill()
            channel.basic_reject(channel.basic_get("source")[0].delivery_tag, requeue=False)
            assert count(channel) == 1
        assert world.call(lambda: queue_of(world.broker, "source").ready) == 0

    await within(tmp_path, story)
