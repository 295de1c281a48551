"""A quorum queue persists every message it accepts, whatever the publish path and the delivery mode."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

import pika
import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel

from tests.broker_process import BrokerProcess
from tests.deadline import wait_until
from tests.fault.broker_clients import Client
from tests.fault.broker_life import Life, new_disk, new_history
from tests.integration.pika.conversation import drain, parameters, ready
from tests.raw_client import publish_frames

pytestmark = pytest.mark.fault

QUORUM: Final = {"x-queue-type": "quorum"}
COUNT: Final = 100
BODIES: Final = [b"%d" % number for number in range(COUNT)]
TRANSIENT: Final = pika.BasicProperties(message_id="m", headers={"n": 1}, delivery_mode=1)
UNSAID: Final = pika.BasicProperties(message_id="m", headers={"n": 1})


def publish(channel: BlockingChannel, exchange: str, key: str, properties: pika.BasicProperties) -> None:
    """Publish all bodies without waiting for confirms."""
    for body in BODIES:
        channel.basic_publish(exchange, key, body, properties)


def in_a_run(channel: BlockingChannel, queue: str) -> None:
    """Publish straight into the queue."""
    publish(channel, "", queue, TRANSIENT)


def without_delivery_mode(channel: BlockingChannel, queue: str) -> None:
    """Publish straight into the queue, without a delivery mode."""
    publish(channel, "", queue, UNSAID)


def by_a_limited_queue(channel: BlockingChannel, queue: str) -> None:
    """Publish to a second queue too, whose limit needs a check of each message."""
    channel.queue_declare("limited", durable=True, arguments={"x-max-length": 10})
    channel.queue_bind("limited", "amq.fanout")
    channel.queue_bind(queue, "amq.fanout")
    publish(channel, "amq.fanout", "", TRANSIENT)


def with_expiration(channel: BlockingChannel, queue: str) -> None:
    """Publish with a property that the broker must read."""
    publish(channel, "", queue, pika.BasicProperties(message_id="m", headers={"n": 1}, expiration="3600000"))


def as_copies(channel: BlockingChannel, queue: str) -> None:
    """Publish as CC and as BCC of messages for a classic queue."""
    for place, body in enumerate(BODIES):
        header = "BCC" if place % 2 else "CC"
        properties = pika.BasicProperties(message_id="m", headers={"n": 1, header: [queue]}, delivery_mode=1)
        channel.basic_publish("", "classic", body, properties)


def as_dead_letters(channel: BlockingChannel, queue: str) -> None:
    """Publish to a classic queue, whose consumer rejects the messages."""
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    channel.queue_declare("source", durable=True, arguments=arguments)
    publish(channel, "", "source", TRANSIENT)
    for _ in BODIES:
        channel.basic_get("source")
    channel.basic_nack(0, multiple=True, requeue=False)


def numbered(channel: BlockingChannel, queue: str) -> None:
    """Publish numbered messages straight into the queue."""
    for place, body in enumerate(BODIES):
        properties = pika.BasicProperties(message_id="m", headers={"n": 1, "x-producer": "p", "x-seq": place})
        channel.basic_publish("", queue, body, properties)


def in_a_transaction(channel: BlockingChannel, queue: str) -> None:
    """Publish all messages in one transaction."""
    with channel.connection.channel() as own:
        own.tx_select()
        publish(own, "", queue, TRANSIENT)
        own.tx_commit()


def delayed(channel: BlockingChannel, queue: str) -> None:
    """Publish to a delayed exchange, which releases the messages."""
    channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"})
    channel.queue_bind(queue, "later", "k")
    publish(channel, "later", "k", pika.BasicProperties(message_id="m", headers={"n": 1, "x-delay": 1}))


def beside_others(channel: BlockingChannel, queue: str) -> None:
    """Publish to a classic durable queue and a transient one too, which lose transient messages later."""
    channel.exchange_declare("beside", "fanout")
    channel.queue_declare("passing")
    for target in ("classic", "passing", queue):
        channel.queue_bind(target, "beside")
    publish(channel, "beside", "", TRANSIENT)


WAYS: Final[list[Callable[[BlockingChannel, str], None]]] = [
    in_a_run,
    without_delivery_mode,
    by_a_limited_queue,
    with_expiration,
    as_copies,
    as_dead_letters,
    numbered,
    in_a_transaction,
    delayed,
    beside_others,
]


def barrier(connection: pika.BlockingConnection) -> None:
    """Return when everything the broker did so far is on disk: a later publish is confirmed."""
    with connection.channel() as channel:
        channel.confirm_delivery()
        channel.queue_declare("barrier", durable=True, arguments=QUORUM)
        channel.basic_publish("", "barrier", b"")


def end(process: BrokerProcess, *, kill: bool) -> None:
    """End the broker and start it again."""
    process.restart(kill=kill)
    assert process.errors() == []


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_quorum_queue_keeps_every_message(broker_process: BrokerProcess, kill: bool) -> None:
    """All messages are there unchanged after a restart; a classic queue has lost the transient ones."""
    broker_process.environment["SLOTMQ_SERVER__DRAIN_TIMEOUT_MS"] = "200"
    broker_process.start()
    with pika.BlockingConnection(parameters(broker_process.address)) as connection:
        channel = connection.channel()
        channel.queue_declare("classic", durable=True)
        for way in WAYS:
            channel.queue_declare(way.__name__, durable=True, arguments=QUORUM)
            way(channel, way.__name__)
        wait_until(lambda: all(ready(channel, way.__name__) == COUNT for way in WAYS), "all messages")
        barrier(connection)
    end(broker_process, kill=kill)
    with pika.BlockingConnection(parameters(broker_process.address)) as connection:
        channel = connection.channel()
        assert ready(channel, "classic") == 0
        for way in WAYS:
            found = [channel.basic_get(way.__name__, auto_ack=True) for _ in range(ready(channel, way.__name__))]
            assert sorted(int(body) for _, _, body in found) == list(range(COUNT)), way.__doc__
            assert {properties.message_id for _, properties, _ in found} == {"m"}, way.__doc__
            assert {properties.headers["n"] for _, properties, _ in found} == {1}, way.__doc__
            assert {properties.delivery_mode for _, properties, _ in found} <= {None, 1}, way.__doc__
        barrier(connection)
    end(broker_process, kill=kill)
    with pika.BlockingConnection(parameters(broker_process.address)) as connection:
        channel = connection.channel()
        assert {way.__name__: ready(channel, way.__name__) for way in WAYS} == {way.__name__: 0 for way in WAYS}


def test_a_number_of_a_transient_message_is_kept_with_it(broker_process: BrokerProcess) -> None:
    """The same number, published again after a kill, is a duplicate."""
    broker_process.start()
    for known in (0, 1):
        with pika.BlockingConnection(parameters(broker_process.address)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            assert channel.queue_declare("q", durable=True, arguments=QUORUM).method.message_count == known
            properties = pika.BasicProperties(headers={"x-producer": "p", "x-seq": 1})
            channel.basic_publish("", "q", b"once", properties)
            assert ready(channel, "q") == 1
        broker_process.restart()


def test_a_slot_of_kept_and_forgotten_messages(broker_process: BrokerProcess) -> None:
    """A classic queue beside a quorum queue settles, pages and restarts normally, through many slots and segments."""
    broker_process.environment |= {
        "SLOTMQ_SLOTS__WINDOW_MESSAGES": "10",
        "SLOTMQ_MEMORY__RESIDENT_MAX_BYTES": str(1 << 20),
        "SLOTMQ_STORE__SEGMENT_BYTES": str(1 << 20),
        "SLOTMQ_STORE__CHECKPOINT_INTERVAL_MS": "1000",
    }
    broker_process.start()
    body = b"x" * 8000
    with pika.BlockingConnection(parameters(broker_process.address)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True, arguments=QUORUM)
        channel.queue_declare("classic", durable=True)
        for queue in ("classic", "q"):
            channel.queue_bind(queue, "amq.fanout")
        for number in range(600):
            properties = pika.BasicProperties(delivery_mode=1 + number % 2)
            channel.basic_publish("amq.fanout", "", b"%d %b" % (number, body), properties)
        wait_until(lambda: ready(channel, "classic") == 600, "all messages")
        for _ in range(50):
            channel.basic_get("classic", auto_ack=True)
            channel.basic_get("q", auto_ack=True)
        barrier(connection)
    broker_process.restart()
    with pika.BlockingConnection(parameters(broker_process.address)) as connection:
        channel = connection.channel()
        assert [int(body.split()[0]) for body in drain(channel, "classic")] == list(range(51, 600, 2))
        assert [int(body.split()[0]) for body in drain(channel, "q")] == list(range(50, 600))
    assert broker_process.errors() == []


# -- a power loss ------------------------------------------------------------------------------------------------------


def confirmed_publishes(client: Client) -> None:
    """Declare a quorum queue and publish ten transient messages on each of two paths; return after the confirms."""
    arguments: dict[str, Any] = {"x-queue-type": "quorum"}
    for queue in ("straight", "looked-at"):
        declare = commands.Queue.Declare(queue=queue, durable=True, arguments=arguments)
        client.call(declare, commands.Queue.DeclareOk)
        arguments = arguments | {"x-message-ttl": 3_600_000}
    for _ in range(10):
        client.raw.send(publish_frames(1, "", "straight", b"1"))
        client.raw.send(publish_frames(1, "", "looked-at", b"1"))
    tag = 0
    while tag < 20:
        tag = client.raw.next().value.delivery_tag


def counted(client: Client) -> list[int | None]:
    """Count the messages of the two queues."""
    found = []
    for queue in ("straight", "looked-at"):
        declare = commands.Queue.Declare(queue=queue, passive=True)
        found.append(client.call(declare, commands.Queue.DeclareOk).message_count)
    return found


@pytest.mark.usefixtures("quiet")
async def test_a_confirm_of_a_quorum_queue_waits_for_the_sync() -> None:
    """Confirmed messages survive a power loss, transient or not."""
    disk = new_disk()
    for seed in range(3):
        life = Life(disk, new_history(), Random(seed))
        assert await life.begin()
        await life.say(confirmed_publishes, "publisher", tolerant=False)
        await life.kill()
        disk = life.files.disk.after_loss(seed)
        life = Life(disk, new_history(), Random(seed))
        assert await life.begin()
        assert await life.say(counted, "counter", tolerant=False) == [10 * (seed + 1)] * 2
        await life.kill()
        disk = life.files.disk.after_kill()
