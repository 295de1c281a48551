"""kombu, as Celery and others use it: its declares, its messages and its expectations of a broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import amqp.exceptions
import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue, binding
from kombu.mixins import ConsumerProducerMixin
from kombu.pidbox import Mailbox

from broker.cli.control_client import ask
from tests.broker_process import BrokerAddress, BrokerProcess
from tests.deadline import DEADLINE_S, wait_until


@pytest.fixture
def connection(broker: BrokerAddress) -> Iterator[Connection]:
    """Provide a connection that confirms publishes."""
    with Connection(broker.url, transport_options={"confirm_publish": True}) as opened:
        yield opened


def drain(connection: Connection, got: list[Any], count: int) -> None:
    """Read until this many messages have arrived."""
    while len(got) < count:
        connection.drain_events(timeout=DEADLINE_S)


def fetched(queue: Any) -> list[Any]:
    """Fetch everything ready from a queue and return the bodies in order."""
    bodies = []
    while (message := queue.get(no_ack=True)) is not None:
        bodies.append(message.payload)
    return bodies


@pytest.mark.parametrize("serializer", ["json", "pickle"])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_bodies(connection: Connection, name: str, serializer: str, compression: str | None) -> None:
    """Bodies that kombu serializes and compresses arrive unchanged, with headers and properties."""
    queue = Queue(name, Exchange(name, "topic", durable=False), "a.#", exclusive=True)
    got: list[Any] = []
    producer = Producer(connection, serializer=serializer, compression=compression)
    with Consumer(
        connection, [queue], accept=[serializer], callbacks=[lambda body, message: got.append((body, message))]
    ):
        producer.publish(
            {"number": 1, "text": "é" * 1000},
            "a.b",
            exchange=queue.exchange,
            headers={"x": [1, {"y": None}]},
            correlation_id="c",
        )
        drain(connection, got, 1)
    body, message = got[0]
    message.ack()
    assert body == {"number": 1, "text": "é" * 1000}
    assert message.headers["x"] == [1, {"y": None}]
    assert message.properties["correlation_id"] == "c"
    assert message.delivery_info["routing_key"] == "a.b"


def test_settling(connection: Connection, name: str) -> None:
    """A requeued message is redelivered; a rejected one and an acked one are not."""
    got: list[Any] = []
    queue = Queue(name, exclusive=True)
    with Consumer(connection, [queue], callbacks=[lambda _, message: got.append(message)], prefetch_count=1):
        producer = Producer(connection)
        for number in range(3):
            producer.publish(number, name)
        drain(connection, got, 1)
        got[0].requeue()
        drain(connection, got, 2)
        got[1].ack()
        drain(connection, got, 3)
        got[2].reject()
        drain(connection, got, 4)
        got[3].ack()
    assert [(message.payload, message.delivery_info["redelivered"]) for message in got] == [
        (0, False),
        (0, True),
        (1, False),
        (2, False),
    ]


def test_prefetch_of_a_running_consumer(connection: Connection, name: str, oracle: bool) -> None:
    """kombu assumes that global=false applies to running consumers, unless the broker announces itself as RabbitMQ."""
    if oracle:
        pytest.skip("is for brokers of another name")
    got: list[Any] = []
    with Consumer(
        connection, [Queue(name, exclusive=True)], callbacks=[lambda _, message: got.append(message)], prefetch_count=2
    ) as consumer:
        for number in range(6):
            Producer(connection).publish(number, name)
        drain(connection, got, 2)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.1)
        consumer.qos(prefetch_count=5)
        drain(connection, got, 5)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.1)
        consumer.qos(prefetch_count=1)
        for message in got[:4]:
            message.ack()
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.1)
        got[4].ack()
        drain(connection, got, 6)


def test_prefetch_of_a_whole_channel_where_the_broker_is_called_rabbitmq(broker_process: BrokerProcess) -> None:
    """As RabbitMQ, Celery changes the prefetch of a running consumer with global=true, for its countdown."""
    broker_process.environment["SLOTMQ_AMQP__PRODUCT"] = "RabbitMQ"
    got: list[Any] = []
    with Connection(broker_process.start().address.url) as connection:
        assert not connection.qos_semantics_matches_spec
        connection.default_channel.basic_qos(0, 2, True)
        with Consumer(
            connection, [Queue("q", exclusive=True)], callbacks=[lambda _, message: got.append(message)]
        ) as consumer:
            for number in range(6):
                Producer(connection).publish(number, "q")
            drain(connection, got, 2)
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.1)
            consumer.qos(prefetch_count=5, apply_global=True)
            drain(connection, got, 5)
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.1)


def test_simple_queue(connection: Connection, name: str) -> None:
    """SimpleQueue puts, gets, counts, and reports that it is empty."""
    queue = connection.SimpleQueue(name)
    queue.put({"number": 1}, priority=3)
    queue.put({"number": 2})
    wait_until(lambda: len(queue) == 2, "two messages")
    for number in (1, 2):
        message = queue.get(timeout=DEADLINE_S)
        assert message.payload == {"number": number}
        message.ack()
    with pytest.raises(queue.Empty):
        queue.get(timeout=0.05)
    queue.close()
    connection.default_channel.queue_delete(name)
    connection.default_channel.exchange_delete(name)  # SimpleQueue declares one of the same name


def test_topology(connection: Connection, name: str) -> None:
    """Bindings between exchanges, alternates, several bindings, limits and priorities are declared and work."""
    alternate = Exchange(f"{name}-alternate", "fanout", durable=False, auto_delete=True)
    source = Exchange(f"{name}-source", "topic", durable=False, arguments={"alternate-exchange": alternate.name})
    target = Exchange(f"{name}-target", "headers", durable=False)
    matching = Queue(
        f"{name}-matching",
        bindings=[binding(target, arguments={"x-match": "all", "kind": "a"}), binding(source, "direct.#")],
        exclusive=True,
        max_priority=5,
    )
    rest = Queue(f"{name}-rest", alternate, exclusive=True, max_length=2, message_ttl=60.0, expires=60.0)
    channel = connection.default_channel
    for exchange in (alternate, source, target):
        exchange(channel).declare()
    target(channel).bind_to(source, "through.#")
    for queue in (matching, rest):
        queue(channel).declare()
    producer = Producer(connection)
    for key, kind, priority in (
        ("through.1", "a", 0),
        ("through.2", "b", 0),
        ("direct", "b", 5),
        *[("lost", "", 0)] * 3,
    ):
        producer.publish(f"{key} {kind}", key, exchange=source, headers={"kind": kind}, priority=priority)
    seen = {queue.name: fetched(queue(channel)) for queue in (matching, rest)}
    assert seen == {matching.name: ["direct b", "through.1 a"], rest.name: ["lost ", "lost "]}
    for exchange in (source, target):
        exchange(channel).delete()


def test_returned_message(connection: Connection, name: str) -> None:
    """An unroutable mandatory message is returned before its confirm."""
    returned: list[Any] = []
    producer = Producer(connection, on_return=lambda error, *_: returned.append(error))
    producer.publish({}, name, mandatory=True)
    assert [error.reply_code for error in returned] == [312]


def test_confirm_of_a_full_queue(connection: Connection, name: str) -> None:
    """A publish that a full queue rejects raises an error, with publisher confirms."""
    queue = Queue(name, exclusive=True, max_length=1, queue_arguments={"x-overflow": "reject-publish"})
    queue(connection.default_channel).declare()
    producer = Producer(connection)
    producer.publish(1, name)
    with pytest.raises(amqp.exceptions.MessageNacked):
        producer.publish(2, name)


def test_cancel_notify(connection: Connection, name: str) -> None:
    """A consumer whose queue is deleted gets basic.cancel, and kombu raises an error."""
    queue = Queue(name, durable=False)
    with Consumer(connection, [queue], callbacks=[lambda *_: None]):
        with connection.clone() as other:
            queue(other.default_channel).delete()
        with pytest.raises(amqp.exceptions.ConsumerCancelled):
            connection.drain_events(timeout=DEADLINE_S)


def test_errors(connection: Connection, name: str) -> None:
    """Codes of channel errors become kombu's exceptions, and the connection stays open."""
    channel = connection.channel()
    with pytest.raises(amqp.exceptions.NotFound, match=f"no queue '{name}' in vhost '/'"):
        Queue(name, channel=channel).queue_declare(passive=True)
    Queue(name, channel=connection.default_channel, durable=False, exclusive=True).declare()
    with pytest.raises(amqp.exceptions.PreconditionFailed, match="inequivalent arg 'x-max-length'"):
        Queue(name, channel=connection.default_channel, durable=False, exclusive=True, max_length=1).declare()
    assert connection.connected


