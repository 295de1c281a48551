"""The Exchange class as a client meets it: answers, codes and texts."""

from __future__ import annotations

import pytest
from pamqp import commands

from broker.amqp.codec import Method
from tests.unit.core.room import Room

Declare, Delete = commands.Exchange.Declare, commands.Exchange.Delete
INEQUIVALENT = "channel 406 PRECONDITION_FAILED - inequivalent arg "
TOPIC = Declare(exchange="x", exchange_type="topic")
DEFAULT = "channel 403 ACCESS_REFUSED - operation not permitted on the default exchange"

REFUSALS: list[tuple[str, list[Method], Method, str]] = [
    ("type differs", [TOPIC], Declare(exchange="x", exchange_type="fanout"),
     INEQUIVALENT + "'type' for exchange 'x' in vhost '/': received 'fanout' but current is 'topic'"),
    ("durable differs", [TOPIC], Declare(exchange="x", exchange_type="topic", durable=True),
     INEQUIVALENT + "'durable' for exchange 'x' in vhost '/': received 'true' but current is 'false'"),
    ("auto_delete differs", [TOPIC], Declare(exchange="x", exchange_type="topic", auto_delete=True),
     INEQUIVALENT + "'auto_delete' for exchange 'x' in vhost '/': received 'true' but current is 'false'"),
    ("internal differs", [TOPIC], Declare(exchange="x", exchange_type="topic", internal=True),
     INEQUIVALENT + "'internal' for exchange 'x' in vhost '/': received 'true' but current is 'false'"),
    ("predeclared, differs", [], Declare(exchange="amq.topic", exchange_type="topic"),
     INEQUIVALENT + "'durable' for exchange 'amq.topic' in vhost '/': received 'false' but current is 'true'"),
    ("reserved name", [], Declare(exchange="amq.x", exchange_type="topic"),
     "channel 403 ACCESS_REFUSED - exchange name 'amq.x' contains reserved prefix 'amq.*'"),
    ("unknown type", [], Declare(exchange="x", exchange_type="x-random"),
     "connection 503 COMMAND_INVALID - unknown exchange type 'x-random'"),
    ("default exchange", [], Declare(exchange=""), DEFAULT),
    ("default exchange, passive", [], Declare(exchange="", passive=True), DEFAULT),
    ("passive, not there", [], Declare(exchange="x", passive=True),
     "channel 404 NOT_FOUND - no exchange 'x' in vhost '/'"),
    ("alternate exchange", [], Declare(exchange="x", arguments={"alternate-exchange": "amq.fanout"}),
     "connection 540 NOT_IMPLEMENTED - argument 'alternate-exchange' for exchange 'x' in vhost '/' is not supported"),
    ("delete the default exchange", [], Delete(exchange=""), DEFAULT),
    ("delete a predeclared one", [], Delete(exchange="amq.topic"),
     "channel 403 ACCESS_REFUSED - deletion of system exchange 'amq.topic' in vhost '/' not allowed"),
    ("delete one in use",
     [TOPIC, commands.Queue.Declare(queue="q"), commands.Queue.Bind(queue="q", exchange="x", routing_key="#")],
     Delete(exchange="x", if_unused=True), "channel 406 PRECONDITION_FAILED - exchange 'x' in vhost '/' in use"),
    ("bind exchanges", [], commands.Exchange.Bind(destination="x", source="amq.topic"),
     "connection 540 NOT_IMPLEMENTED - exchange.bind"),
    ("unbind exchanges", [], commands.Exchange.Unbind(destination="x", source="amq.topic"),
     "connection 540 NOT_IMPLEMENTED - exchange.unbind"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "method", "close"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_a_method_that_cannot_be_done_closes_with_rabbitmqs_text(
    before: list[Method], method: Method, close: str
) -> None:
    """Each refusal has RabbitMQ 3.10's code and words."""
    client = Room().enter()
    for earlier in before:
        client.tell(1, earlier)
    assert client.refused(method) == close


@pytest.mark.parametrize("type_", ["direct", "fanout", "topic", "headers"])
def test_each_type_is_declared_found_again_and_deleted(type_: str) -> None:
    """Declaring twice is once, passive finds it whatever it asks for, delete removes it."""
    room = Room()
    client = room.enter()
    for method in (
        Declare(exchange="x", exchange_type=type_, durable=True),
        Declare(exchange="x", exchange_type=type_, durable=True),
        Declare(exchange="x", exchange_type="whatever", passive=True),
    ):
        client.call(1, method, commands.Exchange.DeclareOk)
    assert room.vhost.exchanges["x"].type == type_
    client.call(1, Delete(exchange="x"), commands.Exchange.DeleteOk)
    assert "x" not in room.vhost.exchanges


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        ("amq.direct", "direct"),
        ("amq.fanout", "fanout"),
        ("amq.topic", "topic"),
        ("amq.headers", "headers"),
        ("amq.match", "headers"),
    ],
)
def test_the_predeclared_exchanges_are_there(name: str, type_: str) -> None:
    """Declaring one as it is succeeds."""
    Room().enter().call(1, Declare(exchange=name, exchange_type=type_, durable=True), commands.Exchange.DeclareOk)


def test_deleting_what_is_not_there_is_no_error() -> None:
    """It is deleted already."""
    Room().enter().call(1, Delete(exchange="x"), commands.Exchange.DeleteOk)


@pytest.mark.parametrize("method", [Declare(exchange="x", nowait=True), Delete(exchange="x", nowait=True)])
def test_nowait_is_not_answered(method: Method) -> None:
    """The method is done and nothing is said."""
    assert Room().enter().tell(1, method) == []


def test_an_internal_exchange_is_declared_but_takes_no_publish() -> None:
    """Clients cannot publish to it: 403 as in RabbitMQ."""
    client = Room().enter()
    client.call(1, Declare(exchange="x", exchange_type="fanout", internal=True), commands.Exchange.DeclareOk)
    assert client.publish("x", "k") == [
        "channel 403 ACCESS_REFUSED - cannot publish to internal exchange 'x' in vhost '/'"
    ]
