"""Objects and messages of every kind that a data folder can contain, and a listing of them.

Time passes between the recording of a folder and the test that opens it. A message that expires or becomes due is
therefore counted both in the queue to which it was published and in its target queue.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pika
from pika.adapters.blocking_connection import BlockingChannel

from broker.cli.control_client import ask
from tests.broker_process import BrokerAddress, BrokerProcess
from tests.integration.pika.conversation import parameters

SMALL: Final = {
    "SLOTMQ_SLOTS__WINDOW_MESSAGES": "50",
    "SLOTMQ_MEMORY__RESIDENT_MAX_BYTES": "1048576",
    "SLOTMQ_STORE__SEGMENT_BYTES": "1048576",
    "SLOTMQ_STORE__CHECKPOINT_INTERVAL_MS": "1000",
    "SLOTMQ_STORE__DISK_FREE_MIN_BYTES": "0",
}
"""The smallest sizes allowed, so that a few thousand messages fill several segments, slots and queue logs."""

VHOST: Final = "second é"
LONG_MS: Final = 4_000_000_000  # 46 days: the longest delays and TTLs have 32 bits
BACKLOG: Final = 1500
NUMBERED: Final = 5
QUEUES: Final = ("backlog", "levels", "quorum", "dead", "routed", "numbered", "policed", "purged")
SAME: Final[Mapping[str, tuple[str, ...]]] = {
    "vhosts": ("name",),
    "users": ("name", "password_hash", "tags"),
    "permissions": ("user", "vhost", "configure", "write", "read"),
    "topic_permissions": ("user", "vhost", "exchange", "write", "read"),
    "policies": ("vhost", "name", "pattern", "definition", "priority", "apply-to"),
    "queues": ("vhost", "name", "durable", "auto_delete", "arguments"),
    "exchanges": ("vhost", "name", "type", "durable", "auto_delete", "internal", "arguments"),
    "bindings": ("vhost", "source", "destination", "destination_type", "routing_key", "arguments"),
}
"""The parts of the definitions that no version changes."""


def build(broker: BrokerProcess) -> None:
    """Create all objects and messages in a new folder, and wait until they are on disk."""
    ask(broker.folder, "add_vhost", name=VHOST)
    ask(broker.folder, "add_user", name="alice", password="alice's", tags=["monitoring"])
    ask(broker.folder, "set_permission", user="alice", vhost="/", configure="^a", write=".*", read="b$")
    ask(broker.folder, "set_permission", user="guest", vhost=VHOST, configure=".*", write=".*", read=".*")
    ask(broker.folder, "set_topic_permission", user="alice", vhost="/", exchange="amq.topic", write="^w", read="^r")
    ask(
        broker.folder, "set_policy", name="short", vhost="/", pattern="^policed$", definition={"max-length": 2},
        priority=3, apply_to="queues", operator=False,
    )  # fmt: skip
    ask(broker.folder, "tap_add", vhost="/", exchange="amq.topic", pattern="#", name="heard", cursors=["reader"])
    with pika.BlockingConnection(parameters(broker.address)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        _exchanges(channel)
        _rules(channel)
        _numbered(channel)
        _transaction(connection.channel())
        _backlog(channel)
    with pika.BlockingConnection(parameters(broker.address, virtual_host=VHOST)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("second", durable=True)
        _send(channel, "second", "in the second vhost")
    sealed = ask(broker.folder, "seal")["last_seal"]
    with pika.BlockingConnection(parameters(broker.address)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        _send(channel, "heard.after", "behind the cursor", exchange="amq.topic")
    assert ask(broker.folder, "seal")["last_seal"] > sealed
    ask(broker.folder, "cursor_set", vhost="/", name="reader", tap="heard", seal=sealed)


def go_on(broker: BrokerProcess) -> None:
    """Change a recovered folder, so that the killed broker leaves records after its last checkpoint."""
    with pika.BlockingConnection(parameters(broker.address)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for n in range(BACKLOG, BACKLOG + 100):
            _send(channel, "backlog", f"{n}", pad=200)
        _settle(channel, 40)
        channel.queue_bind("routed", "topic", "late.#")
        _send(channel, "late.binding", "by a late binding", exchange="topic")


def look(broker: BrokerProcess) -> dict[str, Any]:
    """Return the contents of a folder as clients and operators see them; messages are fetched and requeued."""
    definitions = ask(broker.folder, "export_definitions")
    return {
        "definitions": {
            kind: sorted(({name: row.get(name) for name in names} for row in definitions[kind]), key=repr)
            for kind, names in SAME.items()
        },
        "messages": _messages(broker.address),
        "due": _due(broker.folder),
        "taps": sorted([row["vhost"], row["name"], row["last_seal"]] for row in ask(broker.folder, "taps")),
        "cursors": sorted([row["name"], row["tap"], row["seal"]] for row in ask(broker.folder, "cursors")),
    }


def _exchanges(channel: BlockingChannel) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "direct": {},
        "fanout": {"alternate-exchange": "amq.fanout"},
        "topic": {"x-topic-dialect": "amqp", "x-topic-index": "trie"},
        "headers": {},
        "x-consistent-hash": {},
    }
    for kind, arguments in kinds.items():
        channel.exchange_declare(kind, kind, durable=True, arguments=arguments)
    channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "topic"})
    channel.exchange_bind("direct", "topic", "to.direct", {"some": "argument"})
    channel.queue_declare("routed", durable=True)
    channel.queue_declare("released", durable=True)
    for exchange, key in (("topic", "a.*.#"), ("direct", "to.direct"), ("x-consistent-hash", "3"), ("amq.topic", "#")):
        channel.queue_bind("routed", exchange, key)
    channel.queue_bind("routed", "headers", "", {"x-match": "all", "kind": "bound", "n": 7})
    channel.queue_bind("released", "later", "#")
    channel.queue_bind("routed", "topic", "gone")
    channel.queue_unbind("routed", "topic", "gone")
    _send(channel, "a.b.c", "by a pattern", exchange="topic")
    _send(channel, "to.direct", "through two exchanges", exchange="topic")
    _send(channel, "any", "by its hash", exchange="x-consistent-hash")
    _send(channel, "", "by its headers", exchange="headers", headers={"kind": "bound", "n": 7})
    for n in range(5):
        _send(channel, f"heard.{n}", f"heard {n}", exchange="amq.topic")
    for n in range(3):
        _send(channel, f"late.{n}", f"delayed {n}", exchange="later", headers={"x-delay": LONG_MS + n})


def _rules(channel: BlockingChannel) -> None:
    channel.queue_declare("levels", durable=True, arguments={"x-max-priority": 5})
    for n, priority in enumerate((1, 5, 0, 3, 5)):
        _send(channel, "levels", f"{n} of priority {priority}", priority=priority)
    channel.queue_declare("quorum", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 7})
    _send(channel, "quorum", "returned")
    channel.basic_nack(channel.basic_get("quorum")[0].delivery_tag)
    _send(channel, "quorum", "fresh")
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("dead", durable=True)
    channel.queue_declare("source", durable=True, arguments={**to_dead, "x-max-length": 10})
    _send(channel, "source", "rejected", headers={"own": ["header", 1, None]})
    channel.basic_reject(channel.basic_get("source")[0].delivery_tag, requeue=False)
    channel.queue_declare("expired", durable=True)
    channel.queue_declare(
        "expiring", durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "expired"}
    )
    _send(channel, "expiring", "expires", expiration=str(LONG_MS))
    channel.queue_declare("policed", durable=True, arguments={"x-unknown": "kept"})
    for body in "abcd":
        _send(channel, "policed", body)
    channel.queue_declare("purged", durable=True)
    _send(channel, "purged", "gone")
    channel.queue_purge("purged")
    channel.queue_declare("deleted", durable=True)
    _send(channel, "deleted", "gone")
    channel.queue_delete("deleted")


def _numbered(channel: BlockingChannel) -> None:
    channel.queue_declare("numbered", durable=True)
    for sequence in range(1, NUMBERED + 1):
        send_numbered(channel, sequence)


def _transaction(channel: BlockingChannel) -> None:
    channel.tx_select()
    for n in range(3):
        _send(channel, "numbered", f"in a transaction {n}")
    channel.tx_commit()
    _send(channel, "numbered", "rolled back")
    channel.tx_rollback()


def _backlog(channel: BlockingChannel) -> None:
    channel.queue_declare("backlog", durable=True)
    for n in range(BACKLOG):
        _send(channel, "backlog", f"{n}", pad=2000)
        if n == BACKLOG // 2:
            _settle(channel, 300)


def _settle(channel: BlockingChannel, count: int) -> None:
    """Ack two of three messages at the head of the backlog, and requeue the others."""
    got = [channel.basic_get("backlog")[0].delivery_tag for _ in range(count)]
    for n, tag in enumerate(got):
        if n % 3:
            channel.basic_ack(tag)
    channel.basic_nack(0, multiple=True)


def _send(channel: BlockingChannel, key: str, body: str, *, exchange: str = "", pad: int = 0, **more: Any) -> None:
    channel.basic_publish(exchange, key, body.ljust(pad).encode(), pika.BasicProperties(delivery_mode=2, **more))


def send_numbered(channel: BlockingChannel, sequence: int) -> None:
    """Publish a message with a producer's sequence number, which the broker accepts once."""
    headers = {"x-producer": "recorder", "x-seq": sequence}
    _send(channel, "numbered", f"number {sequence}", headers=headers)


