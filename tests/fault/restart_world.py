"""Objects and messages of every kind that a restart keeps or discards, and a listing of those that exist."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final, TypeAlias

import pika
from pika.adapters.blocking_connection import BlockingChannel

from broker.cli.control_client import ask
from tests.broker_process import BrokerProcess
from tests.integration.pika.conversation import parameters

HOUR_MS: Final = 3_600_000
SOON_MS: Final = 300
"""A delay that ends at the latest while the broker is down."""

Mark: TypeAlias = tuple[str, bool]
Binding: TypeAlias = tuple[str, str, str, str]


def _all(kind: str, *words: tuple[str, str]) -> list[tuple[str, bool, bool, bool]]:
    return [
        ("-".join((kind, *(word[not flag] for word, flag in zip(words, flags, strict=True)))), *flags)
        for flags in product((True, False), (True, False), (True, False))
    ]


QUEUES: Final = _all("queue", ("durable", "transient"), ("exclusive", "shared"), ("auto", "stays"))
EXCHANGES: Final = _all("exchange", ("durable", "transient"), ("auto", "stays"), ("internal", "open"))
TYPES: Final[dict[str, dict[str, Any]]] = {
    "direct": {},
    "fanout": {"alternate-exchange": "amq.fanout"},
    "topic": {"x-topic-dialect": "mqtt"},
    "headers": {},
    "x-consistent-hash": {},
    "x-delayed-message": {"x-delayed-type": "topic"},
}


@dataclass
class Found:
    """The broker's listings, and the messages of each queue with their redelivered flags."""

    queues: dict[str, dict[str, Any]] = field(default_factory=dict)
    exchanges: dict[str, dict[str, Any]] = field(default_factory=dict)
    bindings: list[Binding] = field(default_factory=list)
    messages: dict[str, list[Mark]] = field(default_factory=dict)
    policies: dict[str, dict[str, Any]] = field(default_factory=dict)
    vhosts: set[str] = field(default_factory=set)

    def bodies(self, queue: str) -> list[str]:
        """Return the messages of a queue without their flags."""
        return [body for body, _ in self.messages[queue]]


def send(channel: BlockingChannel, queue: str, *bodies: str, exchange: str = "", mode: int = 2, **more: Any) -> None:
    """Publish messages and wait for their confirms."""
    for body in bodies:
        properties = pika.BasicProperties(delivery_mode=mode, **more)
        channel.basic_publish(exchange, queue, body.encode(), properties)


def build(broker: BrokerProcess, channel: BlockingChannel) -> None:
    """Declare all objects, delete some, and wait for a last confirm, which proves that all changes are on disk."""
    channel.confirm_delivery()
    _queues(channel)
    _exchanges(channel)
    _rules(broker, channel)
    _uses(channel)
    _deletions(broker, channel)
    send(channel, "queue-durable-shared-stays", "last")


def _queues(channel: BlockingChannel) -> None:
    for name, durable, exclusive, auto in QUEUES:
        channel.queue_declare(name, durable=durable, exclusive=exclusive, auto_delete=auto)
        send(channel, name, "persistent 1")
        send(channel, name, "transient", mode=1)
        send(channel, name, "persistent 2")


def _exchanges(channel: BlockingChannel) -> None:
    for name, durable, auto, internal in EXCHANGES:
        channel.exchange_declare(name, "topic", durable=durable, auto_delete=auto, internal=internal)
        for queue, *_ in QUEUES:
            channel.queue_bind(queue, name, "a.#")
            channel.queue_bind(queue, name, "gone")
            channel.queue_unbind(queue, name, "gone")
    for (source, *_), (destination, *_) in product(EXCHANGES, repeat=2):
        if source != destination:
            channel.exchange_bind(destination, source, "e2e.*", {"x-some": "argument"})
    for kind, arguments in TYPES.items():
        channel.exchange_declare(f"type-{kind}", kind, durable=True, arguments=arguments)


