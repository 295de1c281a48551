"""Dead letters, as pika sees them. All expectations are RabbitMQ 4.3's behaviour, except for made-up deaths."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.broker_process import BrokerProcess
from tests.deadline import wait_until
from tests.integration.pika.conversation import parameters, publish, ready


class Yard:
    """Declares exclusive queues under names of one test, and publishes, rejects and gets."""

    def __init__(self, channel: BlockingChannel, prefix: str) -> None:
        self.channel = channel
        self.prefix = prefix

    def name(self, name: str) -> str:
        return f"{self.prefix}.{name}"

    def queue(self, name: str, **arguments: Any) -> None:
        """Declare a queue; its arguments are written with underscores and without x."""
        named = {f"x-{argument.replace('_', '-')}": value for argument, value in arguments.items()}
        self.channel.queue_declare(self.name(name), exclusive=True, arguments=named)

    def publish(self, name: str, body: bytes = b"body", **properties: Any) -> None:
        self.channel.basic_publish("", self.name(name), body, pika.BasicProperties(**properties))

    def reject(self, name: str) -> None:
        """Reject the message at the head, once there is one."""
        method, _, _ = self.take(name, auto_ack=False)
        self.channel.basic_reject(method.delivery_tag, requeue=False)

    def take(self, name: str, *, auto_ack: bool = True) -> tuple[Any, pika.BasicProperties, bytes]:
        """Fetch the message at the head, once there is one."""
        queue = self.name(name)
        wait_until(lambda: ready(self.channel, queue) > 0, f"{name} has a message")
        method, properties, body = self.channel.basic_get(queue, auto_ack=auto_ack)
        assert method is not None
        return method, properties, body

    def headers(self, name: str) -> dict[str, Any]:
        """Return the headers of the message at the head; each time of death is checked and removed."""
        headers: dict[str, Any] = self.take(name)[1].headers
        for death in headers["x-death"]:
            assert isinstance(death.pop("time"), datetime)
        return headers

    def ready(self, *names: str) -> list[int]:
        return [ready(self.channel, self.name(name)) for name in names]

    def death(self, name: str, reason: str = "rejected", *, count: int = 1) -> dict[str, Any]:
        """Return the x-death entry of a message that was published to a queue by its name."""
        queue = self.name(name)
        return {"count": count, "exchange": "", "queue": queue, "reason": reason, "routing-keys": [queue]}

    def only(self, name: str, reason: str = "rejected") -> dict[str, str]:
        """Return the headers of the first and the last death of a message that died once."""
        told = {"exchange": "", "queue": self.name(name), "reason": reason}
        return {f"x-{which}-death-{what}": text for which in ("first", "last") for what, text in told.items()}


@pytest.fixture
def yard(channel: BlockingChannel, name: str) -> Yard:
    """Provide queues for one test."""
    return Yard(channel, name)


def test_rejected(yard: Yard) -> None:
    """A rejected or nacked message goes to the dead-letter exchange, under the queue's key, with its properties."""
    for queue in ("dead", "copied"):
        yard.queue(queue)
    yard.queue("q", dead_letter_exchange="", dead_letter_routing_key=yard.name("dead"))
    kept: dict[str, Any] = {
        "content_type": "text/plain",
        "delivery_mode": 2,
        "priority": 3,
        "message_id": "m",
        "reply_to": "r",
        "user_id": "guest",
        "timestamp": 1_700_000_000,
    }
    yard.publish("q", b"first", headers={"n": 1, "CC": [yard.name("copied")]}, **kept)
    yard.reject("q")
    method, properties, body = yard.take("dead")
    death = properties.headers["x-death"][0]
    del death["time"]
    assert (method.exchange, method.routing_key, method.redelivered, body) == ("", yard.name("dead"), False, b"first")
    expected = {**yard.death("q"), "routing-keys": [yard.name("q"), yard.name("copied")]}
    copies = {"CC": [yard.name("copied")]}
    assert properties.headers == {"n": 1, **copies, "x-death": [expected], **yard.only("q")}
    assert {key: getattr(properties, key) for key in kept} == kept
    assert yard.take("copied")[2] == b"first"
    assert yard.ready("copied") == [0], "the dead letter goes by the queue's key alone"
    yard.publish("q", b"second")
    yard.channel.basic_nack(yard.take("q", auto_ack=False)[0].delivery_tag, requeue=False)
    assert yard.take("dead")[2] == b"second"


