"""Compare a second declare with the existing object. Texts and compared arguments: RabbitMQ 4.3."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker.amqp.errors import ChannelError
from broker.core.arguments import amqp_type, text, type_class
from broker.core.names import Resource
from broker.core.queue.queue import Queue
from broker.core.queue.queue_arguments import compared_arguments
from broker.core.queue.rules import queue_type
from broker.routing.exchange import Exchange

# RabbitMQ compares the first of these, but no arguments of its plugins' exchange types. The others are SlotMQ's own.
EXCHANGE_COMPARED: Final = ("alternate-exchange", "x-topic-dialect", "x-topic-index")


def check_same_exchange(
    resource: Resource,
    exchange: Exchange,
    type: str,
    *,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: Mapping[str, Any],
) -> None:
    """Check that a declare describes the existing exchange. Raises: 406, for the first difference."""
    _check_field(resource, "type", exchange.type, type)
    _check_field(resource, "durable", exchange.durable, durable)
    _check_field(resource, "auto_delete", exchange.auto_delete, auto_delete)
    _check_field(resource, "internal", exchange.internal, internal)
    _check_arguments(resource, exchange.arguments, arguments, EXCHANGE_COMPARED)


def check_same_queue(
    resource: Resource, queue: Queue, *, durable: bool, auto_delete: bool, arguments: Mapping[str, Any]
) -> None:
    """Check that a declare describes the existing queue. Raises: 406, for the first difference."""
    _check_field(resource, "durable", queue.durable, durable)
    _check_field(resource, "auto_delete", queue.auto_delete, auto_delete)
    _check_arguments(resource, queue.arguments, arguments, compared_arguments(queue.arguments))


def _check_field(resource: Resource, name: str, current: object, received: object) -> None:
    if current != received:
        raise _inequivalent(resource, name, f"'{text(current)}'", f"'{text(received)}'")


def _check_arguments(
    resource: Resource, current: Mapping[str, Any], received: Mapping[str, Any], compared: Iterable[str]
) -> None:
    for name in compared:
        if name in current and name in received:
            old, new = current[name], received[name]
            if type_class(old) != type_class(new) or old != new:
                raise _inequivalent(resource, name, f"'{text(old)}'", f"'{text(new)}'")
        elif name == "x-queue-type":  # a queue is classic if its declare names no type
            _check_field(resource, name, queue_type(current), queue_type(received))
        elif name in current or name in received:
            raise _inequivalent(resource, name, _whole(current, name), _whole(received, name))


def _inequivalent(resource: Resource, name: str, current: str, received: str) -> ChannelError:
    return ChannelError(406, f"inequivalent arg '{name}' for {resource}: received {received} but current is {current}")


def _whole(arguments: Mapping[str, Any], name: str) -> str:
    if name not in arguments:
        return "none"
    return f"the value '{text(arguments[name])}' of type '{amqp_type(arguments[name])}'"