class Adder(ConsumerProducerMixin):  # type: ignore[misc]
    """A consumer that replies with the sum of the received numbers."""

    def __init__(self, connection: Connection, queue: Queue) -> None:
        self.connection = connection
        self.queue = queue
        self.ready = threading.Event()

    def get_consumers(self, consumer_class: Any, channel: Any) -> list[Any]:
        """Consume its queue, one message at a time."""
        return [consumer_class([self.queue], callbacks=[self.answer], prefetch_count=1)]

    def on_consume_ready(self, *_: Any, **__: Any) -> None:
        """Report that its queue exists."""
        self.ready.set()

    def answer(self, body: Any, message: Any) -> None:
        """Publish the sum to the requester."""
        self.producer.publish(
            sum(body), message.properties["reply_to"], correlation_id=message.properties["correlation_id"], retry=True
        )
        message.ack()


def ask_adder(connection: Connection, queue: str, numbers: list[int]) -> Any:
    """Return the answer of an adder."""
    reply = Queue("", exclusive=True, auto_delete=True, durable=False)
    got: list[Any] = []
    with Consumer(connection, [reply], callbacks=[lambda body, _: got.append(body)], no_ack=True) as consumer:
        Producer(connection).publish(numbers, queue, reply_to=consumer.queues[0].name, correlation_id="1")
        drain(connection, got, 1)
    return got[0]


