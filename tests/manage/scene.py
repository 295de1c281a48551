"""A broker in use, with which RabbitMQ's management API was recorded and ours is compared."""

from __future__ import annotations

from typing import Any

import pika

__all__ = ["PATHS", "POLICY", "REFUSED", "SHOP", "Scene"]

SHOP = {"description": "A shop", "tags": "a,b"}
POLICY: dict[str, Any] = {"pattern": "^work$", "definition": {"max-length-bytes": 100_000}, "priority": 7}

PATHS = (
    "overview", "overview?lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5", "cluster-name",
    "extensions", "auth", "feature-flags", "nodes", "vhosts", "vhosts/shop", "vhosts/shop/connections",
    "vhosts/shop/channels", "queues", "queues?disable_stats=true",
    "queues?disable_stats=true&enable_queue_totals=true", "queues?page=1&page_size=2",
    "queues?page=1&page_size=2&sort=name&sort_reverse=true&pagination=false",
    "queues?columns=name,message_stats.publish,arguments", "queues/shop",
    "queues/shop?page=1&page_size=10&name=^w&use_regex=true&pagination=false", "queues/shop/work",
    "queues/shop/work?lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5", "queues/shop/safe",
    "queues/shop/work/bindings", "exchanges/shop", "exchanges/shop/orders", "exchanges/shop/amq.default",
    "exchanges/shop/orders/bindings/source", "exchanges/shop/audit/bindings/destination", "bindings",
    "bindings/shop", "bindings/shop/e/orders/q/work", "bindings/shop/e/orders/q/work/order.%23",
    "bindings/shop/e/orders/e/audit", "connections", "connections?page=1", "channels", "consumers",
    "consumers/shop", "whoami",
)  # fmt: skip
"""Recorded paths below /api."""

REFUSED = (
    "queues/shop/none", "queues/none/work", "exchanges/shop/none", "vhosts/none", "nodes/none@nowhere",
    "connections/none", "channels/none", "queues?page=0", "queues?page=x", "queues?page=1&page_size=501",
    "queues?page=9", "queues?page=1&name=(&use_regex=true", "queues?sort=nothing",
    "bindings/shop/e/orders/q/work/nothing", "bindings/shop/e/none/q/work", "nothing",
)  # fmt: skip


ACKED = 8  # the messages that the consumer of `work` acks; five more are delivered to it


class Scene:
    """Queues, exchanges, bindings, and clients that publish, consume and get, in the existing vhost `shop`.

    Call it in another thread than the broker's: its clients block.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._connections: list[pika.BlockingConnection] = []
        declaring = self._channel("declarer")
        declaring.exchange_declare("audit", "fanout", durable=True)
        declaring.exchange_declare("orders", "topic", durable=True, arguments={"alternate-exchange": "audit"})
        declaring.exchange_declare("by-headers", "headers", auto_delete=True, internal=False)
        declaring.queue_declare(
            "work",
            durable=True,
            arguments={"x-max-length": 1000, "x-dead-letter-exchange": "", "x-message-ttl": 3600000},
        )
        declaring.queue_declare("safe", durable=True, arguments={"x-queue-type": "quorum"})
        declaring.queue_declare("lost")
        declaring.queue_declare("own", exclusive=True)
        declaring.queue_declare("idle", auto_delete=True, arguments={"x-max-priority": 2})
        declaring.queue_bind("work", "orders", "order.#")
        declaring.queue_bind("work", "orders", "weird key/with~tilde")
        declaring.queue_bind("safe", "orders", "order.safe")
        declaring.queue_bind("lost", "audit", "")
        declaring.exchange_bind("audit", "orders", "audit.*")
        declaring.queue_bind("work", "by-headers", "", {"x-match": "all", "kind": "order", "count": 3})
        publishing = self._channel("publisher")
        publishing.confirm_delivery()
        for number in range(30):
            publishing.basic_publish("orders", "order.new", b"body %d" % number, _properties(number % 2 + 1))
        publishing.basic_publish("orders", "order.safe", b"safe", _properties(2))
        publishing.basic_publish("orders", "audit.x", b"heard", _properties(1))
        try:
            publishing.basic_publish("by-headers", "x", b"nowhere", mandatory=True)
        except pika.exceptions.UnroutableError:
            pass
        publishing.basic_publish("", "idle", b"prior", pika.BasicProperties(priority=2))
        fetching = self._channel("fetcher")
        fetching.basic_get("work")
        fetching.basic_get("work", auto_ack=True)
        declaring.basic_get("own", auto_ack=True)
        self._received = 0
        consuming = self._channel("consumer")
        consuming.basic_qos(prefetch_count=5)
        consuming.basic_consume("idle", self._count, auto_ack=True, consumer_tag="idler")
        self._receive(1)
        consuming.basic_consume("work", self._acknowledge, consumer_tag="worker", arguments={"x-priority": 3})
        self._receive(1 + ACKED + 5)

    def _receive(self, count: int) -> None:
        while self._received < count:
            self._connections[-1].process_data_events(1)

    def _count(self, _channel: Any, _method: Any, _properties: Any, _body: bytes) -> None:
        self._received += 1

    def _acknowledge(self, channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        self._received += 1
        if method.delivery_tag <= ACKED + 1:
            channel.basic_ack(method.delivery_tag)

    def _channel(self, name: str) -> Any:
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(
                self._host,
                self._port,
                "shop",
                heartbeat=0,
                client_properties={"connection_name": name},
            )
        )
        self._connections.append(connection)
        return connection.channel()

    def close(self) -> None:
        """Close the clients."""
        for connection in self._connections:
            connection.close()


def _properties(delivery_mode: int) -> pika.BasicProperties:
    return pika.BasicProperties(delivery_mode=delivery_mode)
