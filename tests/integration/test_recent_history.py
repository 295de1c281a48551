"""Exchanges that give the last messages to what is bound later, through pika, after kill -9 too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import UnroutableError

from tests.broker_process import BrokerProcess
from tests.integration.pika.conversation import channel_closed, channel_of, drain, parameters, ready

KIND: Final = "x-recent-history"


def send(
    channel: BlockingChannel, numbers: Iterator[int] | range, exchange: str = "x", no_store: object = None
) -> None:
    """Publish persistent messages with these numbers."""
    headers = {} if no_store is None else {"x-recent-history-no-store": no_store}
    properties = pika.BasicProperties(delivery_mode=2, headers=headers)
    for number in numbers:
        channel.basic_publish(exchange, f"k{number}", b"%d" % number, properties)


def numbers_in(channel: BlockingChannel, queue: str) -> list[int]:
    """Fetch everything from a queue and return the numbers."""
    return [int(body) for body in drain(channel, queue)]


def test_what_is_bound_gets_the_last_messages_before_later_ones(broker_process: BrokerProcess) -> None:
    """20 by default, or as many as the argument says; the broker may be killed, and the messages paged out."""
    broker_process.environment["SLOTMQ_SLOTS__WINDOW_MESSAGES"] = "4"
    with channel_of(broker_process.start().address) as channel:
        channel.exchange_declare("x", KIND, durable=True)
        channel.exchange_declare("few", KIND, durable=True, arguments={"x-recent-history-length": 3})
        channel.queue_declare("q", durable=True)
        channel.queue_declare("p", durable=True)
        send(channel, range(30))
        send(channel, range(30), "few")
    with pika.BlockingConnection(parameters(broker_process.restart().address)) as connection:
        channel = connection.channel()
        channel.queue_bind("q", "x")
        for number in (30, 31):  # right after the bind
            channel.basic_publish("x", "", b"%d" % number, pika.BasicProperties(delivery_mode=2))
        channel.queue_bind("q", "x")  # it is bound already
        channel.queue_bind("p", "few")
        assert numbers_in(channel, "q") == list(range(10, 32))
        assert numbers_in(channel, "p") == [27, 28, 29]
        channel.queue_bind("p", "few", "another")
        assert numbers_in(channel, "p") == [27, 28, 29]
        channel.exchange_declare("x", KIND, durable=True, passive=True)
        assert ready(channel, "amq.history.x") == 20


def test_a_message_may_stay_out_of_the_history(broker_process: BrokerProcess) -> None:
    """x-recent-history-no-store keeps a message out; a message for the history alone is unroutable."""
    with channel_of(broker_process.start().address) as channel:
        channel.exchange_declare("x", KIND)
        channel.queue_declare("q")
        send(channel, range(3))
        send(channel, range(3, 6), no_store=True)
        send(channel, range(6, 8), no_store="yes")
        with pytest.raises(UnroutableError):
            channel.basic_publish("x", "", b"8", mandatory=True)
        channel.queue_bind("q", "x")
        assert numbers_in(channel, "q") == [0, 1, 2, 6, 7, 8]
        channel.basic_publish("x", "", b"9", mandatory=True)
        channel.queue_purge("amq.history.x")
        channel.queue_declare("late")
        channel.queue_bind("late", "x")
        assert (numbers_in(channel, "q"), numbers_in(channel, "late")) == ([9], [])


def test_a_bound_exchange_routes_the_history_by_its_own_bindings(broker_process: BrokerProcess) -> None:
    """Each message keeps its routing key; a history that is deleted with its exchange does not come back."""
    with channel_of(broker_process.start().address) as channel:
        channel.exchange_declare("x", KIND, durable=True)
        channel.exchange_declare("y", "direct", durable=True)
        channel.queue_declare("q", durable=True)
        channel.queue_bind("q", "y", "k2")
        send(channel, range(5))
        channel.exchange_bind("y", "x")
        assert numbers_in(channel, "q") == [2]
        channel.exchange_delete("x")
        channel.exchange_declare("x", KIND, durable=True)
        channel.queue_bind("q", "x")
        assert numbers_in(channel, "q") == []


def test_a_history_is_bounded_in_bytes(broker_process: BrokerProcess) -> None:
    """Beyond 16 MiB of bodies the oldest messages go."""
    with channel_of(broker_process.start().address) as channel:
        channel.exchange_declare("x", KIND)
        channel.queue_declare("q")
        for number in range(5):
            channel.basic_publish("x", "", bytes([number]) * (4 << 20))
        channel.queue_bind("q", "x")
        assert [body[0] for body in drain(channel, "q")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (0, "Invalid argument 0, 'x-recent-history-length' must be a positive integer"),
        ("5", "Invalid argument '5', 'x-recent-history-length' must be a positive integer"),
        (10_001, "Invalid argument 10001, 'x-recent-history-length' must be at most 10000"),
    ],
)
def test_arguments_of_the_exchange(broker_process: BrokerProcess, length: Any, text: str) -> None:
    """A bad length is 406, and the memory of an exchange is no client's."""
    with pika.BlockingConnection(parameters(broker_process.start().address)) as connection:
        with channel_closed(406, f"PRECONDITION_FAILED - {text}"):
            connection.channel().exchange_declare("x", KIND, arguments={"x-recent-history-length": length})
        connection.channel().exchange_declare("x", KIND)
        reason = "holds the history of an exchange: it can be purged, nothing else"
        with channel_closed(403, f"ACCESS_REFUSED - queue 'amq.history.x' in vhost '/' {reason}"):
            connection.channel().basic_get("amq.history.x")
