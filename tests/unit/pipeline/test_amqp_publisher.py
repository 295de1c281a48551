"""The publisher against a real broker: what arrives, what is returned, and the effects of a lost connection."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pika
import pytest
import trustme
from pamqp import commands, header
from pika.adapters.blocking_connection import BlockingChannel

from broker.amqp.client import CAPABILITIES
from broker.client.address import AmqpAddress
from broker.pipeline.faults import PublishFailed
from broker.pipeline.sink.amqp_publisher import CLIENT, AmqpPublisher, Outgoing, PublisherOptions, RefusedMessage
from broker.store.memory_files import MemoryFiles
from broker.testing import Broker
from tests.deadline import wait_until
from tests.integration.pika.conversation import drain, ready
from tests.unit.pipeline.cuttable import CuttableWay


@pytest.fixture
def broker() -> Iterator[Broker]:
    """Provide a broker in a thread, with two users and one more vhost."""
    users = {"ann": "a", "bob": "b"}
    with Broker(users=users, vhosts=["other"], amqp={"frame_max_bytes": 8192}) as running:
        yield running


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    """Provide a channel of pika, and queue q, bound to exchange x by #."""
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.exchange_declare("x", "topic")
        channel.queue_declare("q", durable=True)
        channel.queue_bind("q", "x", "to.#")
        yield channel


def address_of(broker: Broker, port: int | None = None, **changes: Any) -> AmqpAddress:
    """Return the address of a broker, or of the relay to it."""
    found = AmqpAddress.parse(broker.url)
    values = {name: getattr(found, name) for name in AmqpAddress.__slots__}
    return AmqpAddress(**{**values, "port": port or found.port, **changes})


def octets_of(**properties: Any) -> bytes:
    """Return encoded properties from the flags on."""
    return header.ContentHeader(properties=commands.Basic.Properties(**properties)).marshal()[12:]


PERSISTENT = octets_of(delivery_mode=2)
NUMBERED = PublisherOptions(producer="job")


def rows(count: int, exchange: str = "x", key: str = "to.q", *, numbered: bool = True) -> list[Outgoing]:
    """Return this many messages, each with its number as the body."""
    return [(exchange, key, PERSISTENT, b"%d" % row, row if numbered else None, row) for row in range(count)]


def bodies(count: int) -> list[bytes]:
    """Return the bodies of the messages."""
    return [b"%d" % row for row in range(count)]


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_everything_arrives_in_order(broker: Broker, channel: BlockingChannel, window: int) -> None:
    """With any window, all messages are in the queue in order when the publisher is closed."""
    with AmqpPublisher(address_of(broker), PublisherOptions(window=window)) as publisher:
        publisher.publish(rows(300, numbered=False))
        publisher.publish([])
    assert publisher.published == 300
    assert drain(channel, "q") == bodies(300)


@pytest.mark.parametrize("producer", ["", "job"])
def test_octets_arrive_as_they_were(broker: Broker, channel: BlockingChannel, producer: str) -> None:
    """Properties, headers and bodies of any size arrive byte for byte, with and without numbers."""
    moment = datetime(2024, 1, 2, tzinfo=UTC)
    of = [
        octets_of(),
        octets_of(headers={}),
        octets_of(headers={"a": 1, "b": {"c": ["x", None]}}, message_id="m"),
        octets_of(content_type="t", delivery_mode=1, priority=3, timestamp=moment, message_type="t", app_id="a"),
    ]
    sizes = [0, 1, 8184, 8185, 50_000]
    sent = [("x", "to.q", properties, b"b" * size) for properties in of for size in sizes]
    with AmqpPublisher(address_of(broker), PublisherOptions(producer=producer)) as publisher:
        publisher.publish((*message, number, None) for number, message in enumerate(sent))
    broker.wait_idle()
    got = broker.queue("q").messages
    assert [(message.exchange, message.routing_key, message.body) for message in got] == [(*m[:2], m[3]) for m in sent]
    assert [message.header[12:] for message in got] == [message[2] for message in sent]