def _rules(broker: BrokerProcess, channel: BlockingChannel) -> None:
    def durable(name: str, **arguments: Any) -> None:
        channel.queue_declare(
            name, durable=True, arguments={key.replace("_", "-"): value for key, value in arguments.items()}
        )

    durable("levels", x_max_priority=5)
    for priority in (1, 5, 0, 3, 5):
        send(channel, "levels", f"priority {priority}", priority=priority)
    send(channel, "levels", "transient", priority=5, mode=1)

    durable("dead")
    durable("expiring", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    send(channel, "expiring", "soon", expiration=str(SOON_MS))
    send(channel, "expiring", "later", expiration=str(HOUR_MS))
    durable("aging", x_message_ttl=HOUR_MS, x_max_length=2, x_unknown="kept")
    send(channel, "aging", "dropped", "kept 1", "kept 2")

    channel.queue_bind("dead", "type-x-delayed-message", "delayed.#")
    send(channel, "delayed.1", "delay soon", exchange="type-x-delayed-message", headers={"x-delay": SOON_MS})
    send(channel, "delayed.2", "delay later", exchange="type-x-delayed-message", headers={"x-delay": HOUR_MS})
    send(channel, "delayed.3", "transient", exchange="type-x-delayed-message", headers={"x-delay": HOUR_MS}, mode=1)

    for name, operator, pattern, definition in (
        ("length", False, "^policed$", {"max-length": 3}),
        ("stricter", True, "^policed$", {"max-length": 2}),
        ("dropped", False, "^policed$", {"max-length": 1}),
    ):
        ask(
            broker.folder, "set_policy", name=name, vhost="/", pattern=pattern, definition=definition,
            priority=5 if name == "dropped" else 0, apply_to="queues", operator=operator,
        )  # fmt: skip
    ask(broker.folder, "delete_policy", name="dropped", vhost="/", operator=False)
    durable("policed")
    send(channel, "policed", *"abcd")


def _uses(channel: BlockingChannel) -> None:
    channel.queue_declare("used", durable=True)
    send(channel, "used", "acked", "requeued", "unacked", "fresh")
    got = [channel.basic_get("used")[0] for _ in range(3)]
    channel.basic_ack(got[0].delivery_tag)
    channel.basic_nack(got[1].delivery_tag)
    channel.queue_declare("purged", durable=True)
    send(channel, "purged", "gone")
    channel.queue_purge("purged")
    send(channel, "purged", "kept")


def _deletions(broker: BrokerProcess, channel: BlockingChannel) -> None:
    channel.queue_declare("deleted", durable=True)
    channel.queue_bind("deleted", "amq.topic", "k")
    send(channel, "deleted", "gone")
    channel.queue_delete("deleted")
    channel.queue_declare("again", durable=True)
    channel.queue_bind("again", "amq.topic", "k")
    send(channel, "again", "gone")
    channel.queue_delete("again")
    channel.queue_declare("again", durable=True)
    send(channel, "again", "kept")

    channel.exchange_declare("exchange-deleted", "fanout", durable=True)
    channel.queue_bind("again", "exchange-deleted")
    channel.exchange_delete("exchange-deleted")
    channel.exchange_declare("exchange-unused", "fanout", durable=True, auto_delete=True)
    channel.queue_bind("again", "exchange-unused")
    channel.queue_unbind("again", "exchange-unused")

    channel.queue_declare("left", durable=True, auto_delete=True)
    channel.basic_cancel(channel.basic_consume("left", lambda *_: None))

    for vhost in ("kept", "dropped"):
        ask(broker.folder, "add_vhost", name=vhost)
    ask(broker.folder, "delete_vhost", name="dropped")


def look(broker: BrokerProcess) -> Found:
    """Return all objects and messages; the latter are requeued, which sets their redelivered flags."""
    found = Found()
    for kind in ("queues", "exchanges", "policies"):
        setattr(found, kind, {row["name"]: row for row in ask(broker.folder, f"list_{kind}")})
    found.policies |= {row["name"]: row for row in ask(broker.folder, "list_operator_policies")}
    found.vhosts = {row["name"] for row in ask(broker.folder, "list_vhosts")}
    found.bindings = sorted(
        (row["source"], row["destination_type"], row["destination"], row["routing_key"])
        for row in ask(broker.folder, "list_bindings")
        if row["source"]
    )
    with pika.BlockingConnection(parameters(broker.address)) as connection:
        channel = connection.channel()
        for name in found.queues:
            if name.startswith("amq.delayed."):
                continue
            marks = []
            while (got := channel.basic_get(name))[0] is not None:
                marks.append((got[2].decode(), got[0].redelivered))
            found.messages[name] = marks
    return found
