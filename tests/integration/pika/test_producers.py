"""Numbered publishes with pika: each number counts once, belongs to one user, and outlives the broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker.testing import Broker
from tests.broker_process import BrokerProcess
from tests.integration.pika.conversation import channel_closed, drain, parameters, ready


def numbered(producer: str, sequence: Any, mode: int = 2, **headers: Any) -> pika.BasicProperties:
    """Return the properties of a numbered publish."""
    return pika.BasicProperties(
        delivery_mode=mode, headers={"x-producer": producer, "x-seq": sequence, **headers}, message_id="kept"
    )


@pytest.fixture
def confirming(channel: BlockingChannel) -> BlockingChannel:
    """Provide a channel with confirms: basic_publish returns when the broker has acked or nacked."""
    channel.confirm_delivery()
    return channel


@pytest.mark.parametrize("mode", [1, 2])
def test_a_number_counts_once(confirming: BlockingChannel, queue: str, name: str, mode: int) -> None:
    """A repeated number is confirmed and dropped, whether it is the last one, an earlier one or out of order."""
    for sequence in (0, 1, 1, 0, 5, 3, 5, 2**40, 3, 2**40, 2**63 - 1, 2**63 - 1, 4):
        confirming.basic_publish("", queue, b"%d" % sequence, numbered(name, sequence, mode))
    expected = [0, 1, 5, 3, 2**40, 2**63 - 1, 4]
    assert drain(confirming, queue) == [b"%d" % sequence for sequence in expected]


def test_producers_do_not_share_numbers(confirming: BlockingChannel, queue: str, name: str) -> None:
    """The same number of two producers is two messages."""
    for producer in (f"{name}.1", f"{name}.2", f"{name}.1"):
        confirming.basic_publish("", queue, producer.encode(), numbered(producer, 7))
    assert drain(confirming, queue) == [f"{name}.1".encode(), f"{name}.2".encode()]


def test_consumers_see_the_message_without_the_number(confirming: BlockingChannel, queue: str, name: str) -> None:
    """All other headers stay; an empty headers table is removed, unless x-producer-table keeps it."""
    confirming.basic_publish("", queue, b"", numbered(name, 1, other="kept"))
    confirming.basic_publish("", queue, b"", numbered(name, 2))
    confirming.basic_publish("", queue, b"", numbered(name, 3, **{"x-producer-table": True}))
    headers = []
    for _ in range(3):
        _, properties, _ = confirming.basic_get(queue, auto_ack=True)
        assert (properties.delivery_mode, properties.message_id) == (2, "kept")
        headers.append(properties.headers)
    assert headers == [{"other": "kept"}, None, {}]


def test_what_was_nacked_can_be_sent_again(confirming: BlockingChannel, name: str) -> None:
    """A full queue leaves the number open, in it and in every other queue of the route."""
    confirming.queue_declare(name, exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    confirming.queue_declare(f"{name}.roomy", exclusive=True)
    confirming.exchange_declare(name, "fanout", auto_delete=True)
    for queue in (name, f"{name}.roomy"):
        confirming.queue_bind(queue, name)
    confirming.basic_publish(name, "", b"1", numbered(name, 1))
    for _ in range(2):
        with pytest.raises(pika.exceptions.NackError):
            confirming.basic_publish(name, "", b"2", numbered(name, 2))
    assert drain(confirming, name) == [b"1"]
    for _ in range(2):
        confirming.basic_publish(name, "", b"2", numbered(name, 2))
    assert drain(confirming, name) == [b"2"]
    assert drain(confirming, f"{name}.roomy") == [b"1", b"2"]


def test_what_was_refused_is_not_dead_lettered(confirming: BlockingChannel, name: str) -> None:
    """With reject-publish-dlx a refused numbered message is not dead-lettered: its retry is accepted once."""
    dead = f"{name}.dead"
    confirming.queue_declare(dead, exclusive=True)
    arguments = {
        "x-max-length": 1,
        "x-overflow": "reject-publish-dlx",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
    }
    confirming.queue_declare(name, exclusive=True, arguments=arguments)
    confirming.basic_publish("", name, b"1", numbered(name, 1))
    with pytest.raises(pika.exceptions.NackError):
        confirming.basic_publish("", name, b"2", numbered(name, 2))
    assert drain(confirming, dead) == []


def test_what_was_returned_can_be_sent_again(confirming: BlockingChannel, queue: str, name: str) -> None:
    """A mandatory message that is returned leaves its number open."""
    confirming.exchange_declare(name, "direct", auto_delete=True)
    with pytest.raises(pika.exceptions.UnroutableError):
        confirming.basic_publish(name, "a", b"1", numbered(name, 1), mandatory=True)
    confirming.queue_bind(queue, name, "a")
    for _ in range(2):
        confirming.basic_publish(name, "a", b"1", numbered(name, 1), mandatory=True)
    assert drain(confirming, queue) == [b"1"]


def test_a_dead_letter_is_no_publish(confirming: BlockingChannel, queue: str, name: str) -> None:
    """A numbered message that dies reaches the dead-letter queue, also when it dies a second time."""
    first = f"{name}.first"
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    confirming.queue_declare(first, exclusive=True, arguments=arguments)
    confirming.basic_publish("", first, b"dies", numbered(name, 1))
    method, _, _ = confirming.basic_get(first)
    assert method is not None
    confirming.basic_reject(method.delivery_tag, requeue=False)
    _, properties, body = confirming.basic_get(queue, auto_ack=True)
    assert (body, "x-producer" in properties.headers) == (b"dies", False)
    confirming.basic_publish("", first, b"again", properties)
    assert drain(confirming, first) == [b"again"]


def test_a_delayed_message_counts_when_it_is_held(name: str) -> None:
    """A number is used as soon as a delayed exchange holds the message, and not again when it is released."""
    with Broker() as broker, pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare(name, "x-delayed-message", arguments={"x-delayed-type": "fanout"}, durable=True)
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, name)
        for _ in range(2):
            channel.basic_publish(name, "", b"later", numbered(name, 1, **{"x-delay": 1000}))
        assert ready(channel, name) == 0
        broker.clock.advance(2)
        channel.basic_publish(name, "", b"later", numbered(name, 1))
        assert drain(channel, name) == [b"later"]


def test_a_transaction_uses_its_numbers_whole(connection: pika.BlockingConnection, queue: str, name: str) -> None:
    """A rollback leaves numbers open; of equal numbers in one transaction or a later one, the first counts."""
    channel = connection.channel()
    channel.tx_select()
    channel.basic_publish("", queue, b"1", numbered(name, 1))
    channel.tx_rollback()
    for sequence in (1, 2, 1):
        channel.basic_publish("", queue, b"%d" % sequence, numbered(name, sequence))
    channel.tx_commit()
    for sequence in (2, 3):
        channel.basic_publish("", queue, b"%d" % sequence, numbered(name, sequence))
    channel.tx_commit()
    assert drain(channel, queue) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"x-producer": 5, "x-seq": 1}, "x-producer must be a text of 1 to 255 octets"),
        ({"x-producer": "", "x-seq": 1}, "x-producer must be a text of 1 to 255 octets"),
        ({"x-producer": "p" * 256, "x-seq": 1}, "x-producer must be a text of 1 to 255 octets"),
        ({"x-producer": "p", "x-seq": "1"}, "x-seq must be a whole number from 0 to 2^63-1"),
        ({"x-producer": "p", "x-seq": -1}, "x-seq is -1, which is less than 0"),
    ],
)
def test_numbers_that_are_none(confirming: BlockingChannel, queue: str, headers: dict[str, Any], text: str) -> None:
    """Two headers that do not hold a number close the channel with 406."""
    with channel_closed(406, f"PRECONDITION_FAILED - invalid message: {text}"):
        confirming.basic_publish("", queue, b"", pika.BasicProperties(headers=headers))


@pytest.mark.parametrize("headers", [{"x-producer": "p"}, {"x-seq": 1}])
def test_one_header_alone_means_nothing(confirming: BlockingChannel, queue: str, headers: dict[str, Any]) -> None:
    """A message with only one of the two headers is an ordinary message, and keeps the header."""
    for _ in range(2):
        confirming.basic_publish("", queue, b"", pika.BasicProperties(headers=headers))
        assert confirming.basic_get(queue, auto_ack=True)[1].headers == headers


@pytest.fixture
def two_users() -> Iterator[Broker]:
    """Provide a broker with two users and small limits: one producer and few bytes for numbers."""
    with Broker(
        users={"ann": "a", "bob": "b"}, limits={"producers_max": 2, "producer_max_bytes": 1 << 20}, auth={}
    ) as broker:
        yield broker


def channel_of(broker: Broker, user: str, queue: str = "q") -> BlockingChannel:
    """Return a user's channel with confirms and a declared queue."""
    channel = pika.BlockingConnection(pika.URLParameters(broker.url_of("/", user))).channel()
    channel.confirm_delivery()
    channel.queue_declare(queue, durable=True)
    return channel