def test_what_nobody_takes_is_told(broker: Broker, channel: BlockingChannel) -> None:
    """Each unroutable message is handed over once, also among equal ones; the rest arrives."""
    refused: list[RefusedMessage] = []
    sent: list[Outgoing] = []
    for row in range(200):
        properties = octets_of(headers={"row": row // 4})
        sent.append(("x", "to.q" if row % 2 else "nowhere", properties, b"same" * (row % 3), row, row))
    with AmqpPublisher(address_of(broker), NUMBERED, refused.append) as publisher:
        publisher.publish(sent)
    assert [one.message[5] for one in refused] == list(range(0, 200, 2))
    assert {(one.code, one.reason) for one in refused} == {(312, "NO_ROUTE")}
    assert ready(channel, "q") == 100


def test_without_mandatory_nothing_comes_back(broker: Broker, channel: BlockingChannel) -> None:
    """An unroutable message that is not mandatory is confirmed."""
    with AmqpPublisher(address_of(broker), PublisherOptions(mandatory=False)) as publisher:
        publisher.publish(rows(10, key="nowhere"))


def test_a_full_queue_is_asked_again(broker: Broker, channel: BlockingChannel) -> None:
    """A nacked message is sent again until the queue has room, and is an error if it never has."""
    arguments = {"x-max-length": 5, "x-overflow": "reject-publish"}
    channel.queue_declare("full", durable=True, arguments=arguments)
    refused: list[RefusedMessage] = []
    options = PublisherOptions(producer="job", nack_attempts=2)
    with AmqpPublisher(address_of(broker), options, refused.append) as publisher:
        publisher.publish(rows(8, "", "full"))
    assert drain(channel, "full") == bodies(5)
    assert [(one.message[5], one.reason) for one in refused] == [
        (row, "a full queue refused it 2 times") for row in (5, 6, 7)
    ]
    with AmqpPublisher(address_of(broker), options, refused.append) as publisher:
        publisher.publish(rows(8, "", "full"))
    assert drain(channel, "full") == [b"5", b"6", b"7"]
    assert len(refused) == 3


def test_a_lost_connection_is_made_again(broker: Broker, channel: BlockingChannel) -> None:
    """Unconfirmed messages are sent again after a reconnect; with numbers none is duplicated."""
    with CuttableWay(broker.port) as way:
        publisher = AmqpPublisher(address_of(broker, way.port), NUMBERED)
        publisher.publish(rows(100))
        publisher.drain()
        way.swallow = True
        publisher.publish(rows(500))
        broker.wait_idle()  # it has them all, and the publisher has no confirm
        way.cut()
        publisher.close()
        assert way.connections == 2
    assert Counter(drain(channel, "q")) == Counter(bodies(500))


def test_without_numbers_a_lost_connection_is_an_error(broker: Broker, channel: BlockingChannel) -> None:
    """Unconfirmed messages without numbers cannot be sent again, which is an error; confirmed ones do not matter."""
    with CuttableWay(broker.port) as way:
        publisher = AmqpPublisher(address_of(broker, way.port))
        publisher.publish(rows(10))
        publisher.drain()
        way.cut()
        publisher.publish(rows(10))
        publisher.drain()
        way.swallow = True
        publisher.publish(rows(10))
        way.cut()
        with pytest.raises(PublishFailed, match=r"lost.*; 10 messages were not confirmed and have no numbers"):
            publisher.close()


def test_a_broker_that_does_not_come_back(broker: Broker, channel: BlockingChannel) -> None:
    """Reconnecting is tried for as long as the options say, and then is an error."""
    with CuttableWay(broker.port) as way:
        publisher = AmqpPublisher(address_of(broker, way.port), PublisherOptions(producer="job", retry_s=0.2))
    with pytest.raises(
        PublishFailed, match=r"no broker answers at amqp://ann@127\.0\.0\.1:\d+/%2F: Connection refused"
    ):
        publisher.publish(rows(5))


def publish_all(publisher: AmqpPublisher, messages: list[Outgoing]) -> None:
    """Publish messages and wait for their results; the connection is closed in any case."""
    try:
        publisher.publish(messages)
        publisher.drain()
    finally:
        publisher.abort()


class FillingDisk(MemoryFiles):
    """Files in memory on a disk whose free space the test decides."""

    free = 10 << 30

    def free_bytes(self, folder: Path) -> int:
        """Return the free space that the test set."""
        return self.free


def test_an_alarm_is_waited_for() -> None:
    """A blocked broker confirms nothing; a short wait fails with the reason, a longer one succeeds."""
    disk = FillingDisk()
    with Broker(files=disk, store={"disk_free_min_bytes": 1 << 30}, flow={"check_interval_ms": 10}) as broker:
        options = PublisherOptions(producer="job", mandatory=False, blocked_timeout_s=0.01)
        address = AmqpAddress.parse(broker.url)
        refused: list[RefusedMessage] = []
        impatient, patient = AmqpPublisher(address, options), AmqpPublisher(address, NUMBERED, refused.append)
        disk.free = 0
        wait_until(lambda: broker.server.clients.alarms.alarms, "an alarm")
        with pytest.raises(PublishFailed, match=r"is blocked: low on disk"):
            publish_all(impatient, rows(50, "", "nowhere"))
        threading.Timer(0.3, setattr, (disk, "free", 10 << 30)).start()
        patient.publish(rows(50, "", "nowhere"))
        patient.close()
        assert len(refused) == 50


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"password": "secret"}, r"ACCESS_REFUSED - .*\(403\)"),
        ({"vhost": "nowhere"}, r"NOT_ALLOWED - vhost nowhere not found \(530\)"),
        ({"port": 1}, r"no broker answers at amqp://ann@127\.0\.0\.1:1/%2F: Connection refused"),
        ({"tls": True}, r"no TLS with amqps://ann@127"),
    ],
)
def test_who_is_not_let_in_hears_why(broker: Broker, changes: dict[str, Any], text: str) -> None:
    """A wrong password, vhost or port is one line that names the broker and never the password."""
    with pytest.raises(PublishFailed, match=text) as caught:
        AmqpPublisher(address_of(broker, **changes))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (("missing", "k", PERSISTENT, b"", 1, None), r"NOT_FOUND - no exchange 'missing' in vhost '/' \(404\)"),
        (("x", "k" * 256, PERSISTENT, b"", 1, None), r"a short string cannot hold 256 octets"),
    ],
)
def test_what_cannot_be_published_is_an_error(
    broker: Broker, channel: BlockingChannel, message: Outgoing, text: str
) -> None:
    """An unknown exchange, or a key that cannot be encoded, ends the publisher with the broker's text."""
    publisher = AmqpPublisher(address_of(broker), NUMBERED)
    with pytest.raises(PublishFailed, match=text):
        publish_all(publisher, [message])


