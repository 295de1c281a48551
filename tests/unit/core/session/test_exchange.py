"""Exchanges of what RabbitMQ does not have, from the client's side; the recorded conversations have the others."""

from __future__ import annotations

import pytest
from pamqp import commands

from broker.amqp.codec import Method
from tests.unit.core.room import Client

Declare, Delete = commands.Exchange.Declare, commands.Exchange.Delete
Bind, Unbind = commands.Exchange.Bind, commands.Exchange.Unbind
INEQUIVALENT = "channel 406 PRECONDITION_FAILED - inequivalent arg "
FAILED = "channel 406 PRECONDITION_FAILED - "
NO_INDEX = f"{FAILED}Invalid argument, 'x-topic-index' must be one of auto, bitmap, trie, dfa, "
TOPIC = Declare(exchange="x", exchange_type="topic")
MQTT = Declare(exchange="x", exchange_type="topic", arguments={"x-topic-dialect": "mqtt"})

REFUSALS: list[tuple[str, list[Method], Method, str]] = [
    ("dialect differs", [TOPIC], Declare(exchange="x", exchange_type="topic", arguments={"x-topic-dialect": "mqtt"}),
     INEQUIVALENT + "'x-topic-dialect' for exchange 'x' in vhost '/': "
     "received the value 'mqtt' of type 'longstr' but current is none"),
    ("unknown dialect", [], Declare(exchange="x", exchange_type="topic", arguments={"x-topic-dialect": "stomp"}),
     "channel 406 PRECONDITION_FAILED - Invalid argument, 'x-topic-dialect' must be one of amqp, mqtt, not 'stomp'"),
    ("index differs", [TOPIC], Declare(exchange="x", exchange_type="topic", arguments={"x-topic-index": "trie"}),
     INEQUIVALENT + "'x-topic-index' for exchange 'x' in vhost '/': "
     "received the value 'trie' of type 'longstr' but current is none"),
    ("unknown index", [], Declare(exchange="x", exchange_type="topic", arguments={"x-topic-index": "linear"}),
     NO_INDEX + "not 'linear'"),
    ("an index that is only compared with", [],
     Declare(exchange="x", exchange_type="topic", arguments={"x-topic-index": "conventional"}),
     NO_INDEX + "not 'conventional'"),
    ("bind: no topic filter", [MQTT], Bind(destination="amq.topic", source="x", routing_key="a/#/b"),
     FAILED + "binding key 'a/#/b' is not a topic filter: '#' must be the last level"),
    ("bind: too many hashes", [], Bind(destination="amq.fanout", source="amq.topic", routing_key="#.a.#.b.#"),
     FAILED + "binding key '#.a.#.b.#' has 3 '#' words, the limit is 2"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "method", "close"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_a_method_that_cannot_be_done_closes_with_its_reason(
    before: list[Method], method: Method, close: str, client: Client
) -> None:
    """Each is 406 with its reason."""
    for earlier in before:
        client.tell(1, earlier)
    assert client.refused(method) == close