@pytest.mark.slow
def test_mixin_survives_a_restart(broker_process: BrokerProcess, name: str) -> None:
    """A ConsumerProducerMixin answers, reconnects after a kill of the broker, and answers again."""
    url = broker_process.start().address.url
    adder = Adder(Connection(url), Queue(name))
    thread = threading.Thread(target=adder.run)
    thread.start()
    try:
        for start in range(2):
            if start:
                broker_process.restart("--port", str(broker_process.address.port))
            assert adder.ready.wait(DEADLINE_S)
            adder.ready.clear()
            with Connection(url) as connection:
                assert ask_adder(connection, name, [1, 2, 3]) == 6
    finally:
        adder.should_stop = True
        thread.join(DEADLINE_S)
        adder.connection.close()
    assert not thread.is_alive()


@pytest.mark.slow
def test_publish_over_a_restart(broker_process: BrokerProcess, name: str) -> None:
    """A producer with retries and confirms publishes over a restart, and loses none of its earlier messages."""
    url = broker_process.start().address.url
    queue = Queue(name)
    with Connection(url, transport_options={"confirm_publish": True}) as connection:
        producer = Producer(connection)
        policy = {"interval_start": 0.05, "interval_step": 0, "max_retries": 100}
        producer.publish(1, name, declare=[queue], retry=True, retry_policy=policy)
        broker_process.restart("--port", str(broker_process.address.port))
        producer.publish(2, name, declare=[queue], retry=True, retry_policy=policy)
        bound = queue(connection.default_channel)
        assert [bound.get(no_ack=True).payload for _ in range(2)] == [1, 2]


def test_pidbox(broker: BrokerAddress, name: str) -> None:
    """A mailbox casts to its nodes, and collects their answers from a reply queue that expires."""
    mailbox = Mailbox(name, type="fanout")
    done: SimpleQueue[Any] = SimpleQueue()
    stop = threading.Event()

    def serve(hostname: str, ready: threading.Event) -> None:
        with Connection(broker.url) as connection:
            node = mailbox(connection).Node(hostname, state=hostname, channel=connection.default_channel)
            node.handlers |= {"add": lambda _, one, other: one + other, "stop": lambda _: stop.set()}
            with node.listen():
                ready.set()
                while not stop.is_set():
                    try:
                        connection.drain_events(timeout=0.05)
                    except TimeoutError:
                        continue
            node.channel.close()
        done.put(hostname)

    ready = [threading.Event() for _ in range(2)]
    threads = [threading.Thread(target=serve, args=(f"node{number}", event)) for number, event in enumerate(ready)]
    for thread in threads:
        thread.start()
    assert all(event.wait(DEADLINE_S) for event in ready)
    with Connection(broker.url) as connection:
        bound = mailbox(connection)
        answers = bound.multi_call("add", {"one": 1, "other": 2}, timeout=DEADLINE_S, limit=2)
        assert sorted(answer[host] for answer in answers for host in answer) == [3, 3]
        assert bound.call(["node1"], "add", {"one": 2, "other": 2}, timeout=DEADLINE_S) == [{"node1": 4}]
        bound.abcast("stop")
        for thread in threads:
            thread.join(DEADLINE_S)
        for exchange in (bound.exchange, bound.reply_exchange):
            exchange(connection.default_channel).delete()
    assert done.qsize() == 2


def test_vhost_of_the_url(broker_process: BrokerProcess, name: str) -> None:
    """The path of a URL is the vhost, with and without an encoded slash; a missing vhost is refused."""
    address = broker_process.start().address
    base = f"amqp://{address.user}:{address.password}@{address.host}:{address.port}"
    with (
        Connection(f"{base}/team") as connection,
        pytest.raises(amqp.exceptions.NotAllowed, match="vhost team not found"),
    ):
        connection.connect()
    ask(broker_process.folder, "add_vhost", name="team")
    ask(broker_process.folder, "set_permission", user="guest", vhost="team", configure=".*", write=".*", read=".*")
    for path, vhost in (("", "/"), ("/", "/"), ("//", "/"), ("/%2F", "/"), ("/team", "team")):
        with Connection(base + path) as connection:
            Queue(f"{name}{path}", channel=connection.default_channel, durable=False).declare()
        assert f"{name}{path}" in [row["name"] for row in ask(broker_process.folder, "list_queues", vhost=vhost)]


@pytest.mark.slow
def test_heartbeats(broker: BrokerAddress) -> None:
    """Heartbeats are negotiated, sent and counted."""
    with Connection(broker.url, heartbeat=1) as connection:
        connection.connect()
        assert connection.get_heartbeat_interval() == 1
        transport: Any = connection.connection
        before = transport.bytes_recv

        def hear() -> bool:
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.15)
            connection.heartbeat_check()
            return bool(transport.bytes_recv > before)

        wait_until(hear, "a heartbeat of the broker's")
