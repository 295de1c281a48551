"""Exchanges: declare, passive declare, delete, the predeclared ones, internal, auto-delete."""

from __future__ import annotations

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exchange_type import ExchangeType

from tests.integration.pika.conversation import channel_closed, drain

PREDECLARED = {
    "": "direct",
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}


@pytest.mark.parametrize("kind", [kind.value for kind in ExchangeType])
def test_declare_every_type(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str, kind: str
) -> None:
    """Every type of exchange can be declared, declared again, declared passively and deleted."""
    channel.exchange_declare(name, kind)
    channel.exchange_declare(name, kind)
    channel.exchange_declare(name, passive=True)
    channel.exchange_delete(name)
    with channel_closed(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'"):
        channel.exchange_declare(name, passive=True)
    assert connection.is_open


@pytest.mark.parametrize(("exchange", "kind"), [pair for pair in PREDECLARED.items() if pair[0]])
def test_predeclared_exchanges(channel: BlockingChannel, exchange: str, kind: str) -> None:
    """The predeclared exchanges exist, are durable and of their type, and may be declared with their own properties."""
    channel.exchange_declare(exchange, passive=True)
    channel.exchange_declare(exchange, kind, durable=True)


@pytest.mark.parametrize("method", ["declare", "delete", "bind", "unbind"])
def test_default_exchange_is_not_to_be_touched(channel: BlockingChannel, queue: str, method: str) -> None:
    """Every change of the default exchange is refused with 403."""
    with channel_closed(403, "ACCESS_REFUSED - operation not permitted on the default exchange"):
        match method:
            case "declare":
                channel.exchange_declare("", "direct", durable=True)
            case "delete":
                channel.exchange_delete("")
            case "bind":
                channel.queue_bind(queue, "", "key")
            case "unbind":
                channel.queue_unbind(queue, "", queue)


@pytest.mark.parametrize("exchange", [exchange for exchange in PREDECLARED if exchange])
def test_predeclared_exchanges_cannot_be_deleted(channel: BlockingChannel, exchange: str) -> None:
    """Deleting a predeclared exchange is refused with 403."""
    with channel_closed(403, f"ACCESS_REFUSED - deletion of system exchange '{exchange}' in vhost '/' not allowed"):
        channel.exchange_delete(exchange)


def test_reserved_exchange_names_are_refused(channel: BlockingChannel, name: str) -> None:
    """A client may not declare an exchange whose name starts with amq. and that does not exist."""
    text = f"ACCESS_REFUSED - exchange name 'amq.{name}' contains reserved prefix 'amq.*'"
    with channel_closed(403, text):
        channel.exchange_declare(f"amq.{name}", "direct")


def test_unknown_type(channel: BlockingChannel, name: str) -> None:
    """An unknown exchange type closes the channel with 406."""
    with channel_closed(406, "PRECONDITION_FAILED - unknown exchange type 'x-nothing'"):
        channel.exchange_declare(name, "x-nothing")


@pytest.mark.parametrize(
    ("argument", "received", "current"),
    [
        ("type", "'fanout'", "'direct'"),
        ("durable", "'true'", "'false'"),
        ("auto_delete", "'true'", "'false'"),
        ("internal", "'true'", "'false'"),
    ],
)
def test_declare_with_other_properties(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str, argument: str, received: str, current: str
) -> None:
    """Declaring an existing exchange with another property closes the channel with 406 and names both values."""
    channel.exchange_declare(name, "direct")
    options = {"type": {"exchange_type": "fanout"}}.get(argument, {"exchange_type": "direct", argument: True})
    text = (
        f"PRECONDITION_FAILED - inequivalent arg '{argument}' for exchange '{name}' in vhost '/': "
        f"received {received} but current is {current}"
    )
    with channel_closed(406, text):
        channel.exchange_declare(name, **options)
    connection.channel().exchange_delete(name)


def test_delete_of_a_missing_exchange_succeeds(channel: BlockingChannel, name: str) -> None:
    """delete is idempotent: deleting a missing exchange succeeds."""
    channel.exchange_delete(name)
    assert channel.is_open


def test_delete_if_unused(connection: pika.BlockingConnection, channel: BlockingChannel, queue: str, name: str) -> None:
    """delete with if-unused is refused with 406 while something is bound."""
    channel.exchange_declare(name, "fanout")
    channel.queue_bind(queue, name)
    with channel_closed(406, f"PRECONDITION_FAILED - exchange '{name}' in vhost '/' in use"):
        channel.exchange_delete(name, if_unused=True)
    other = connection.channel()
    other.queue_unbind(queue, name)
    other.exchange_delete(name, if_unused=True)
    with channel_closed(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'"):
        other.exchange_declare(name, passive=True)


def test_deleted_exchange_takes_its_bindings_along(channel: BlockingChannel, queue: str, name: str) -> None:
    """A new exchange of the same name starts without the old one's bindings."""
    channel.exchange_declare(name, "fanout")
    channel.queue_bind(queue, name)
    channel.exchange_delete(name)
    channel.exchange_declare(name, "fanout")
    channel.confirm_delivery()
    channel.basic_publish(name, "", b"nobody listens")
    assert drain(channel, queue) == []
    channel.exchange_delete(name)


def test_auto_delete_exchange_goes_with_its_last_binding(channel: BlockingChannel, queue: str, name: str) -> None:
    """An auto-delete exchange stays until it had a binding and the last one is removed."""
    channel.exchange_declare(name, "topic", auto_delete=True)
    channel.exchange_declare(name, passive=True)
    channel.queue_bind(queue, name, "a.#")
    channel.queue_bind(queue, name, "b.#")
    channel.queue_unbind(queue, name, "a.#")
    channel.exchange_declare(name, passive=True)
    channel.queue_unbind(queue, name, "b.#")
    with channel_closed(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'"):
        channel.exchange_declare(name, passive=True)


def test_auto_delete_exchange_goes_with_its_last_queue(channel: BlockingChannel, queue: str, name: str) -> None:
    """Deleting the last bound queue deletes an auto-delete exchange."""
    channel.exchange_declare(name, "direct", auto_delete=True)
    channel.queue_bind(queue, name, "key")
    channel.queue_delete(queue)
    with channel_closed(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'"):
        channel.exchange_declare(name, passive=True)


def test_internal_exchange_refuses_publishes(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    """A client that publishes to an internal exchange gets 403 and keeps its connection."""
    channel.exchange_declare(name, "direct", internal=True)
    channel.confirm_delivery()
    with channel_closed(403, f"ACCESS_REFUSED - cannot publish to internal exchange '{name}' in vhost '/'"):
        channel.basic_publish(name, "key", b"no")
    connection.channel().exchange_delete(name)


def test_passive_declare_ignores_the_type(channel: BlockingChannel) -> None:
    """A passive declare checks existence only: type and durability may be anything."""
    channel.exchange_declare("amq.topic", "fanout", passive=True, durable=False)
    channel.exchange_declare("amq.topic", "x-nothing", passive=True)


def test_nowait_methods_are_obeyed_in_order(connection: pika.BlockingConnection, name: str) -> None:
    """Methods with nowait get no answer and are done before later methods of the channel."""
    channel = connection.channel()
    impl = channel._impl
    impl.exchange_declare(name, "direct")
    impl.queue_declare(name, exclusive=True)
    impl.queue_bind(name, name, "key")
    channel.confirm_delivery()
    channel.basic_publish(name, "key", b"through", mandatory=True)
    assert drain(channel, name) == [b"through"]
    impl.queue_unbind(name, name, "key")
    impl.exchange_delete(name)
    with channel_closed(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'"):
        channel.exchange_declare(name, passive=True)