def test_a_producer_belongs_to_one_user(two_users: Broker) -> None:
    """The first user of a name owns it; others get 403 on publish and in transactions, and nothing is dropped."""
    ann, bob = channel_of(two_users, "ann"), channel_of(two_users, "bob")
    ann.basic_publish("", "q", b"ann", numbered("p", 1))
    refusal = "ACCESS_REFUSED - access to producer 'p' in vhost '/' refused for user 'bob'"
    with channel_closed(403, refusal):
        bob.basic_publish("", "q", b"bob", numbered("p", 2))
    transaction = bob.connection.channel()
    transaction.tx_select()
    transaction.basic_publish("", "q", b"bob", numbered("p", 2))
    with channel_closed(403, refusal):
        transaction.tx_commit()
    ann.basic_publish("", "q", b"2", numbered("p", 2))
    assert drain(ann, "q") == [b"ann", b"2"]
    for channel in (ann, bob):
        channel.connection.close()


def test_producers_are_bounded_and_forgotten(two_users: Broker) -> None:
    """One producer too many gets 406, until one was unused for a week; then its name and its numbers are free."""
    ann, bob = channel_of(two_users, "ann"), channel_of(two_users, "bob")
    for producer in ("p1", "p2"):
        ann.basic_publish("", "q", b"1", numbered(producer, 1))
    with channel_closed(
        406, "PRECONDITION_FAILED - cannot claim producer 'p3': producer limit in vhost '/' (2) is reached"
    ):
        bob.basic_publish("", "q", b"1", numbered("p3", 1))
    two_users.clock.advance(6 * 86_400)
    ann.basic_publish("", "q", b"2", numbered("p1", 2))
    two_users.clock.advance(2 * 86_400)
    bob = bob.connection.channel()
    bob.confirm_delivery()
    bob.basic_publish("", "q", b"bob", numbered("p2", 1))
    ann.basic_publish("", "q", b"2", numbered("p1", 2))
    assert drain(bob, "q") == [b"1", b"1", b"2", b"bob"]
    for channel in (ann, bob):
        channel.connection.close()