def test_the_producer_of_another_user(broker: Broker, channel: BlockingChannel) -> None:
    """Another user's producer is refused with the reason."""
    with AmqpPublisher(address_of(broker), NUMBERED) as publisher:
        publisher.publish(rows(1))
    other = AmqpPublisher(address_of(broker, user="bob", password="b"), NUMBERED)
    with pytest.raises(PublishFailed, match=r"access to producer 'job' in vhost '/' refused for user 'bob'"):
        publish_all(other, rows(2))


def test_a_rate_is_kept(broker: Broker, channel: BlockingChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rate the publisher sleeps for the time that its messages are worth, on the test's clock."""
    now = [100.0]
    slept: list[float] = []
    own, real_sleep = threading.current_thread(), time.sleep

    def sleep(seconds: float) -> None:
        if threading.current_thread() is not own:  # the module's time is everybody's
            real_sleep(seconds)
            return
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("broker.pipeline.sink.amqp_publisher.time.monotonic", lambda: now[0])
    monkeypatch.setattr("broker.pipeline.sink.amqp_publisher.time.sleep", sleep)
    publisher = AmqpPublisher(address_of(broker), PublisherOptions(rate=1000.0))
    publisher.publish(rows(2001))
    assert sum(slept) == pytest.approx(2.0, abs=0.051)
    publisher.close()


def test_tls(tmp_path: Path) -> None:
    """With amqps:// the certificate is verified for the host of the URL, or not at all."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    tls = {"certfile": str(tmp_path / "cert.pem"), "keyfile": str(tmp_path / "key.pem")}
    with Broker(tls=tls) as broker:
        url = f"amqps://guest:guest@127.0.0.1:{broker.tls_port}/"
        for query in (f"?cacertfile={tmp_path / 'ca.pem'}", "?verify=verify_none"):
            with AmqpPublisher(AmqpAddress.parse(url + query), PublisherOptions(mandatory=False)) as publisher:
                publisher.publish([("", "nowhere", b"\0\0", b"b" * 100_000, None, None)] * 200)
        with pytest.raises(PublishFailed, match="is not trusted"):
            AmqpPublisher(AmqpAddress.parse(url))


@pytest.mark.parametrize("window", [1, 1000])
def test_what_the_broker_had_already_is_counted(broker: Broker, channel: BlockingChannel, window: int) -> None:
    """Duplicates are counted, in any order among new messages and messages that a full queue refuses."""
    channel.queue_declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    first = rows(20)
    mixed = [("", "full", PERSISTENT, b"", 100 + at // 3, at) if at % 5 == 4 else row for at, row in enumerate(first)]
    options = PublisherOptions(producer="job", window=window, nack_attempts=1)
    with AmqpPublisher(address_of(broker), options) as publisher:
        publisher.publish(row for row in first if (row[4] or 0) % 3)
        publisher.drain()
        assert publisher.dropped == 0
    refused: list[RefusedMessage] = []
    for dropped in (10, 16):
        with AmqpPublisher(address_of(broker), options, refused.append) as publisher:
            publisher.publish(mixed)
            publisher.drain()
        assert (publisher.published, publisher.dropped) == (20, dropped)
    assert len(refused) == 8
    assert sorted(drain(channel, "q")) == sorted(body for body in bodies(20) if int(body) % 3 or int(body) % 5 != 4)


def test_only_who_asks_for_it_is_told_of_what_was_dropped(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a publisher that asks for it is told of duplicates; others get an ordinary ack."""
    monkeypatch.setitem(CLIENT, "capabilities", CAPABILITIES)
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        connection.channel().queue_declare("q")
    for _ in range(2):
        with AmqpPublisher(address_of(broker), NUMBERED) as publisher:
            publisher.publish(rows(5, exchange="", key="q"))
            publisher.drain()
        assert publisher.dropped == 0
