"""Parse the destination of messages that an operator names: a queue, or an exchange with or without a routing key."""

from __future__ import annotations

from typing import Any

from broker.amqp.wire import SHORT_STRING_MAX_BYTES
from broker.core.names import is_short_text
from broker.core.queue.queue import Queue
from broker.core.vhost import Vhost
from broker.operations.request import OperationRefused
from broker.routing.exchange import Exchange

QUEUE, EXCHANGE = "queue:", "exchange:"


def queue_named(vhost: Vhost, name: str) -> Queue:
    """Return a queue that operators may fill and empty, with the newest policies applied. Raises: OperationRefused."""
    queue = vhost.queues.get(name)
    if queue is None:
        raise OperationRefused(f"no queue '{name}' in vhost '{vhost.name}'")
    if queue.is_internal:
        raise OperationRefused(f"queue '{name}' in vhost '{vhost.name}' is the broker's own")
    vhost.sweep.update(queue)
    return queue


def exchange_named(vhost: Vhost, name: str) -> Exchange:
    """Return an exchange. Raises: OperationRefused."""
    exchange = vhost.exchanges.get(name)
    if exchange is None:
        raise OperationRefused(f"no exchange '{name}' in vhost '{vhost.name}'")
    return exchange


def destination_of(vhost: Vhost, text: str) -> tuple[Queue | Exchange, str | None]:
    """Return the queue, or the exchange and the routing key, that QUEUE or EXCHANGE[:KEY] names.

    Names may contain colons: the whole text is tried first, then the shortest exchange name before a colon. The prefix
    `queue:` or `exchange:` allows only that kind.
    Raises: OperationRefused if neither exists, or both do; also for an internal queue or a key that is too long.
    """
    if text.startswith(QUEUE):
        return queue_named(vhost, text.removeprefix(QUEUE)), None
    if text.startswith(EXCHANGE):
        return _exchange_and_key(vhost, text.removeprefix(EXCHANGE))
    if text not in vhost.queues:
        return _exchange_and_key(vhost, text, "queue or exchange")
    if text in vhost.exchanges:
        raise OperationRefused(f"'{text}' is a queue and an exchange: say '{QUEUE}{text}' or '{EXCHANGE}{text}'")
    return queue_named(vhost, text), None


def _exchange_and_key(vhost: Vhost, text: str, kinds: str = "exchange") -> tuple[Exchange, str | None]:
    if text in vhost.exchanges:
        return vhost.exchanges[text], None
    at = text.find(":")
    while at >= 0:
        exchange, key = vhost.exchanges.get(text[:at]), text[at + 1 :]
        if exchange is not None:
            if not is_short_text(key):
                raise OperationRefused(f"a routing key has at most {SHORT_STRING_MAX_BYTES} bytes")
            return exchange, key
        at = text.find(":", at + 1)
    raise OperationRefused(f"no {kinds} '{text}' in vhost '{vhost.name}'")


def destination_json(destination: Queue | Exchange, key: str | None) -> dict[str, Any]:
    """Return a destination as JSON."""
    if isinstance(destination, Queue):
        return {"queue": destination.name}
    return {"exchange": destination.name} | ({} if key is None else {"routing_key": key})