def test_what_is_remembered_through_a_restart() -> None:
    """A restart keeps numbers and owners, and forgets those that were unused for a week during the downtime."""
    broker = Broker(users={"ann": "a", "bob": "b"})
    for days, user, sent, there in (
        (0, "ann", [1, 2, 1], [1, 2]),
        (6, "ann", [2, 3], [1, 2, 3]),
        (6, "ann", [1, 2, 3], [1, 2, 3, 1]),
        (8, "bob", [3], [1, 2, 3, 1, 3]),
    ):
        broker.clock.advance(days * 86_400)
        with broker:
            channel = channel_of(broker, user)
            for sequence in sent:  # in separate blocks, which are forgotten one by one
                channel.basic_publish("", "q", b"%d" % sequence, numbered("p", sequence << 16))
            assert [int(message.body) for message in broker.queue("q").messages] == there
            channel.connection.close()


def test_the_memory_of_numbers_is_bounded(two_users: Broker) -> None:
    """Numbers far apart use memory; when it is used up the next one gets 406, and known blocks still work."""
    ann = channel_of(two_users, "ann")
    for block in range(124):  # 8 KiB and a little each; a gap: from here on they are bits
        for sequence in (block << 16, (block << 16) + 2):
            ann.basic_publish("", "q", b"", numbered("p", sequence, 1))
    refusal = "cannot take x-seq 8126464 of producer 'p': producer bytes limit in vhost '/' (1048576) is reached"
    with channel_closed(406, f"PRECONDITION_FAILED - {refusal}"):
        ann.basic_publish("", "q", b"", numbered("p", 124 << 16, 1))
    again = ann.connection.channel()
    again.confirm_delivery()
    count = ready(again, "q")
    again.basic_publish("", "q", b"", numbered("p", 2))
    again.basic_publish("", "q", b"", numbered("p", 1))
    assert ready(again, "q") == count + 1
    ann.connection.close()


@pytest.mark.slow
def test_numbers_outlive_the_broker(tmp_path: Path) -> None:
    """After kill -9 and after a clean stop every confirmed message exists once, however often it is sent again."""
    process = BrokerProcess(tmp_path / "data", environment={"SLOTMQ_STORE__SEGMENT_BYTES": "1048576"})
    sent = 0
    try:
        for way in ("kill", "stop", "kill"):
            process.start()
            with pika.BlockingConnection(parameters(process.address)) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                channel.queue_declare("q", durable=True)
                for sequence in [*range(sent), *range(sent, sent + 150)]:
                    channel.basic_publish("", "q", b"%d" % sequence + b"." * 4000, numbered("p", sequence * 3))
                sent += 150
                assert ready(channel, "q") == sent
            if way == "kill":
                process.kill()
            else:
                assert process.terminate() == 0
    finally:
        process.kill()