def _messages(address: BrokerAddress) -> dict[str, list[list[Any]]]:
    with pika.BlockingConnection(parameters(address)) as connection:
        channel = connection.channel()
        found = {queue: _bodies(channel, queue) for queue in QUEUES}
        found["expired"] = [[body] for queue in ("expiring", "expired") for body, _ in _bodies(channel, queue)]
    with pika.BlockingConnection(parameters(address, virtual_host=VHOST)) as connection:
        found["second"] = _bodies(connection.channel(), "second")
    return found


def _due(folder: Path) -> int:
    """Return the number of delayed messages, released or not."""
    ready = {row["name"]: row["messages_ready"] for row in ask(folder, "list_queues", vhost="/")}
    count: int = ready["amq.delayed.later"] + ready["released"]
    return count


def _bodies(channel: BlockingChannel, queue: str) -> list[list[Any]]:
    """Return the body and headers of each message; closing the connection requeues the messages."""
    messages = []
    while (got := channel.basic_get(queue))[0] is not None:
        messages.append([got[2].decode().rstrip(), _plain(got[1].headers)])
    return messages


def _plain(headers: Any) -> Any:
    """Return headers as JSON, without the delivery count of some versions."""
    found = json.loads(json.dumps(headers, default=str))
    return found and {name: value for name, value in found.items() if name != "x-acquired-count"}
