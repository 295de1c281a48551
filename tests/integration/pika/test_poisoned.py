"""Poisoned messages: beyond the delivery limit of a queue without a dead letter exchange."""

from __future__ import annotations

from typing import Any, Final

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker.cli.control_client import ask
from tests.broker_process import BrokerProcess
from tests.deadline import wait_until
from tests.integration.pika.conversation import drain, parameters, ready

KEEP: Final = "SLOTMQ_AMQP__KEEP_POISONED"
POISON: Final = {"x-queue-type": "quorum", "x-delivery-limit": 1}
PROPERTIES: Final = pika.BasicProperties(message_id="m", headers={"n": 1}, priority=9, delivery_mode=1)


def wear(channel: BlockingChannel, queue: str) -> None:
    """Publish a transient message, and reject it as often as the limit allows, and once more."""
    channel.queue_declare(queue, durable=True, arguments=POISON)
    channel.basic_publish("", queue, b"poison", PROPERTIES)
    for _ in range(2):
        method, _, _ = channel.basic_get(queue)
        assert method is not None
        channel.basic_reject(method.delivery_tag)
    wait_until(lambda: channel.basic_get(queue)[0] is None, "its end")


def exists(channel: BlockingChannel, queue: str) -> bool:
    """Return whether there is a queue."""
    other = channel.connection.channel()
    try:
        other.queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker:
        return False
    return True


def connected(process: BrokerProcess) -> pika.BlockingConnection:
    """Return a connection to a broker that runs."""
    return pika.BlockingConnection(parameters(process.address))


def set_policy(process: BrokerProcess, name: str, pattern: str, *, keep: bool) -> None:
    """Set a policy for some queues."""
    ask(process.folder, "set_policy", name=name, pattern=pattern, definition={"keep-poisoned": keep})


def kept(channel: BlockingChannel, queue: str) -> Any:
    """Fetch the only message of a queue, and return its properties."""
    _, properties, body = channel.basic_get(queue)
    assert body == b"poison"
    assert channel.basic_get(queue)[0] is None
    return properties


@pytest.mark.fault
def test_by_default_it_is_dropped(broker_process: BrokerProcess) -> None:
    """As in RabbitMQ, nothing is left of it, and no queue is made."""
    broker_process.start()
    with connected(broker_process) as connection:
        channel = connection.channel()
        wear(channel, "q")
        assert not exists(channel, "q.poisoned")
        assert ready(channel, "q") == 0


@pytest.mark.fault
def test_a_setting_keeps_it_with_its_story(broker_process: BrokerProcess) -> None:
    """It is in NAME.poisoned with its properties and x-death, also after a kill, and no limit drops it from there."""
    broker_process.environment[KEEP] = "true"
    broker_process.start()
    with connected(broker_process) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        wear(channel, "q")
        wear(channel, "q")
        assert ready(channel, "q.poisoned") == 2
        assert drain(channel, "q.poisoned") == [b"poison", b"poison"]
        wear(channel, "q")
        channel.basic_publish("", "q", b"barrier")
    broker_process.restart()
    with connected(broker_process) as connection:
        channel = connection.channel()
        assert drain(channel, "q") == [b"barrier"]
        for _ in range(25):
            method, _, _ = channel.basic_get("q.poisoned")
            assert method is not None
            channel.basic_reject(method.delivery_tag)
        properties = kept(channel, "q.poisoned")
        assert (properties.message_id, properties.priority, properties.headers["n"]) == ("m", 9, 1)
        (death,) = properties.headers["x-death"]
        assert (death["queue"], death["reason"], death["count"]) == ("q", "delivery_limit", 1)
        assert (death["exchange"], death["routing-keys"]) == ("", ["q"])


@pytest.mark.fault
def test_a_dead_letter_exchange_and_a_policy_come_before_the_setting(broker_process: BrokerProcess) -> None:
    """Dead-lettered messages are not kept as well; a policy decides for its queues; with too long a name, nothing is
    kept.
    """
    broker_process.environment[KEEP] = "true"
    broker_process.start()
    set_policy(broker_process, "drop", "^dropped$", keep=False)
    with connected(broker_process) as connection:
        channel = connection.channel()
        channel.queue_declare("dead", durable=True)
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("buried", durable=True, arguments={**POISON, **dead})
        channel.basic_publish("", "buried", b"poison", PROPERTIES)
        for _ in range(2):
            method, _, _ = channel.basic_get("buried")
            assert method is not None
            channel.basic_reject(method.delivery_tag)
        wait_until(lambda: ready(channel, "dead") == 1, "the dead letter")
        long = "n" * 250
        for queue in ("dropped", long, long):
            wear(channel, queue)
        assert [exists(channel, name) for name in ("buried.poisoned", "dropped.poisoned")] == [False, False]
        assert ready(channel, long) == 0
        (dropped,) = [event for event in broker_process.log_events() if event["event"] == "poisoned.dropped"]
        assert (dropped["queue"], dropped["reason"]) == (long, f"the name '{long}.poisoned' is too long")


@pytest.mark.fault
def test_a_policy_keeps_what_the_setting_would_drop(broker_process: BrokerProcess) -> None:
    """A queue has the policy at its declaration, or later."""
    broker_process.start()
    with connected(broker_process) as connection:
        channel = connection.channel()
        wear(channel, "q")
        set_policy(broker_process, "keep", "^q$", keep=True)
        wear(channel, "q")
        kept(channel, "q.poisoned")
