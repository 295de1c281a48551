"""Export the broker's configuration as a definitions document that RabbitMQ reads too."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from broker.core.arguments import typed_table
from broker.core.names import is_predeclared
from broker.core.queue.queue import Queue
from broker.core.queue.rules import queue_type
from broker.routing.exchange import Exchange

if TYPE_CHECKING:
    from broker.core.vhost import Vhost

HIDDEN: Final = "amq."  # the prefix of the broker's internal objects


def topology_of(vhost: Vhost) -> dict[str, Iterator[dict[str, Any]]]:
    """Return the durable exchanges, queues and bindings of a vhost, without the broker's own exchanges and queues.

    The exchanges and queues are those that exist now; their bindings may change until the caller reads them.
    Cost: O(n) references. Each row is made when the caller reads it.
    """
    queues, exchanges = list(vhost.queues.values()), list(vhost.exchanges.values())
    ends: set[Any] = {*queues, *exchanges}
    return {
        "exchanges": (
            {
                "vhost": vhost.name,
                "name": exchange.name,
                "type": exchange.type,
                "durable": True,
                "auto_delete": exchange.auto_delete,
                "internal": exchange.internal,
                "arguments": typed_table(exchange.arguments),
            }
            for exchange in exchanges
            if exchange.durable and not is_predeclared(exchange.name)
        ),
        "queues": (
            {
                "vhost": vhost.name,
                "name": queue.name,
                "durable": True,
                "auto_delete": queue.auto_delete,
                "type": queue_type(queue.arguments),
                "arguments": typed_table(queue.arguments),
            }
            for queue in queues
            if queue.durable and not queue.name.startswith(HIDDEN)
        ),
        "bindings": ({"vhost": vhost.name, **row} for exchange in exchanges for row in _bindings(exchange, ends)),
    }


def user_fields(user: Mapping[str, Any]) -> dict[str, Any]:
    """Return a user with the hash in base64, because RabbitMQ accepts no other form.

    RabbitMQ imports a user whose algorithm it does not know, but refuses the user's logins until the password is set
    again.
    """
    password_hash = user["password_hash"]
    if password_hash.startswith("$"):  # an encoded argon2 hash
        password_hash = b64encode(password_hash.encode()).decode()
    return {**user, "password_hash": password_hash}


def _bindings(exchange: Exchange, ends: Collection[Any]) -> Iterator[dict[str, Any]]:
    """Yield the bindings of a durable exchange to durable destinations among `ends`."""
    if not exchange.durable or not exchange.name:
        return
    for bundle in list(exchange.bundles.values()):
        destination = bundle.destination
        if not destination.durable or destination.name.startswith(HIDDEN) or destination not in ends:
            continue
        for key, arguments in bundle.copy().items():
            yield {
                "source": exchange.name,
                "destination": destination.name,
                "destination_type": "queue" if isinstance(destination, Queue) else "exchange",
                "routing_key": key,
                "arguments": typed_table(arguments),
            }


def json_table(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return an argument table as JSON; types that JSON does not have are lost, as in RabbitMQ's answers."""
    return {name: _json(value) for name, value in arguments.items()}


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return json_table(value)
    if isinstance(value, (list, tuple)):
        return [_json(item) for item in value]
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, float) and value - value != 0:  # infinities and NaN
        return str(value)
    return value
