"""Deduplication by header, through pika: in queues and exchanges, after kill -9 too."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import aio_pika
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import UnroutableError

from broker.cli.control_client import ask
from broker.testing import Broker
from tests.broker_process import BrokerProcess
from tests.deadline import wait_until
from tests.in_process import client_of, queue_of, running_broker
from tests.integration.pika.conversation import channel_closed, channel_of, drain, parameters, ready

KIND: Final = "x-message-deduplication"
HEADER: Final = "x-deduplication-header"
DISK: Final = {"x-cache-size": 3, "x-cache-persistence": "disk"}


def send(
    channel: BlockingChannel, exchange: str, key: str, *values: Any, mandatory: bool = False, **headers: Any
) -> None:
    """Publish a persistent message for each value of the header, whose body is the value."""
    for value in values:
        table = headers if value is None else {HEADER: value, **headers}
        properties = pika.BasicProperties(delivery_mode=2, headers=table)
        channel.basic_publish(exchange, key, str(value).encode(), properties, mandatory=mandatory)


@pytest.fixture(params=["classic", "quorum"])
def queue_type(request: pytest.FixtureRequest) -> str:
    """Each type of queue."""
    return str(request.param)


def test_a_queue_drops_what_it_has_already_and_confirms_it(broker_process: BrokerProcess, queue_type: str) -> None:
    """Ready or unacked, the first message counts; settled, purged or returned unrouted it does not; types differ."""
    with channel_of(broker_process.start().address) as channel:
        arguments = {KIND: True, "x-queue-type": queue_type}
        channel.queue_declare("q", durable=True, arguments=arguments)
        send(channel, "", "q", "a", "b", "a", 1, True, "1", None, None, mandatory=True)
        assert ready(channel, "q") == 7
        method, _, body = channel.basic_get("q")
        send(channel, "", "q", "a")  # a consumer has it
        assert (body, ready(channel, "q")) == (b"a", 6)
        channel.basic_nack(method.delivery_tag)
        send(channel, "", "q", "a")
        assert ready(channel, "q") == 7
        method, _, _ = channel.basic_get("q")
        channel.basic_ack(method.delivery_tag)
        send(channel, "", "q", "a")
        assert drain(channel, "q") == [b"b", b"1", b"True", b"1", b"None", b"None", b"a"]
        send(channel, "", "q", "a")
        channel.queue_purge("q")
        send(channel, "", "q", "a", "a")
        assert drain(channel, "q") == [b"a"]


def test_a_queue_knows_its_messages_after_kill_9(broker_process: BrokerProcess, queue_type: str) -> None:
    """Acked messages are forgotten; waiting ones are known, over several slots, and repeats are dropped and counted."""
    broker_process.environment["SLOTMQ_SLOTS__WINDOW_MESSAGES"] = "4"
    with channel_of(broker_process.start().address) as channel:
        arguments = {KIND: True, "x-queue-type": queue_type}
        channel.queue_declare("q", durable=True, arguments=arguments)
        send(channel, "", "q", *map(str, range(20)))
        for _ in range(6):
            method, _, _ = channel.basic_get("q")
            channel.basic_ack(method.delivery_tag)
    broker_process.terminate()
    for _ in range(2):
        with channel_of(broker_process.restart().address) as channel:
            send(channel, "", "q", *map(str, range(6, 20)))
            assert ready(channel, "q") == 14
    with channel_of(broker_process.address) as channel:
        send(channel, "", "q", *map(str, range(20)))
        assert drain(channel, "q") == [str(number).encode() for number in (*range(6, 20), *range(6))]
    (row,) = ask(broker_process.folder, "list_queues")
    assert row["duplicates_dropped"] == 28


def test_an_exchange_lets_a_value_through_once(broker_process: BrokerProcess) -> None:
    """A repeated value is unroutable, and goes to the alternate exchange; the oldest of four values is forgotten."""
    with channel_of(broker_process.start().address) as channel:
        channel.exchange_declare("other", "fanout")
        channel.exchange_declare("x", KIND, durable=True, arguments={**DISK, "alternate-exchange": "other"})
        channel.queue_declare("q", durable=True)
        channel.queue_declare("again", durable=True)
        channel.queue_bind("q", "x", "any")
        channel.queue_bind("again", "other")
        send(channel, "x", "k", "a", "b", "a", None, None)
        assert drain(channel, "q") == [b"a", b"b", b"None", b"None"]
        assert drain(channel, "again") == [b"a"]
        rows = {row["name"]: row["duplicates_dropped"] for row in ask(broker_process.folder, "list_exchanges")}
        assert rows["x"] == 1
    with channel_of(broker_process.restart().address) as channel:
        drain(channel, "q")  # the kill may have undone the last acks
        send(channel, "x", "k", "b", "c", "d", "a")
        assert drain(channel, "q") == [b"c", b"d", b"a"]
        assert ready(channel, "amq.deduplication.x") == 3
        channel.queue_purge("amq.deduplication.x")
        send(channel, "x", "k", "a")
        assert drain(channel, "q") == [b"a"]
        channel.exchange_delete("x")
    with channel_of(broker_process.restart().address) as channel:
        channel.exchange_declare("x", KIND, durable=True, arguments={"x-cache-size": "3"})
        channel.queue_bind("q", "x")
        drain(channel, "q")
        send(channel, "x", "k", "a", "a", mandatory=False)
        assert drain(channel, "q") == [b"a"]
        with pytest.raises(UnroutableError):
            send(channel, "x", "k", "a", mandatory=True)
    with channel_of(broker_process.restart().address) as channel:  # the cache was in memory
        drain(channel, "q")
        send(channel, "x", "k", "a")
        assert drain(channel, "q") == [b"a"]


def test_a_transaction_passes_a_value_once(broker_process: BrokerProcess) -> None:
    """Two equal messages of a commit are one, in an exchange and in a queue; a rolled back one is not known."""
    with pika.BlockingConnection(parameters(broker_process.start().address)) as connection:
        channel = connection.channel()
        channel.exchange_declare("x", KIND, arguments=DISK)
        channel.queue_declare("q", arguments={KIND: True})
        channel.queue_declare("p")
        channel.queue_bind("p", "x")
        channel.tx_select()
        for end in (channel.tx_rollback, channel.tx_commit):
            send(channel, "x", "", "a", "a")
            send(channel, "", "q", "a", "a")
            end()
        assert (drain(channel, "p"), drain(channel, "q")) == ([b"a"], [b"a"])


def test_what_a_full_queue_refused_may_come_again(broker_process: BrokerProcess) -> None:
    """A nacked message is not known to the exchange."""
    with channel_of(broker_process.start().address) as channel:
        channel.exchange_declare("x", KIND, arguments=DISK)
        channel.queue_declare("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        channel.queue_bind("q", "x")
        send(channel, "x", "", "a")
        with pytest.raises(pika.exceptions.NackError):
            send(channel, "x", "", "b")
        assert drain(channel, "q") == [b"a"]
        send(channel, "x", "", "b")
        assert drain(channel, "q") == [b"b"]


def test_a_fanout_to_a_thousand_queues_is_deduplicated(broker_process: BrokerProcess) -> None:
    """A message that enters its queues over several turns is known at once."""
    with channel_of(broker_process.start().address) as channel:
        channel.exchange_declare("f", "fanout")
        for number in range(1000):
            channel.queue_declare(f"q{number}", arguments={KIND: True} if number == 999 else {})
            channel.queue_bind(f"q{number}", "f")
    with pika.BlockingConnection(parameters(broker_process.address)) as connection:
        channel = connection.channel()
        send(channel, "f", "", "a", "a")
        channel.confirm_delivery()
        send(channel, "f", "", "a")
        assert (ready(channel, "q0"), ready(channel, "q999")) == (3, 1)


def test_a_message_that_waits_for_its_time_is_known(broker_process: BrokerProcess) -> None:
    """While it is held, after kill -9, and once it is ready."""
    address = broker_process.start().address
    ask(broker_process.folder, "set_policy", name="p", pattern="q", definition={"hold-until-header": "eta"})
    eta = (datetime.now(UTC) + timedelta(seconds=6)).isoformat()
    with channel_of(address) as channel:
        channel.queue_declare("q", durable=True, arguments={KIND: True})
        send(channel, "", "q", "a", "a", eta=eta)
    with channel_of(broker_process.restart().address) as channel:
        send(channel, "", "q", "a", "b")
        (row,) = ask(broker_process.folder, "list_queues")
        assert (row["messages_ready"], row["messages"], row["duplicates_dropped"]) == (1, 2, 1)
        wait_until(lambda: ready(channel, "q") == 2, "its time")
        send(channel, "", "q", "a")
        assert sorted(drain(channel, "q")) == [b"a", b"b"]


async def test_values_are_forgotten_after_their_time() -> None:
    """The time of the exchange, or that of the message; a message that expires in a queue makes room for another."""
    async with Broker() as broker, await aio_pika.connect(broker.url) as connection:
        channel: Any = await connection.channel()
        arguments = {"x-cache-size": 10, "x-cache-ttl": 60_000}
        exchange: Any = await channel.declare_exchange("x", "x-message-deduplication", arguments=arguments)
        queue: Any = await channel.declare_queue("q")
        await queue.bind(exchange)
        own: Any = await channel.declare_queue("own", arguments={KIND: True, "x-message-ttl": 60_000})

        async def publish(value: str, **headers: Any) -> int:
            message = aio_pika.Message(b"", headers={HEADER: value, **headers})
            await exchange.publish(message, "", mandatory=False)
            await channel.default_exchange.publish(message, "own")
            return broker.queue("q").ready

        assert [await publish("a"), await publish("b", **{"x-cache-ttl": 1000}), await publish("a")] == [1, 2, 2]
        broker.clock.advance(1.001)
        assert [await publish("a"), await publish("b", **{"x-cache-ttl": 1000})] == [2, 3]
        broker.clock.advance(59)
        assert [await publish("a"), await publish("b")] == [4, 5]
        assert (await own.get()).headers[HEADER] in ("a", b"a")
        assert broker.queue("own").ready == 1


async def test_a_value_is_logged_after_its_message(tmp_path: Path) -> None:
    """A crash between the two lets a publisher that sends again through, so that nothing is lost."""
    async with running_broker(tmp_path) as broker, client_of(broker) as channel:
        exchange: Any = await channel.declare_exchange("x", "x-message-deduplication", durable=True, arguments=DISK)
        queue = await channel.declare_queue("q", durable=True)
        await queue.bind(exchange)
        await exchange.publish(aio_pika.Message(b"", headers={HEADER: "a"}, delivery_mode=2), "")
        places = []
        for name in ("q", "amq.deduplication.x"):
            contents = queue_of(broker, name).level.manager.open.contents
            assert contents is not None
            places.append(contents[0].position)
        assert 0 < places[0] < places[1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "Missing or invalid argument, 'x-cache-size' must be an integer greater than 0"),
        ({"x-cache-size": 0}, "Missing or invalid argument, 'x-cache-size' must be an integer greater than 0"),
        ({"x-cache-size": "many"}, "Missing or invalid argument, 'x-cache-size' must be an integer greater than 0"),
        ({"x-cache-size": 1, "x-cache-ttl": -1}, "Invalid argument, 'x-cache-ttl' must be an integer greater than 0"),
        (
            {"x-cache-size": 1, "x-cache-persistence": "tape"},
            "Invalid argument, 'x-cache-persistence' must be either 'disk' or 'memory'",
        ),
    ],
)
def test_arguments_of_the_exchange(broker_process: BrokerProcess, arguments: dict[str, Any], text: str) -> None:
    """The plugin's texts, and nothing is declared."""
    with pika.BlockingConnection(parameters(broker_process.start().address)) as connection:
        with channel_closed(406, f"PRECONDITION_FAILED - {text}"):
            connection.channel().exchange_declare("x", KIND, arguments=arguments)
        with channel_closed(404, "NOT_FOUND - no exchange 'x' in vhost '/'"):
            connection.channel().exchange_declare("x", passive=True)
        with channel_closed(
            406,
            "PRECONDITION_FAILED - invalid arg 'x-message-deduplication' for queue 'q' in vhost '/': "
            "{unacceptable_type,longstr}",
        ):
            connection.channel().queue_declare("q", arguments={KIND: "true"})


def test_a_dead_letter_that_is_there_already_is_dropped(tmp_path: Path) -> None:
    """A queue of dead letters without duplicates keeps one of each."""
    broker = BrokerProcess(tmp_path / "data").start()
    try:
        with channel_of(broker.address) as channel:
            dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
            channel.queue_declare("dead", durable=True, arguments={KIND: True})
            channel.queue_declare("q", durable=True, arguments=dead)
            send(channel, "", "q", "a", "a", "b")
            for _ in range(3):
                channel.basic_reject(channel.basic_get("q")[0].delivery_tag, requeue=False)
            assert drain(channel, "dead") == [b"a", b"b"]
    finally:
        broker.kill()