def test_requeued_and_acked_are_not_dead(yard: Yard) -> None:
    """A requeued message is delivered again, an acked one is gone, and neither is a dead letter."""
    yard.queue("dead")
    yard.queue("q", dead_letter_exchange="", dead_letter_routing_key=yard.name("dead"))
    yard.publish("q")
    yard.channel.basic_nack(yard.take("q", auto_ack=False)[0].delivery_tag, requeue=True)
    yard.channel.basic_ack(yard.take("q", auto_ack=False)[0].delivery_tag)
    assert yard.ready("q", "dead") == [0, 0]


def test_expired_by_its_own_time(yard: Yard) -> None:
    """The x-death of a message that expired by its own TTL names that TTL; the dead letter does not expire again."""
    yard.queue("dead")
    yard.queue("q", dead_letter_exchange="", dead_letter_routing_key=yard.name("dead"))
    yard.publish("q", expiration="20")
    _, properties, _ = yard.take("dead")
    assert properties.expiration is None
    assert properties.headers["x-death"][0]["original-expiration"] == "20"
    assert properties.headers["x-death"][0]["reason"] == "expired"


def test_expired_by_the_time_of_its_queue(yard: Yard) -> None:
    """The x-death of a message that expired by the queue's TTL names no TTL of the message."""
    yard.queue("dead")
    yard.queue("q", message_ttl=20, dead_letter_exchange="", dead_letter_routing_key=yard.name("dead"))
    yard.publish("q")
    assert yard.headers("dead") == {"x-death": [yard.death("q", "expired")], **yard.only("q", "expired")}


def test_cycles(yard: Yard) -> None:
    """A message that expires in a cycle is dropped; a message that a consumer rejects may cycle."""
    exchange = yard.name("fanout")
    yard.channel.exchange_declare(exchange, "fanout", auto_delete=True)
    yard.queue("still")
    yard.queue("q", message_ttl=20, dead_letter_exchange=exchange)
    for queue in ("still", "q"):
        yard.channel.queue_bind(yard.name(queue), exchange)
    yard.publish("q")
    assert yard.headers("still")["x-death"] == [yard.death("q", "expired")]
    assert yard.ready("q") == [0]
    yard.queue("r", dead_letter_exchange="", dead_letter_routing_key=yard.name("r"))
    yard.publish("r")
    yard.reject("r")
    yard.reject("r")
    assert yard.headers("r")["x-death"] == [yard.death("r", count=2)]


def test_retry_by_a_waiting_queue(yard: Yard) -> None:
    """A common retry pattern: a rejected message returns from a waiting queue by TTL, and its deaths are counted."""
    yard.queue("work", dead_letter_exchange="", dead_letter_routing_key=yard.name("wait"))
    yard.queue("wait", message_ttl=20, dead_letter_exchange="", dead_letter_routing_key=yard.name("work"))
    yard.publish("work")
    for _ in range(3):
        yard.reject("work")
    deaths = yard.headers("work")["x-death"]
    assert deaths == [yard.death("wait", "expired", count=3), yard.death("work", count=3)]


@pytest.mark.parametrize("reason", ["rejected", "expired"])
def test_restarts(broker_process: BrokerProcess, reason: str) -> None:
    """Messages on disk are dead-lettered after a kill of the broker, and stay dead-lettered after the next one."""
    broker_process.start()
    with pika.BlockingConnection(parameters(broker_process.address)) as connection:
        channel = connection.channel()
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("q", durable=True, arguments=arguments)
        channel.queue_declare("dead", durable=True)
        channel.confirm_delivery()
        expiration = "300" if reason == "expired" else None
        for body in (b"1", b"2", b"3"):
            channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2, expiration=expiration))
    broker_process.restart()
    with pika.BlockingConnection(parameters(broker_process.address)) as connection:
        channel = connection.channel()
        if reason == "rejected":
            for _ in range(3):
                channel.basic_reject(channel.basic_get("q")[0].delivery_tag, requeue=False)
        wait_until(lambda: ready(channel, "dead") == 3, "all are dead")
        publish(channel, "dead", b"4", persistent=True)  # its confirm: the dead letters before it are on disk
    broker_process.restart()
    with pika.BlockingConnection(parameters(broker_process.address)) as connection:
        channel = connection.channel()
        found = [channel.basic_get("dead", auto_ack=True)[1:] for _ in range(4)]
        assert [body for _, body in found] == [b"1", b"2", b"3", b"4"]
        assert [properties.headers["x-death"][0]["reason"] for properties, _ in found[:3]] == [reason] * 3
        assert [properties.expiration for properties, _ in found[:3]] == [None] * 3
        assert ready(channel, "q") == 0
